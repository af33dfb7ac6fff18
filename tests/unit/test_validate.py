"""The published comparison: fresh launches, every workload, and what may be recommended."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from servetune import space, validate
from servetune.records import (
    Budget,
    Config,
    EngineSpec,
    Limits,
    Measurement,
    Objective,
    RunRequest,
    Study,
    Summary,
    Trial,
    Variant,
    WorkloadSpec,
)
from tests.unit.laboratory_sample import (
    CATALOGUES,
    Lab,
    concluded,
    distribution,
    engine,
    run_all,
    search_all,
    study,
)

GAIN = {"fp8": 1.2, "seqs=64": 1.1}


def _validation(history: list[Trial]) -> list[Measurement]:
    return [trial.measurement for trial in history if trial.measurement.step == "validate"]


def test_baseline_and_winner_are_launched_afresh_in_turn_on_every_workload() -> None:
    """One launch of each in a block, with prompts that the search did not use, the objective's workload first."""
    history = run_all(study(), Lab(GAIN))
    wanted = _validation(history)
    used = {request for trial in history if trial.measurement.step != "validate" for request in trial.measurement.runs}

    assert [measurement.block for measurement in wanted] == [1, 1, 2, 2, 3, 3, 4, 4]
    for first, second in zip(wanted[::2], wanted[1::2], strict=True):
        assert {first.role, second.role} == {"baseline", "winner"}
        assert first.runs == second.runs
    assert [request.workload for request in wanted[0].runs] == ["chat", "long"]
    assert not used & {request for measurement in wanted for request in measurement.runs}


def test_the_published_gain_covers_the_truth() -> None:
    """1.2 x 1.1, on each workload, the objective's first."""
    conclusion = concluded(study(), Lab(GAIN, noise=0.01))

    assert space.label(conclusion.recommended) == "one fp8 seqs=64"
    assert conclusion.kind == "better"
    assert conclusion.gain is not None
    assert conclusion.gain.low < 0.32 < conclusion.gain.high
    assert [(change.workload, change.repeats, change.barred) for change in conclusion.changes] == [
        ("chat", 4, False),
        ("long", 4, False),
    ]
    assert conclusion.gain == conclusion.changes[0].gain
    assert conclusion.finished
    assert conclusion.limits_met


def test_what_was_adopted_is_said_to_have_unchecked_quality() -> None:
    """Other weights than the baseline's; variants made for the study as well."""
    spec = EngineSpec(name="one", variants=(Variant(name=""), Variant(name="fp8", quantize="Q8_0")), axes=engine().axes)
    codes = [finding.code for finding in concluded(study(engines=(spec,)), Lab(GAIN)).findings]

    assert codes == ["quality-not-checked", "requantised"]


def test_noise_is_reported_in_its_parts() -> None:
    """Within a launch only where launches have several runs."""
    single = concluded(study(), Lab(GAIN, noise=0.01)).noise
    split = concluded(study(budget=Budget(seconds=1e6, max_repeats=4, runs_per_launch=2)), Lab(GAIN, noise=0.01)).noise

    assert single is not None
    assert split is not None
    assert single.one_launch == pytest.approx(0.0058, rel=0.5)
    assert single.within_launch is None
    assert split.within_launch == pytest.approx(0.0058, rel=0.5)


def test_without_a_gain_the_baseline_stays_and_is_measured_once_on_every_workload() -> None:
    """Nothing is published as a gain."""
    history = run_all(study(), Lab())
    conclusion = validate.conclude(study(), CATALOGUES, history)

    assert conclusion.recommended == conclusion.baseline
    assert (conclusion.kind, conclusion.gain, conclusion.changes) == ("no difference shown", None, ())
    assert [measurement.role for measurement in _validation(history)] == ["baseline"]
    assert conclusion.finished


def test_the_validation_waits_for_the_search() -> None:
    """And an unfinished study is concluded as far as it goes."""
    made = search_all(study(), Lab(GAIN))
    third = next(place for place, trial in enumerate(made) if trial.measurement.step == "tokens")

    assert validate.next_measurement(study(), CATALOGUES, made[:2]) is None
    begun = validate.conclude(study(), CATALOGUES, made[:2])
    half = validate.conclude(study(), CATALOGUES, made[:third])
    assert (begun.recommended, begun.kind, begun.finished) == (Config(engine="one"), "no difference shown", False)
    assert (space.label(half.recommended), half.kind, half.gain) == ("one fp8 seqs=64", "better", None)


