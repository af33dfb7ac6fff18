"""The loop of a study: ask for the next measurement, make the trial, store it, repeat; then validate and conclude.

The only module that knows search and store at once. It prints nothing; progress goes out through `emit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from servetune import engines, studyfile, validate
from servetune.engines.process import Server, process_start_time, stop_stale
from servetune.errors import Interrupted, StoreError
from servetune.history import run_fits, select, trial_fits
from servetune.lock import measuring
from servetune.records import (
    Catalogue,
    Command,
    Event,
    HostFacts,
    Measurement,
    Notice,
    Results,
    Run,
    StepDone,
    StepStarted,
    Study,
    Trial,
    TrialDone,
)
from servetune.search import staged
from servetune.store import LostServer, Store
from servetune.store.files import write_durably
from servetune.trial import Hooks, Laboratory, run_trial

RunTrial = Callable[[Laboratory, Measurement, int, Hooks], Trial]


@dataclass
class Stop:
    """The user's wish to stop, set by a signal handler and read by everything that waits."""

    signal_name: str | None = None

    def requested(self) -> bool:
        """Whether a signal came."""
        return self.signal_name is not None


@dataclass
class _Progress:
    """What was already told, so that each step is announced once."""

    started: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)


def catalogues_of(study: Study) -> dict[str, Catalogue]:
    """The option catalogues of the study's engines."""
    return {spec.name: engines.get(spec.name).catalogue() for spec in study.engines}


def next_measurement(
    study: Study, catalogues: Mapping[str, Catalogue], history: tuple[Trial, ...]
) -> Measurement | None:
    """What to measure next: the search's wish, then the validation's; None when the study is done."""
    wanted = staged.next_measurement(study, catalogues, history)
    return wanted if wanted is not None else validate.next_measurement(study, catalogues, history)


def run_study(
    lab: Laboratory, *, emit: Callable[[Event], None], stop: Stop, run: RunTrial = run_trial, retry_failed: bool = False
) -> Results:
    """Run (or resume) the study of `lab` in its folder until it is done, and return everything it found.

    Raises:
        Interrupted: a signal came; finished runs are stored.
        LockHeld: another study is measuring on this host.
        StoreError: the study folder cannot be written.
    """
    with measuring(f"study {lab.study.name} in {lab.folder}"), Store.open(lab.folder) as store:
        return _StudyRun(lab, store, emit, stop).make(run, retry_failed=retry_failed)


