"""Progress, sent up while a study runs."""

from __future__ import annotations

from servetune.records.trial import Measurement, Run, Trial
from servetune.records.value import Record
from servetune.records.verdict import StepResult


class StepStarted(Record, frozen=True, kw_only=True, tag="step-started"):
    """A step of the search begins."""

    name: str
    title: str
    configs: int


class TrialStarted(Record, frozen=True, kw_only=True, tag="trial-started"):
    """A server is about to be launched."""

    number: int
    measurement: Measurement
    label: str


class StageChanged(Record, frozen=True, kw_only=True, tag="stage"):
    """The trial moved on: launch, ready, warmup, load, stop."""

    stage: str
    detail: str = ""


class LoadProgress(Record, frozen=True, kw_only=True, tag="load-progress"):
    """Where a run stands, a few times a second."""

    done: int
    total: int
    failed: int
    chunks_per_s: float
    elapsed_s: float


class RunDone(Record, frozen=True, kw_only=True, tag="run-done"):
    """One run is measured and stored."""

    run: Run


class TrialDone(Record, frozen=True, kw_only=True, tag="trial-done"):
    """A server is stopped and its trial stored."""

    trial: Trial
    best_label: str = ""
    best_value: float | None = None
    left_s: float | None = None
    """Estimate of the time left in the study."""


class StepDone(Record, frozen=True, kw_only=True, tag="step-done"):
    """A step ended in its verdicts."""

    step: StepResult


class Notice(Record, frozen=True, kw_only=True, tag="notice"):
    """Something the user should know now (a model is fetched, a stale server was stopped)."""

    text: str


Event = StepStarted | TrialStarted | StageChanged | LoadProgress | RunDone | TrialDone | StepDone | Notice
