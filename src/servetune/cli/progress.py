"""Live progress of a study: one changing panel on a terminal, plain lines elsewhere. Turns events into text only."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from servetune import space
from servetune.metrics import METRICS, value
from servetune.records import (
    Completed,
    Config,
    Event,
    Failed,
    LoadProgress,
    Notice,
    RunDone,
    StageChanged,
    StepDone,
    StepStarted,
    Study,
    Trial,
    TrialDone,
    TrialStarted,
    Verdict,
)


def duration(seconds: float) -> str:
    """Seconds as 45 s, 3 min 20 s or 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def name_of(config: Config, study: Study) -> str:
    """The config in words, without what the study fixes for all."""
    return space.label(space.without_fixed(config, study.engines))


def verdict_line(verdict: Verdict, study: Study) -> str:
    """One verdict in words with its interval."""
    gain = verdict.gain
    level = f" at {gain.confidence:.3g}" if gain and gain.confidence != study.objective.confidence else ""
    word = "not measured" if gain is None and verdict.kind == "no difference shown" else verdict.kind
    figures = f" {gain.estimate:+.1%} [{gain.low:+.1%}, {gain.high:+.1%}]{level}" if gain else ""
    adopted = ", adopted" if verdict.adopted else ""
    reason = f" ({verdict.reason})" if verdict.reason else ""
    return f"{name_of(verdict.config, study)}: {word}{figures}{adopted}{reason}"


def trial_line(trial: Trial, study: Study) -> str:
    """One finished trial with the objective's figure."""
    label = name_of(trial.config, study)
    if isinstance(trial.outcome, Failed):
        first = trial.outcome.evidence.splitlines()[0] if trial.outcome.evidence else ""
        return f"{label}: failed at {trial.outcome.stage}, {trial.outcome.cause}: {first}"
    figure = objective_value(trial, study)
    if figure is None:
        return f"{label}: measured {', '.join(run.workload for run in trial.runs) or 'nothing'}"
    return f"{label}: {figure:,.1f} {METRICS[study.objective.metric].unit}"


def objective_value(trial: Trial, study: Study) -> float | None:
    """The objective's figure of a trial: the mean over its runs on the objective's workload."""
    if not isinstance(trial.outcome, Completed):
        return None
    figures = [
        figure
        for run in trial.runs
        if run.workload == study.objective.on and (figure := value(run.summary, study.objective.metric)) is not None
    ]
    return sum(figures) / len(figures) if figures else None


class PlainProgress:
    """One line for each thing that ended, for logs and pipes."""

    def __init__(self, study: Study, stream: TextIO | None = None) -> None:
        self.study = study
        self.stream = stream or sys.stderr

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace

    def _say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def emit(self, event: Event) -> None:
        """Print what this event ended, if it ended anything."""
        match event:
            case StepStarted():
                self._say(f"== {event.title} ({event.configs} configs)")
            case TrialDone():
                left = f", at most {duration(event.left_s)} left" if event.left_s is not None else ""
                self._say(f"trial {event.trial.number}: {trial_line(event.trial, self.study)}{left}")
            case StepDone():
                for verdict in event.step.verdicts:
                    self._say(f"   {verdict_line(verdict, self.study)}")
            case Notice():
                self._say(event.text)
            case _:
                pass


class LiveProgress:
    """A panel that shows step, trial, stage, current rate, best so far and time left, above the finished steps."""

    def __init__(self, study: Study, console: Console) -> None:
        self.study = study
        self.console = console
        self.live = Live(console=console, refresh_per_second=4, transient=True)
        self.begin = time.monotonic()
        self.step = ""
        self.trial: TrialStarted | None = None
        self.stage = ""
        self.load: LoadProgress | None = None
        self.best: tuple[float, str] | None = None
        self.left_s: float | None = None
        self.recent: list[str] = []

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self.live.stop()

    def emit(self, event: Event) -> None:
        """Take the event in and redraw."""
        match event:
            case StepStarted():
                self.step = event.title
                self.console.print(Text(f"{event.title} ({event.configs} configs)", style="bold"))
            case TrialStarted():
                self.trial, self.load, self.stage = event, None, "launch"
            case StageChanged():
                self.stage = f"{event.stage} {event.detail}".strip()
            case LoadProgress():
                self.load = event
            case TrialDone():
                self._trial_done(event)
            case StepDone():
                for verdict in event.step.verdicts:
                    style = "green" if verdict.adopted else "dim"
                    self.console.print(Text(f"  {verdict_line(verdict, self.study)}", style=style))
            case Notice():
                self.console.print(Text(event.text, style="cyan"))
            case RunDone():
                self.load = None
        self.live.update(self._panel())

    def _trial_done(self, event: TrialDone) -> None:
        self.left_s = event.left_s
        self.recent = [*self.recent[-3:], f"trial {event.trial.number}: {trial_line(event.trial, self.study)}"]
        figure = objective_value(event.trial, self.study)
        if figure is None:
            return
        wants_more = self.study.objective.goal == "maximize"
        if self.best is None or (figure > self.best[0]) == wants_more:
            self.best = (figure, name_of(event.trial.config, self.study))

    def _panel(self) -> RenderableType:
        rows = Table.grid(padding=(0, 1))
        rows.add_row("step", Text(self.step))
        if self.trial is not None:
            rows.add_row("trial", Text(f"{self.trial.number}: {self.trial.label} ({self.trial.measurement.role})"))
        rows.add_row("now", self._now())
        if self.best is not None:
            unit = METRICS[self.study.objective.metric].unit
            rows.add_row("best", Text(f"{self.best[0]:,.1f} {unit} by {self.best[1]}, one launch"))
        passed = duration(time.monotonic() - self.begin)
        left = f", at most {duration(self.left_s)} left" if self.left_s is not None else ""
        rows.add_row("time", Text(f"{passed}{left}"))
        return Group(*(Text(line, style="dim") for line in self.recent), rows)

    def _now(self) -> RenderableType:
        if self.load is None:
            return Text(self.stage)
        grid = Table.grid(padding=(0, 1))
        failed = f", {self.load.failed} failed" if self.load.failed else ""
        text = f"{self.load.done}/{self.load.total} requests{failed}, {self.load.chunks_per_s:,.0f} tokens/s"
        grid.add_row(Text(self.stage), ProgressBar(total=self.load.total, completed=self.load.done, width=24), text)
        return grid


def progress_for(study: Study, console: Console) -> PlainProgress | LiveProgress:
    """The live panel on a terminal, plain lines elsewhere."""
    return LiveProgress(study, console) if console.is_terminal else PlainProgress(study)