def test_the_validation_may_stop_and_go_on_anywhere() -> None:
    """The same history gives the same next launch."""
    history = run_all(study(), Lab({**GAIN, "fp8@long": 0.5}))
    first = next(place for place, trial in enumerate(history) if trial.measurement.step == "validate")

    for place in range(first, len(history)):
        assert validate.next_measurement(study(), CATALOGUES, history[:place]) == history[place].measurement
    assert validate.next_measurement(study(), CATALOGUES, history) is None


def test_runs_that_are_there_are_not_made_again() -> None:
    """A killed trial left the objective's run."""
    made = search_all(study(), Lab(GAIN))
    wanted = validate.next_measurement(study(), CATALOGUES, made)
    assert wanted is not None
    whole = Lab(GAIN).trial(wanted, made)

    again = validate.next_measurement(study(), CATALOGUES, [*made, msgspec.structs.replace(whole, runs=whole.runs[:1])])

    assert again == msgspec.structs.replace(wanted, runs=wanted.runs[1:])


def test_a_short_study_publishes_an_interval_of_use() -> None:
    """Where every step adopted something, their spread is used, or one degree of freedom would be all there is."""
    asked = study(
        engines=(engine(variants=("", "fp8", "awq"), threads=(1, 2)),),
        budget=Budget(seconds=1e6, max_repeats=2),
    )
    conclusion = concluded(asked, Lab({"fp8": 2.0, "threads=2": 2.0, "threads=1": 1.5}, noise=0.02))

    assert conclusion.gain is not None
    assert conclusion.gain.high - conclusion.gain.low < 0.2


# --------------------------------------------------------------------------- losses


def test_a_loss_on_another_workload_bars_the_winner_and_the_one_before_is_tried() -> None:
    """What was given up is said."""
    lab = Lab({"fp8": 1.2, "seqs=64": 1.1}, change=_slow_on_long("seqs"))
    conclusion = concluded(study(), lab)

    assert space.label(conclusion.recommended) == "one fp8"
    (barred,) = conclusion.barred
    assert space.label(barred.config) == "one fp8 seqs=64"
    assert barred.reason.startswith("loses 33.9%")
    assert "on long (max_loss 5.0%); given up: +31.9% on chat" in barred.reason
    assert barred.gain is not None
    assert conclusion.gain is not None
    assert conclusion.gain.estimate == pytest.approx(0.2, abs=0.01)


def _slow_on_long(option: str) -> Callable[[Config, RunRequest, Summary], Summary]:
    def change(config: Config, request: RunRequest, made: Summary) -> Summary:
        is_slow = request.workload == "long" and option in config.options
        value = made.total_token_throughput * (0.5 if is_slow else 1.0)
        return msgspec.structs.replace(made, total_token_throughput=value)

    return change


def test_if_every_leader_loses_somewhere_the_baseline_is_recommended() -> None:
    """With all that was barred."""
    conclusion = concluded(study(), Lab({**GAIN, "fp8@long": 0.5}))

    assert conclusion.recommended == conclusion.baseline
    assert conclusion.kind == "no difference shown"
    assert [space.label(verdict.config) for verdict in conclusion.barred] == ["one fp8 seqs=64", "one fp8"]
    assert conclusion.finished


def test_a_small_loss_is_only_reported() -> None:
    """3 % with max_loss 5 %."""
    conclusion = concluded(study(), Lab({"fp8": 1.2, "fp8@long": 0.97 / 1.2}))

    assert conclusion.recommended.variant == "fp8"
    assert conclusion.changes[1].gain.estimate == pytest.approx(-0.03, abs=0.01)
    assert not conclusion.changes[1].barred


def test_a_gain_that_was_luck_is_taken_back() -> None:
    """Fresh launches show a loss on the objective."""
    made = search_all(study(), Lab(GAIN))
    conclusion = validate.conclude(study(), CATALOGUES, run_all(study(), Lab({"fp8": 0.98, "seqs=64": 0.99}), made))

    assert conclusion.recommended == conclusion.baseline
    assert conclusion.barred[0].reason == "fresh launches show that it is worse than the baseline"


