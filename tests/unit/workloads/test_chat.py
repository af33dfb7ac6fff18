"""Workload chat: lengths that follow the fitted distributions, and prompts of those lengths."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from servetune import tokenizer as tokenizers
from servetune import workloads
from servetune.records import OptionValue, Request, WorkloadSpec
from servetune.tokenizer import Tokenizer
from servetune.workloads.chat import INPUT, OUTPUT
from tests.unit import tiny_gguf


def made(
    tokenizer: Tokenizer | None = None, *, count: int = 200, seed: int = 1, **params: OptionValue
) -> list[Request]:
    """The requests of a spec with these parameters."""
    spec = WorkloadSpec(name="w", kind="chat", num_prompts=count, params=params)
    return workloads.build(spec, seed=seed, tokenizer=tokenizer)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    """A real byte-level BPE with few merges."""
    return tokenizers.load(str(tiny_gguf.write(tmp_path / "m.gguf")))


def test_the_distributions_have_the_documented_means() -> None:
    """The formula and the quantiles agree with 215 and 198."""
    for lengths, documented in ((INPUT, 215), (OUTPUT, 198)):
        assert lengths.mean() == pytest.approx(documented, rel=1e-3)
        assert mean(lengths.quantile((step + 0.5) / 20_000) for step in range(20_000)) == pytest.approx(
            documented, rel=2e-3
        )
        assert lengths.quantile(0.0) == pytest.approx(lengths.shortest)
        assert lengths.quantile(1.0) == pytest.approx(lengths.longest)


@pytest.mark.parametrize("spread", [0.05, 0.3, 0.8, 1.0])
def test_a_narrower_spread_keeps_the_mean(spread: float) -> None:
    """Only the width changes."""
    narrow = INPUT.narrowed(spread)
    assert narrow.mean() == pytest.approx(INPUT.mean(), rel=1e-4)
    assert narrow.quantile(0.9) / narrow.quantile(0.5) <= INPUT.quantile(0.9) / INPUT.quantile(0.5) + 1e-9


def test_a_run_of_1000_asks_for_the_published_totals() -> None:
    """Output tokens lie within 2 % of 198 a request, and two seeds differ by less than 1 %."""
    totals = [sum(request.output_tokens for request in made(count=1000, seed=seed)) for seed in range(3)]
    assert all(194_000 < total < 202_000 for total in totals)
    assert max(totals) / min(totals) < 1.01


def test_prompts_have_the_drawn_lengths(tokenizer: Tokenizer) -> None:
    """prompt_tokens is the count of the prompt itself, and nearly all lengths are those of the distribution."""
    requests = made(tokenizer, count=60, input_mean=40, output_mean=10)
    assert [request.prompt_tokens for request in requests] == [len(tokenizer.encode(r.prompt)) for r in requests]
    assert mean(request.prompt_tokens or 0 for request in requests) == pytest.approx(40, rel=0.05)
    assert all(request.prompt == request.prompt.strip() for request in requests)


def test_without_a_tokenizer_lengths_are_about_right_and_unknown() -> None:
    """Prompts have 0.75 words a token and no token count."""
    requests = made(None, count=300)
    assert {request.prompt_tokens for request in requests} == {None}
    assert mean(len(request.prompt.split()) for request in requests) == pytest.approx(0.75 * 215, rel=0.05)


def test_max_total_holds() -> None:
    """Long pairs are shrunk together; both sides keep at least one token."""
    requests = made(None, count=500, input_mean=100, output_mean=100, max_total=220)
    words = [round(len(request.prompt.split()) / 0.75) for request in requests]
    assert all(words[request.index] + request.output_tokens <= 222 for request in requests)
    assert min(request.output_tokens for request in requests) >= 1
    assert made(None, count=3, input_mean=1, output_mean=1, max_total=2)


def test_lengths_are_never_below_four_tokens() -> None:
    """Unless the mean itself is smaller."""
    assert min(request.output_tokens for request in made(None, output_mean=8)) == 4
    assert {request.output_tokens for request in made(None, output_mean=2, spread=0.05)} == {2}


def test_prompts_differ_from_their_beginning() -> None:
    """Few prompts share their first 40 characters, and none is repeated, so that caches gain nothing."""
    requests = made(None, count=300)
    assert len({request.prompt for request in requests if len(request.prompt) > 60}) >= 240
    beginnings = {request.prompt[:40] for request in requests}
    assert len(beginnings) > 280


def test_means_beyond_the_total_are_refused() -> None:
    """The message names the parameter and a value that would do."""
    spec = WorkloadSpec(name="w", kind="chat", num_prompts=1, params={"input_mean": 2000, "output_mean": 100})
    (mistake,) = workloads.check(spec)
    assert mistake.where == "workload.w.max_total"
    assert "8400" in mistake.fix
