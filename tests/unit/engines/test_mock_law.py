"""The law: what options do, exactly, and how the noise is drawn."""

from __future__ import annotations

import math
import statistics

import pytest

from servetune.engines.mock_law import (
    DEFAULT_LAW,
    Figures,
    Law,
    NoRoom,
    Shape,
    figures,
    launch_factor,
    optimum,
    run_factor,
    sample,
    throughput,
    value_text,
)
from servetune.records import Axis, Config, OptionValue

SHAPE = Shape(requests=24, input_tokens=120, output_tokens=30)


def config(variant: str = "", **options: OptionValue) -> Config:
    """A config of the mock."""
    return Config(engine="mock", variant=variant, options=options)


def law_of(shape: Shape = SHAPE, variant: str = "", **options: OptionValue) -> Figures:
    """The default law's figures."""
    return figures(DEFAULT_LAW, config(variant, **options), shape)


def test_one_request_costs_what_the_formula_says() -> None:
    """One prompt step, then one step a token."""
    shape = Shape(requests=1, input_tokens=100, output_tokens=3)
    fixed = 0.003 + 0.010
    first = fixed + 0.001 + 100 / 20_000
    others = [fixed + 0.0001 + 2e-7 * context for context in (100, 101)]
    found = law_of(shape)

    assert found.duration_s == pytest.approx(first + sum(others))
    assert found.mean_ttft_ms == pytest.approx(first * 1e3)
    assert found.mean_tpot_ms == pytest.approx(sum(others) / 2 * 1e3)
    assert found.mean_e2el_ms == pytest.approx(found.duration_s * 1e3)
    assert found.total_token_throughput == pytest.approx(103 / found.duration_s)
    assert found.output_throughput == pytest.approx(3 / found.duration_s)
    assert (found.steps, found.preemptions) == (3, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"prefix_caching": False},
        {"swap_space_gib": 16},
        {"log_requests": True},
        {"fail": "http-500"},
        {"seed": 7, "launch_noise": 0.5, "run_noise": 0.5},
        {"scheduling_policy": "shortest"},
    ],
)
def test_options_without_effect_have_none(options: dict[str, OptionValue]) -> None:
    """Exactly none (the policy: on prompts of equal length)."""
    assert figures(DEFAULT_LAW, Config(engine="mock", options=options), SHAPE) == law_of()


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"async_scheduling": True}, {}),
        ({"attention_backend": "flash"}, {}),
        ({}, {"graph_capture": False}),
        ({}, {"max_num_seqs": 4}),
        ({}, {"max_num_batched_tokens": 64}),
        ({}, {"kv_tokens": 1024}),
        ({"kv_tokens": 1024, "block_size": 1}, {"kv_tokens": 1024, "block_size": 64}),
    ],
)
def test_options_with_an_effect_move_throughput(better: dict[str, OptionValue], worse: dict[str, OptionValue]) -> None:
    """In the direction that the catalogue states."""
    high, low = (throughput(DEFAULT_LAW, Config(engine="mock", options=options), SHAPE) for options in (better, worse))

    assert high > low * 1.001


def test_more_sequences_are_best_only_while_the_kv_space_lasts() -> None:
    """The optimum of the cap is inside its range when outputs are long."""
    shape = Shape(requests=64, input_tokens=215, output_tokens=200)
    by_cap = {cap: law_of(shape, max_num_seqs=cap) for cap in (8, 32, 128)}

    assert by_cap[32].total_token_throughput > by_cap[8].total_token_throughput
    assert by_cap[32].total_token_throughput > by_cap[128].total_token_throughput
    assert by_cap[32].preemptions == 0 < by_cap[128].preemptions


def test_chunking_lets_prompts_share_steps_with_generation() -> None:
    """Without it, prompts have steps of their own: throughput is lost and prompts wait longer."""
    shape = Shape(requests=48, input_tokens=900, output_tokens=30, concurrency=8)
    mixed, apart = law_of(shape), law_of(shape, chunked_prefill=False)

    assert mixed.total_token_throughput > apart.total_token_throughput
    assert mixed.mean_ttft_ms < apart.mean_ttft_ms


def test_the_best_variant_depends_on_the_workload() -> None:
    """The weights of awq are read fastest, but it computes prompts slowest, so long prompts turn the order."""
    long_answers = Shape(requests=16, input_tokens=20, output_tokens=100)
    long_prompts = Shape(requests=16, input_tokens=600, output_tokens=10)

    assert law_of(long_answers, "awq").duration_s < law_of(long_answers, "fp8").duration_s
    assert law_of(long_prompts, "awq").duration_s > law_of(long_prompts, "fp8").duration_s