@pytest.mark.parametrize(
    ("fresh", "noise", "kind", "codes"),
    [
        (1.0, 0.002, "equivalent", ["quality-not-checked", "unconfirmed-gain"]),
        (1.0, 0.06, "no difference shown", ["quality-not-checked", "unconfirmed-gain"]),
        (1.1, 0.002, "better", ["quality-not-checked"]),
    ],
)
def test_fresh_launches_have_the_last_word_on_the_gain(fresh: float, noise: float, kind: str, codes: list[str]) -> None:
    """The adoption stands, the kind is that of the published interval."""
    asked = study(limits=Limits(max_loss=0.5), objective=Objective(on="chat", min_gain=0.02))
    made = search_all(asked, Lab({"fp8": 1.2}))
    conclusion = validate.conclude(asked, CATALOGUES, run_all(asked, Lab({"fp8": fresh}, noise=noise), made))

    assert conclusion.recommended.variant == "fp8"
    assert conclusion.kind == kind
    assert [finding.code for finding in conclusion.findings] == codes


# --------------------------------------------------------------------------- limits and quality


def _ttft(plain: float, fp8: float, *, fresh: float | None = None) -> Lab:
    def change(config: Config, request: RunRequest, made: Summary) -> Summary:
        value = fp8 if config.variant else plain
        if fresh is not None and config.variant and request.repeat >= 1_000_000:
            value = fresh
        return msgspec.structs.replace(made, latency={"ttft": distribution(value)})

    return Lab({"fp8": 0.8 if plain > 500 else 1.2}, change=change)


BOUND = Limits(bounds={"mean_ttft_ms": 500.0})


def test_a_slower_winner_stands_if_the_baseline_breaks_a_limit() -> None:
    """A loss against what may not win is no reason."""
    conclusion = concluded(study(limits=BOUND), _ttft(plain=800.0, fp8=300.0))

    assert conclusion.recommended.variant == "fp8"
    assert conclusion.kind == "worse"
    assert conclusion.limits_met
    assert "unconfirmed-gain" not in [finding.code for finding in conclusion.findings]


def test_a_winner_that_breaks_a_limit_on_fresh_launches_is_barred() -> None:
    """The mean over all its runs counts."""
    conclusion = concluded(study(limits=BOUND), _ttft(plain=100.0, fp8=300.0, fresh=5000.0))

    assert conclusion.recommended == conclusion.baseline
    assert conclusion.barred[0].reason.startswith("mean_ttft_ms")


def test_it_is_said_when_nothing_keeps_the_limits() -> None:
    """The baseline stays, without meeting them; the gain that cannot be had is named."""
    conclusion = concluded(study(limits=BOUND), _ttft(plain=800.0, fp8=900.0))

    assert conclusion.recommended == conclusion.baseline
    assert not conclusion.limits_met


def test_configs_that_would_have_won_are_named() -> None:
    """Those that break a limit, and those whose weights are not checked."""
    limited = concluded(study(limits=BOUND), _ttft(plain=100.0, fp8=900.0))
    required = concluded(study(quality="required"), Lab({"fp8": 1.2}))

    (barred,) = required.barred
    assert barred.reason.startswith("quality-not-checked")
    assert limited.barred == ()


def test_a_config_that_breaks_a_limit_late_is_named_with_its_gain() -> None:
    """It was measured often enough to have one."""

    def change(config: Config, request: RunRequest, made: Summary) -> Summary:
        late = 3000.0 if request.repeat == 2 else 100.0
        return msgspec.structs.replace(made, latency={"ttft": distribution(late if config.variant else 100.0)})

    asked = study(limits=BOUND, engines=(engine(variants=("", "fp8", "awq")),))
    conclusion = concluded(asked, Lab({"fp8": 1.06}, noise=0.02, change=change))

    assert [verdict.config.variant for verdict in conclusion.barred] == ["fp8"]


# --------------------------------------------------------------------------- failures


def test_a_baseline_that_never_runs_leaves_no_gain_but_a_recommendation() -> None:
    """The winner alone is launched once on every workload."""
    lab = Lab({"fp8": 1.2}, fails=lambda wanted, _attempt: None if wanted.config.variant else "crashed")
    history = run_all(study(), lab)
    conclusion = validate.conclude(study(), CATALOGUES, history)

    assert conclusion.recommended.variant == "fp8"
    assert (conclusion.kind, conclusion.gain, conclusion.changes) == ("invalid", None, ())
    assert [measurement.role for measurement in _validation(history)] == ["winner"]


def test_when_everything_fails_the_study_ends() -> None:
    """Invalid, without any launch in the validation."""
    conclusion = concluded(study(), Lab(fails=lambda _wanted, _attempt: "refused"))

    assert (conclusion.kind, conclusion.recommended, conclusion.finished) == ("invalid", conclusion.baseline, True)


