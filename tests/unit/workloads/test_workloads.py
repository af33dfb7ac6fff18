"""All workloads: seeds, digests, warm-up, and mistakes in their parameters."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from servetune import workloads
from servetune.errors import HostProblem, UserError
from servetune.records import OptionValue, Request, WorkloadSpec
from tests.unit.workloads.stub import WordIds
from tests.unit.workloads.test_sharegpt import write


def spec(kind: str, folder: Path, *, count: int = 6) -> WorkloadSpec:
    """A small spec of a kind."""
    params: dict[str, dict[str, OptionValue]] = {
        "chat": {"input_mean": 30, "output_mean": 10},
        "random": {"input_len": 12, "output_len": 3},
        "sharegpt": {"path": str(write(folder, [(10, 20)] * 40))},
    }
    return WorkloadSpec(name="w", kind=kind, num_prompts=count, params=params[kind])


@pytest.fixture(params=sorted(workloads.BUILT_IN))
def kind(request: pytest.FixtureRequest) -> str:
    """Each built-in kind."""
    return str(request.param)


def test_the_same_seed_gives_the_same_bytes(kind: str, tmp_path: Path) -> None:
    """Also in another process with another hash seed."""
    here = workloads.digest(workloads.build(spec(kind, tmp_path), seed=9, tokenizer=WordIds()))
    program = (
        "import sys; from pathlib import Path; from servetune import workloads\n"
        "from tests.unit.workloads.test_workloads import spec; from tests.unit.workloads.stub import WordIds\n"
        f"made = workloads.build(spec({kind!r}, Path({str(tmp_path)!r})), seed=9, tokenizer=WordIds())\n"
        "print(workloads.digest(made))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)}
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert there.stdout.strip() == here


def test_another_seed_gives_other_prompts(kind: str, tmp_path: Path) -> None:
    """No prompt of one seed is in the other's, where the source has enough."""
    one, two = (
        {request.prompt for request in workloads.build(spec(kind, tmp_path), seed=seed, tokenizer=WordIds())}
        for seed in (1, 2)
    )
    assert one != two
    if kind != "sharegpt":
        assert not one & two


def test_a_seed_of_the_spec_wins(kind: str, tmp_path: Path) -> None:
    """Then repeats have the same prompts, as the user asked."""
    fixed = msgspec.structs.replace(spec(kind, tmp_path), seed=4)
    first, second = (workloads.digest(workloads.build(fixed, seed=seed, tokenizer=WordIds())) for seed in (1, 2))
    assert first == second


def test_warmup_has_prompts_of_its_own(kind: str, tmp_path: Path) -> None:
    """Its requests are of the asked number, deterministic, and never the run's; also where the spec fixes the seed."""
    for one in (spec(kind, tmp_path), msgspec.structs.replace(spec(kind, tmp_path), seed=4)):
        run = {request.prompt for request in workloads.build(one, seed=1, tokenizer=WordIds())}
        warmup = workloads.warmup_requests(one, 5, seed=1, tokenizer=None)
        assert len({request.prompt for request in warmup}) == 5
        assert not run & {request.prompt for request in warmup}
        assert all(request.prompt.startswith("Practice") for request in warmup)
        assert warmup == workloads.warmup_requests(one, 5, seed=1, tokenizer=None)
        counted = workloads.warmup_requests(one, 1, seed=1, tokenizer=WordIds())
        assert (counted[0].prompt_tokens, counted[0].output_tokens) == workloads.KINDS[kind].typical_lengths(one)
    assert workloads.warmup_requests(one, 0, seed=1, tokenizer=WordIds()) == []


def test_every_parameter_is_described(kind: str) -> None:
    """Each has a doc and accepts its own default; the docs page names it."""
    page = (Path(__file__).parents[3] / "docs" / "workloads.md").read_text()
    for name, option in workloads.KINDS[kind].params.items():
        assert (option.name, bool(option.doc), option.applies) == (name, True, "load")
        assert f"`{name}`" in page
        one = WorkloadSpec(name="w", kind=kind, num_prompts=1, params={name: option.default or 0})
        assert not [mistake for mistake in workloads.check(one) if option.default not in (None, "", 0)]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"input_length": 5}, 'no parameter "input_length" (did you mean "input_len"?)'),
        ({"zzz": 5}, "parameters: input_len, output_len"),
        ({"input_len": "5"}, "'5' is not a whole number"),
        ({"input_len": True}, "True is not a whole number"),
        ({"input_len": 0}, "0 is outside 1 to 1e+07"),
        ({"range_ratio": 1.5}, "1.5 is outside 0 to"),
        ({"algorithm": "vllm-9"}, "'vllm-9' is not one of vllm-0.33, vllm-0.11"),
    ],
)
def test_mistakes_in_parameters_are_named(params: dict[str, OptionValue], said: str) -> None:
    """Unknown names, wrong types and values out of range each have their message, with the place."""
    one = WorkloadSpec(name="long", kind="random", num_prompts=1, params=params)
    (mistake,) = workloads.check(one)
    assert mistake.where == f"workload.long.{next(iter(params))}"
    assert said in str(mistake)
    with pytest.raises(UserError, match=r"workload\.long"):
        workloads.build(one, seed=1, tokenizer=WordIds())


def test_all_mistakes_are_found_at_once() -> None:
    """Two wrong parameters and no prompts are three mistakes."""
    one = WorkloadSpec(name="w", kind="random", num_prompts=0, params={"input_len": 0, "oops": 1})
    assert len(workloads.check(one)) == 3


def test_an_unknown_kind_is_the_users_mistake() -> None:
    """The kinds that exist are listed."""
    (mistake,) = workloads.check(WorkloadSpec(name="w", kind="sharegtp", num_prompts=1))
    assert "chat, random, sharegpt" in str(mistake)
    assert len(workloads.KINDS) == len(list(workloads.KINDS)) >= 3


def test_run_seeds_depend_on_study_workload_and_repeat_only() -> None:
    """Known values stay the same for ever, and every part changes them."""
    assert workloads.run_seed(0, "chat", 1) == workloads.run_seed(0, "chat", 1)
    seeds = {
        workloads.run_seed(study, name, repeat) for study in (0, 1) for name in ("a", "b") for repeat in (1, 2, 11)
    }
    assert len(seeds) == 12
    assert all(0 <= seed < 2**53 for seed in seeds)
    assert workloads.run_seed(0, "chat", 0) == 5_962_259_557_228_853


def test_the_digest_is_that_of_the_text() -> None:
    """First 16 hex digits of SHA-256 over all prompts; order matters, lengths do not."""
    one = Request(index=0, prompt="hello", prompt_tokens=1, output_tokens=1)
    two = Request(index=1, prompt=" world", prompt_tokens=None, output_tokens=9)
    assert workloads.digest([one, two]) == "b94d27b9934d3e08"
    assert workloads.digest([two, one]) != "b94d27b9934d3e08"


def test_workloads_of_other_packages_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point adds a kind; one that cannot be loaded says where it is."""
    good = metadata.EntryPoint("theirs", "servetune.workloads.chat:Chat", "servetune.workloads")
    bad = metadata.EntryPoint("broken", "servetune.workloads.chat:Nothing", "servetune.workloads")
    monkeypatch.setattr("servetune.workloads._entry_points", lambda: {"theirs": good, "broken": bad})
    assert workloads.KINDS["theirs"].kind == "chat"
    assert {"theirs", "chat"} <= set(workloads.KINDS)
    with pytest.raises(HostProblem, match="cannot be loaded"):
        workloads.KINDS["broken"]
