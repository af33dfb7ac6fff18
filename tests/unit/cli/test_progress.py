"""Progress of a study: one line for each thing that ended, or a panel on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from servetune.cli.progress import LiveProgress, PlainProgress, duration, objective_value, progress_for, trial_line
from servetune.records import (
    Config,
    EngineSpec,
    Event,
    Failed,
    Interval,
    LoadProgress,
    Measurement,
    Notice,
    Objective,
    OptionValue,
    RunDone,
    RunRequest,
    StageChanged,
    StepDone,
    StepResult,
    StepStarted,
    Study,
    TrialDone,
    TrialStarted,
    Verdict,
    WorkloadSpec,
)
from tests.unit.store.sample import run, trial

FIXED: dict[str, OptionValue] = {"speed": 2.0}
BASELINE = Config(engine="mock", options=FIXED)
FASTER = Config(engine="mock", options={**FIXED, "async_scheduling": True})
STUDY = Study(
    name="s",
    model="m",
    baseline=BASELINE,
    engines=(EngineSpec(name="mock", options=FIXED),),
    workloads=(WorkloadSpec(name="chat", kind="chat", num_prompts=8),),
    objective=Objective(on="chat"),
)
STEP = StepResult(
    name="async_scheduling",
    title="scheduling: async_scheduling",
    incumbent=BASELINE,
    verdicts=(
        Verdict(
            config=FASTER,
            against=BASELINE,
            kind="better",
            gain=Interval(estimate=0.2, low=0.1, high=0.3, confidence=0.9),
            repeats=2,
            adopted=True,
            reason="because",
        ),
        Verdict(config=BASELINE, against=FASTER, kind="invalid", gain=None, repeats=0),
    ),
    leader=FASTER,
    finished=True,
)
DONE = trial(2, config=FASTER, runs=(run("chat", 0, 200.0), run("other", 0, 1.0)))
FAILED = trial(3, outcome=Failed(stage="ready", cause="hung", evidence="first line\nsecond"), config=FASTER)
WANTED = Measurement(config=FASTER, runs=(RunRequest(workload="chat", repeat=0),), step="x", block=1, role="challenger")
EVENTS: tuple[Event, ...] = (
    Notice(text="a notice [not markup]"),
    StepStarted(name="async_scheduling", title="scheduling: async_scheduling", configs=2),
    TrialStarted(number=2, measurement=WANTED, label="mock async_scheduling=true"),
    StageChanged(stage="load", detail="chat"),
    LoadProgress(done=3, total=8, failed=1, chunks_per_s=1234.0, elapsed_s=1.0),
    RunDone(run=run("chat", 0)),
    TrialDone(trial=DONE, left_s=65.0),
    TrialDone(trial=trial(1, config=BASELINE, runs=(run("chat", 0, 100.0),))),
    TrialDone(trial=FAILED),
    StepDone(step=STEP),
)


def test_plain_lines_say_what_ended() -> None:
    """Step, trial with its figure and the time left, failure with its cause, verdict with its interval."""
    stream = io.StringIO()

    with PlainProgress(STUDY, stream) as progress:
        for event in EVENTS:
            progress.emit(event)

    assert stream.getvalue().splitlines() == [
        "a notice [not markup]",
        "== scheduling: async_scheduling (2 configs)",
        "trial 2: mock async_scheduling=true: 200.0 tokens/s, at most 1 min 05 s left",
        "trial 1: mock: 100.0 tokens/s",
        "trial 3: mock async_scheduling=true: failed at ready, hung: first line",
        "   mock async_scheduling=true: better +20.0% [+10.0%, +30.0%] at 0.9, adopted (because)",
        "   mock: invalid",
    ]


def test_the_panel_shows_step_trial_rate_best_and_time() -> None:
    """On a terminal one panel is redrawn; finished steps stay above it."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)

    with LiveProgress(STUDY, console) as progress:
        for event in EVENTS:
            progress.emit(event)
            progress.live.refresh()

    text = stream.getvalue()
    assert "3/8 requests, 1 failed, 1,234 tokens/s" in text
    assert "2: mock async_scheduling=true (challenger)" in text
    assert "200.0 tokens/s by mock async_scheduling=true" in text
    assert "at most 1 min 05 s left" in text
    assert "a notice [not markup]" in text
    assert "better +20.0% [+10.0%, +30.0%] at 0.9, adopted" in text


def test_the_best_of_a_metric_to_minimise_is_the_smallest() -> None:
    """The panel follows the objective's direction."""
    goal = Objective(metric="total_token_throughput", goal="minimize", on="chat")
    study = Study(
        name="s", model="m", baseline=BASELINE, engines=STUDY.engines, workloads=STUDY.workloads, objective=goal
    )
    progress = LiveProgress(study, Console(file=io.StringIO()))

    for figure in (200.0, 100.0, 150.0):
        progress.emit(TrialDone(trial=trial(1, config=BASELINE, runs=(run("chat", 0, figure),))))

    assert progress.best == (100.0, "mock")


def test_a_trial_without_a_figure_says_so() -> None:
    """A trial that measured another workload only has no figure of the objective."""
    assert trial_line(trial(1, runs=(run("other", 0),)), STUDY) == "mock: measured other"
    assert objective_value(FAILED, STUDY) is None
    assert trial_line(trial(1, outcome=Failed(stage="load", cause="hung", evidence="")), STUDY).endswith("hung: ")


def test_pipes_get_lines_and_terminals_a_panel() -> None:
    """The console decides."""
    assert isinstance(progress_for(STUDY, Console(file=io.StringIO())), PlainProgress)
    assert isinstance(progress_for(STUDY, Console(file=io.StringIO(), force_terminal=True)), LiveProgress)


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.4, "4 s"), (59.6, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    """Two units at most."""
    assert duration(seconds) == text