def test_a_winner_that_fails_on_fresh_launches_falls_back() -> None:
    """After a second try in the same block."""

    def fails(wanted: Measurement, _attempt: int) -> str | None:
        return "hung" if wanted.step == "validate" and "seqs" in wanted.config.options else None

    history = run_all(study(), Lab(GAIN, fails=fails))
    conclusion = validate.conclude(study(), CATALOGUES, history)

    assert space.label(conclusion.recommended) == "one fp8"
    assert conclusion.barred[0].reason == "failed at load: hung on a fresh launch"
    assert sum("seqs" in measurement.config.options for measurement in _validation(history)) == 2


def test_a_winner_may_fail_once() -> None:
    """It is launched again."""
    lab = Lab(GAIN, fails=lambda wanted, attempt: "hung" if wanted.role == "winner" and not attempt else None)

    assert space.label(concluded(study(), lab).recommended) == "one fp8 seqs=64"


def test_a_baseline_that_fails_in_the_validation_ends_it() -> None:
    """What the search found stands, without a published gain."""

    def fails(wanted: Measurement, _attempt: int) -> str | None:
        return "crashed" if wanted.role == "baseline" else None

    conclusion = concluded(study(), Lab(GAIN, fails=fails))

    assert space.label(conclusion.recommended) == "one fp8 seqs=64"
    assert (conclusion.kind, conclusion.gain, conclusion.finished) == ("better", None, True)


# --------------------------------------------------------------------------- budget


def test_a_tight_budget_gives_fewer_blocks_but_two() -> None:
    """The reason says so."""
    asked = study(budget=Budget(seconds=200.0, max_repeats=5))
    history = run_all(asked, Lab({"fp8": 1.5}, noise=0.0005))
    conclusion = validate.conclude(asked, CATALOGUES, history)

    blocks = {measurement.block for measurement in _validation(history)}
    assert 2 <= len(blocks) < 5
    assert f"budget: {len(blocks)} of 5 repeats in the validation" in conclusion.stop_reason


def test_without_time_a_barred_winner_is_not_followed_by_another() -> None:
    """The baseline is what is known to lose nowhere."""
    asked = study(budget=Budget(seconds=175.0, max_repeats=2))
    conclusion = concluded(asked, Lab({**GAIN, "fp8@long": 0.5}, noise=0.0001))

    assert conclusion.recommended == conclusion.baseline
    assert "could not be validated any more" in conclusion.stop_reason


def test_without_time_the_baseline_is_not_measured_elsewhere() -> None:
    """One workload must do."""
    asked = study(budget=Budget(seconds=10.0, max_repeats=2))
    history = run_all(asked, Lab())

    assert _validation(history) == []
    assert validate.conclude(asked, CATALOGUES, history).finished


def test_a_changed_study_uses_a_baseline_that_is_alone_in_the_last_block() -> None:
    """Its other launches pair with nobody else."""
    alone = run_all(study(), Lab())
    asked = study(workloads=tuple(WorkloadSpec(name=name, kind="chat", num_prompts=100) for name in ("chat", "long")))
    better = [trial for trial in alone if trial.measurement.step == "validate"]
    made = search_all(asked, Lab(GAIN))

    wanted = validate.next_measurement(asked, CATALOGUES, [*made, *better])

    assert wanted is not None
    assert (wanted.role, wanted.block) == ("winner", 1)


@pytest.mark.parametrize(
    "changed",
    [
        study(engines=(engine(seqs=(32, 64), tokens=(1024, 4096), threads=(1, 2)),)),
        study(engines=(engine(variants=("", "fp8", "awq")),)),
        study(budget=Budget(seconds=1e6, max_repeats=6)),
        study(objective=Objective(on="chat", min_gain=0.15)),
        study(limits=Limits(max_loss=0.01)),
    ],
)
def test_a_changed_study_never_repeats_a_run(changed: Study) -> None:
    """It uses what it has, and asks only for the rest."""
    lab = Lab(GAIN, noise=0.01)
    before = run_all(study(), lab)

    history = run_all(changed, lab, before)

    made = [
        (trial.measurement.step, trial.measurement.block, space.key(trial.config), run.workload, run.repeat)
        for trial in history
        for run in trial.runs
    ]
    assert len(made) == len(set(made))
    assert validate.conclude(changed, CATALOGUES, history).finished