def test_concurrency_bounds_what_is_under_way() -> None:
    """A closed loop of one is as slow as its requests one after the other."""
    alone = law_of(Shape(requests=1, input_tokens=120, output_tokens=30))
    one_by_one = law_of(Shape(requests=10, input_tokens=120, output_tokens=30, concurrency=1))

    assert one_by_one.duration_s == pytest.approx(10 * alone.duration_s)
    assert one_by_one.mean_e2el_ms == pytest.approx(alone.mean_e2el_ms)


def test_speed_divides_every_time() -> None:
    """Exactly."""
    assert law_of(speed=10.0).duration_s == pytest.approx(law_of().duration_s / 10)


def test_declared_gains_are_exact_and_can_be_the_only_effects() -> None:
    """A law without structure has no effect but those that it declares; gains multiply."""
    law = Law(structural=False, gains={"async_scheduling": {"true": 1.05}, "variant": {"fp8": 1.10}})
    base = throughput(law, config(), SHAPE)

    assert throughput(law, config(max_num_seqs=1, kv_tokens=64), SHAPE) == base
    assert throughput(law, config("awq"), SHAPE) == base
    assert throughput(law, config(async_scheduling=True), SHAPE) == pytest.approx(1.05 * base)
    assert throughput(law, config("fp8", async_scheduling=True), SHAPE) == pytest.approx(1.05 * 1.10 * base)


def test_values_are_written_as_in_toml() -> None:
    """The keys of declared gains."""
    assert [value_text(value) for value in (True, False, 64, 0.5, "flash")] == ["true", "false", "64", "0.5", "flash"]


def test_a_space_without_room_is_refused() -> None:
    """Too small to start, or too small for one request."""
    with pytest.raises(NoRoom, match="no block"):
        law_of(kv_tokens=64, max_num_batched_tokens=1024)
    with pytest.raises(NoRoom, match=r"120 \+ 30 tokens"):
        law_of(kv_tokens=384)


def test_noise_is_fixed_by_its_names() -> None:
    """Same launch and run: same value; another launch, run or seed: another."""
    first = sample(DEFAULT_LAW, config(), SHAPE, launch=1, run=1)

    assert first == sample(DEFAULT_LAW, config(), SHAPE, launch=1, run=1)
    others = {
        sample(DEFAULT_LAW, config(), SHAPE, launch=2, run=1),
        sample(DEFAULT_LAW, config(), SHAPE, launch=1, run=2),
        sample(DEFAULT_LAW, config(seed=1), SHAPE, launch=1, run=1),
    }
    assert first not in others
    assert len(others) == 3


def test_noise_has_the_stated_spread() -> None:
    """Logs of the factors: mean 0, 1.0 % between launches, 1.1 % between runs, independent of each other."""
    count = 4000
    launches = [math.log(launch_factor(config(), number)) for number in range(count)]
    runs = [math.log(run_factor(config(), number, 1)) for number in range(count)]

    for values, spread in ((launches, 0.010), (runs, 0.011)):
        assert abs(statistics.fmean(values)) < 4 * spread / math.sqrt(count)
        assert statistics.stdev(values) == pytest.approx(spread, rel=0.05)
    assert abs(statistics.correlation(launches, runs)) < 4 / math.sqrt(count)


def test_noise_can_be_switched_off() -> None:
    """Then a sample is the law."""
    quiet = config(launch_noise=0.0, run_noise=0.0)

    assert sample(DEFAULT_LAW, quiet, SHAPE, launch=5, run=6) == throughput(DEFAULT_LAW, quiet, SHAPE)


def test_the_optimum_is_the_best_of_all_combinations() -> None:
    """By enumeration; combinations that would not start are left out."""
    axes = (
        Axis(option="max_num_seqs", values=(4, 16)),
        Axis(option="kv_tokens", values=(128, 16384)),
        Axis(option="async_scheduling", values=(False, True)),
    )
    best, found = optimum(DEFAULT_LAW, axes, SHAPE, variants=("", "fp8", "int8"))

    assert best == config("fp8", async_scheduling=True, kv_tokens=16384, max_num_seqs=16)
    assert found == law_of(SHAPE, "fp8", async_scheduling=True, kv_tokens=16384, max_num_seqs=16)
    with pytest.raises(NoRoom, match="no combination"):
        optimum(DEFAULT_LAW, (Axis(option="kv_tokens", values=(128,)),), SHAPE)