class _StudyRun:
    """One start of a study."""

    def __init__(self, lab: Laboratory, store: Store, emit: Callable[[Event], None], stop: Stop) -> None:
        self.lab = lab
        self.study = lab.study
        self.store = store
        self.emit = emit
        self.stop = stop
        self.catalogues = catalogues_of(lab.study)
        self.told = _Progress()

    def make(self, run: RunTrial, *, retry_failed: bool) -> Results:
        """Recover what an earlier start left, then loop."""
        _stop_lost_servers(self.store, self.emit)
        self.store.recover()
        if retry_failed:
            self.store.forget_failures()
        history = self._history()
        while (wanted := next_measurement(self.study, self.catalogues, history)) is not None:
            if self.stop.requested():
                raise Interrupted(self.stop.signal_name or "signal")
            self._announce(history, wanted)
            trial = self._one_trial(run, wanted)
            history = (*history, trial)
            self.emit(TrialDone(trial=trial, left_s=self._left_s(history)))
        self._announce(history, None)
        return load_results(self.lab.folder)

    def _history(self) -> tuple[Trial, ...]:
        versions = {name: found.version for name, found in self.lab.installed.items()}
        chosen = select(self.study, self.store.trials(), versions, self.lab.host)
        for line in chosen.dropped:
            self.emit(Notice(text=f"not used again: {line}"))
        self.store.set_meta("study", self.study)
        self.store.set_meta("host", self.lab.host)
        self.store.set_meta("versions", versions)
        write_durably(self.lab.folder / "study.toml", studyfile.dump(self.study).encode())
        return chosen.trials

    def _one_trial(self, run: RunTrial, wanted: Measurement) -> Trial:
        number = self.store.next_number()
        fits = trial_fits(self.study, wanted.config, self.lab.installed[wanted.config.engine].version, self.lab.host)
        hooks = Hooks(
            emit=self.emit,
            cancelled=self.stop.requested,
            on_begin=lambda trial: self.store.begin_trial(trial, fits or ""),
            on_server=lambda server, command: self._note_server(number, server, command),
            on_run=lambda made, wall_s: self._store_run(number, made, wall_s),
        )
        try:
            trial = run(self.lab, wanted, number, hooks)
        except Interrupted as interruption:
            self.store.drop_running(number)
            raise Interrupted(self.stop.signal_name or "signal") from interruption
        self.store.finish_trial(trial)
        return trial

    def _note_server(self, number: int, server: Server, command: Command) -> None:
        self.store.set_command(number, command)
        self.store.set_server(
            LostServer(
                trial=number,
                keeper_pid=server.keeper_pid,
                keeper_start=process_start_time(server.keeper_pid) or 0,
                engine_pid=server.pid,
                engine_start=process_start_time(server.pid) or 0,
            )
        )

    def _store_run(self, number: int, made: Run, wall_s: float) -> None:
        self.store.add_run(number, made, run_fits(self.study, made.workload) or "", wall_s)

    def _announce(self, history: tuple[Trial, ...], wanted: Measurement | None) -> None:
        """Tell finished steps, and the step that begins with `wanted`."""
        steps = staged.steps(self.study, self.catalogues, history)
        for step in steps:
            over = step.finished or wanted is None or (wanted.step != step.name)
            if over and step.name not in self.told.done:
                self.told.done.add(step.name)
                self.emit(StepDone(step=step))
        if wanted is None or wanted.step in self.told.started:
            return
        self.told.started.add(wanted.step)
        current = next((step for step in steps if step.name == wanted.step), None)
        title = current.title if current else wanted.step
        self.emit(StepStarted(name=wanted.step, title=title, configs=len(current.verdicts) + 1 if current else 2))

    def _left_s(self, history: tuple[Trial, ...]) -> float:
        """Most time that is left, by the budget."""
        return max(0.0, self.study.budget.seconds - sum(trial.wall_s for trial in history))


def _stop_lost_servers(store: Store, emit: Callable[[Event], None]) -> None:
    """Stop servers that outlived a killed servetune, told apart from strangers by pid and start time."""
    for server in store.lost_servers():
        stopped = stop_stale(server.keeper_pid, server.keeper_start)
        if server.engine_pid is not None and server.engine_start is not None:
            stopped = stop_stale(server.engine_pid, server.engine_start) or stopped
        if stopped:
            emit(Notice(text=f"stopped a server that trial {server.trial} had left running"))


def load_results(folder: Path) -> Results:
    """Everything a report needs, from the store of `folder` alone; works for an unfinished study too.

    Raises:
        StoreError: `folder` holds no study.
    """
    if not (folder / "study.sqlite").is_file():
        raise StoreError(f"{folder}: no study here (a study folder holds study.sqlite; see servetune tune --help)")
    with Store.open(folder) as store:
        study = store.meta("study", Study)
        if study is None:
            raise StoreError(f"{folder}: the study was never started here")
        host = store.meta("host", HostFacts)
        versions = store.meta("versions", dict[str, str]) or {}
        chosen = select(study, store.trials(), versions, host)
    catalogues = catalogues_of(study)
    conclusion = validate.conclude(study, catalogues, chosen.trials)
    if next_measurement(study, catalogues, chosen.trials) is not None:
        conclusion = msgspec.structs.replace(conclusion, finished=False)
    return Results(
        study=study,
        host=host,
        trials=chosen.trials,
        steps=staged.steps(study, catalogues, chosen.trials),
        conclusion=conclusion,
        dropped=chosen.dropped,
        elapsed_s=sum(trial.wall_s for trial in chosen.trials),
    )
