"""Whatever gains, fails or costs: a study ends, resumes anywhere, repeats nothing and recommends what it measured."""

from __future__ import annotations

import hashlib

from hypothesis import given, settings
from hypothesis import strategies as st

from servetune import space, validate
from servetune.records import Budget, Completed, Limits, Measurement, Study
from servetune.search import staged
from servetune.search.ledger import Ledger, disqualified
from tests.unit.laboratory_sample import CATALOGUES, Lab, engine, run_all, study

CAUSES = ("crashed", "client-failed", "cancelled", "out-of-memory")


@st.composite
def studies(draw: st.DrawFn) -> Study:
    """Small studies with and without variants, a second engine, caps and tight budgets."""
    engines = [engine(variants=draw(st.sampled_from([(), ("", "fp8"), ("", "fp8", "awq")])))]
    if draw(st.booleans()):
        engines.append(engine("two", variants=(), overlap=(False, True), seqs=(32, 64, 128)))
    budget = Budget(
        seconds=draw(st.sampled_from([5.0, 60.0, 150.0, 300.0, 1e6])),
        max_repeats=draw(st.integers(1, 5)),
        max_configs=draw(st.none() | st.integers(1, 6)),
        runs_per_launch=draw(st.integers(1, 2)),
    )
    return study(
        engines=tuple(engines),
        budget=budget,
        quality=draw(st.sampled_from(["report", "required"])),
        limits=Limits(bounds={"total_token_throughput": draw(st.sampled_from([1.0, 100.0, 115.0]))}),
        seed=draw(st.integers(0, 5)),
    )


@st.composite
def labs(draw: st.DrawFn) -> Lab:
    """Gains and losses, losses on one workload only, and failures of a share of the launches."""
    parts = ("fp8", "awq", "two", "seqs=64", "tokens=4096", "fp8@long", "overlap=true")
    factor = {part: draw(st.sampled_from([0.8, 1.0, 1.05, 1.3])) for part in parts}
    share = draw(st.sampled_from([0, 0, 20, 60]))

    def fails(wanted: Measurement, attempt: int) -> str | None:
        name = f"{share}/{wanted.step}/{wanted.block}/{space.label(wanted.config)}/{attempt}"
        number = hashlib.blake2b(name.encode(), digest_size=1).digest()[0]
        return CAUSES[number % len(CAUSES)] if number < share else None

    return Lab(factor, noise=draw(st.sampled_from([0.001, 0.02, 0.1])), fails=fails)


@settings(max_examples=60, deadline=None)
@given(studies(), labs())
def test_any_study_ends_and_resumes_anywhere(asked: Study, lab: Lab) -> None:
    """The next launch is a function of the history alone."""
    history = run_all(asked, lab)

    for place, trial in enumerate(history):
        wanted = staged.next_measurement(asked, CATALOGUES, history[:place])
        if wanted is None:
            wanted = validate.next_measurement(asked, CATALOGUES, history[:place])
        assert wanted == trial.measurement
    made = [
        (trial.measurement.step, trial.measurement.block, space.key(trial.config), run.workload, run.repeat)
        for trial in history
        for run in trial.runs
    ]
    assert len(made) == len(set(made))


@settings(max_examples=60, deadline=None)
@given(studies(), labs())
def test_any_conclusion_is_about_something_that_ran(asked: Study, lab: Lab) -> None:
    """A recommended config other than the baseline completed a launch, keeps the limits and has checked weights."""
    history = run_all(asked, lab)
    conclusion = validate.conclude(asked, CATALOGUES, history)
    ran = {space.key(trial.config) for trial in history if isinstance(trial.outcome, Completed)}

    assert conclusion.finished
    if conclusion.recommended != conclusion.baseline:
        assert space.key(conclusion.recommended) in ran
        assert conclusion.limits_met
        assert asked.quality == "report" or conclusion.recommended.variant == ""
        # A loss bars a config, unless the baseline itself may not be recommended.
        baseline_runs = Ledger(asked, history).runs_of(conclusion.baseline)
        assert not any(change.barred for change in conclusion.changes) or disqualified(asked, baseline_runs)
