"""What a changed study uses again, and what it says it dropped."""

from __future__ import annotations

import msgspec
import pytest

from servetune.history import History, run_fits, select, trial_fits
from servetune.records import (
    Completed,
    Config,
    EngineSpec,
    Failed,
    HostFacts,
    Limits,
    Objective,
    Study,
    Variant,
    WorkloadSpec,
)
from servetune.store import StoredTrial
from tests.unit.store.sample import run, trial

HOST = HostFacts(hostname="h", os="o", kernel="k", cpu="c", cores=2, memory_gib=1.0, python="3", servetune="0")
CONFIG = Config(engine="mock", variant="fp8")
STUDY = Study(
    name="s",
    model="m",
    baseline=CONFIG,
    engines=(EngineSpec(name="mock", variants=(Variant(name="fp8"),)),),
    workloads=(
        WorkloadSpec(name="chat", kind="chat", num_prompts=10),
        WorkloadSpec(name="long", kind="chat", num_prompts=5, seed=3),
    ),
    objective=Objective(on="chat"),
)


def _stored(study: Study = STUDY, outcome: Completed | Failed | None = None) -> StoredTrial:
    runs = () if outcome else (run("chat", 0), run("long", 0))
    return StoredTrial(
        trial=trial(1, config=CONFIG, runs=runs, outcome=outcome),
        fits=trial_fits(study, CONFIG, "1", HOST) or "",
        run_fits=tuple(run_fits(study, made.workload) or "" for made in runs),
    )


def _select(study: Study, version: str = "1", host: HostFacts | None = HOST) -> History:
    return select(study, [_stored()], {"mock": version}, host)


def test_the_same_study_uses_everything_again() -> None:
    """Nothing is dropped when nothing changed."""
    chosen = _select(STUDY)

    assert chosen.trials == (_stored().trial,)
    assert chosen.dropped == ()


@pytest.mark.parametrize(
    "change",
    [
        {"objective": Objective(on="long", min_gain=0.05)},
        {"limits": Limits(bounds={"p99_ttft_ms": 5.0})},
        {"quality": "required"},
    ],
)
def test_rules_of_decision_may_change_freely(change: dict[str, object]) -> None:
    """Objective, limits and quality change no measurement."""
    assert _select(msgspec.structs.replace(STUDY, **change)).dropped == ()


def test_a_changed_workload_drops_its_runs_only() -> None:
    """The other workload's run of the same launch is kept."""
    changed = WorkloadSpec(name="chat", kind="chat", num_prompts=11)
    chosen = _select(msgspec.structs.replace(STUDY, workloads=(changed, STUDY.workloads[1])))

    assert [made.workload for made in chosen.trials[0].runs] == ["long"]
    assert chosen.dropped == ("1 runs of workload chat, which was changed or removed",)


def test_a_changed_study_seed_leaves_runs_with_an_own_seed() -> None:
    """A workload with its own seed sends the same prompts under any study seed."""
    chosen = _select(msgspec.structs.replace(STUDY, seed=5))

    assert [made.workload for made in chosen.trials[0].runs] == ["long"]


def test_removed_workloads_drop_the_whole_trial_when_nothing_is_left() -> None:
    """A trial without any fitting run is not part of the history."""
    other = WorkloadSpec(name="other", kind="chat", num_prompts=1)
    chosen = _select(msgspec.structs.replace(STUDY, workloads=(other,)))

    assert chosen.trials == ()
    assert len(chosen.dropped) == 2


def test_another_engine_version_drops_its_trials_and_says_so() -> None:
    """Figures of two versions are never mixed."""
    assert _select(STUDY, version="2").dropped == ("1 trials of mock 1: the version found now is 2",)


@pytest.mark.parametrize(
    "host", [msgspec.structs.replace(HOST, cpu="other"), msgspec.structs.replace(HOST, gpus=("A100",)), None]
)
def test_another_machine_drops_everything(host: HostFacts | None) -> None:
    """A study folder that was copied to another machine starts anew."""
    assert _select(STUDY, host=host).trials == ()


def test_an_engine_or_variant_that_left_the_study_is_dropped() -> None:
    """The reason names the engine."""
    without = msgspec.structs.replace(STUDY, engines=(EngineSpec(name="llamacpp"),))
    other_variant = msgspec.structs.replace(STUDY, engines=(EngineSpec(name="mock", variants=(Variant(name="x"),)),))

    assert "no longer in the study" in _select(without).dropped[0]
    assert _select(other_variant).trials == ()


def test_failures_are_kept_while_their_config_fits() -> None:
    """A config that failed is not tried again for nothing."""
    failed = _stored(outcome=Failed(stage="launch", cause="crashed", evidence="x"))

    assert len(select(STUDY, [failed], {"mock": "1"}, HOST).trials) == 1


def test_an_engine_that_is_missing_now_keeps_its_measurements() -> None:
    """A report of a study can be written on a machine without the engine."""
    assert len(select(STUDY, [_stored()], {}, HOST).trials) == 1


def test_a_study_without_variants_fits_configs_without_one() -> None:
    """The study's model as it is has the empty variant name."""
    plain = msgspec.structs.replace(STUDY, engines=(EngineSpec(name="mock"),))

    assert trial_fits(plain, Config(engine="mock"), "1", HOST) is not None
    assert trial_fits(plain, CONFIG, "1", HOST) is None
