"""The history of a study by step, block and config: what is measured, what is missing, what it cost.

Pure. Knows trials as values and the study's objective and limits; decides nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence

from servetune import metrics, space
from servetune.records import Completed, Config, Failed, Record, Run, RunRequest, Study, Trial

VALIDATION = "validate"
"""Step name of the published comparison."""
_STEP_REPEATS = 1000
_VALIDATION_REPEATS = 1_000_000
_CANCELLED = "cancelled"
_NOT_ITS_FAULT = frozenset({"client-failed", "port-in-use"})


class Cell(Record, frozen=True, kw_only=True):
    """What happened to one config in one block of one step."""

    runs: tuple[Run, ...] = ()
    failures: tuple[Failed, ...] = ()
    first: int = -1
    last: int = -1
    """Places of its first and last trial in the history."""

    def missing(self, wanted: Sequence[RunRequest]) -> tuple[RunRequest, ...]:
        """Return the runs of `wanted` that are not measured yet."""
        found = {(run.workload, run.repeat) for run in self.runs}
        return tuple(request for request in wanted if (request.workload, request.repeat) not in found)

    def is_lost(self, attempts: int) -> bool:
        """Tell whether it failed so often that it is not tried again; one failure more where it was not its fault."""
        excused = any(failure.cause in _NOT_ITS_FAULT for failure in self.failures)
        return len(self.failures) >= (max(attempts, 2) if excused else attempts)

    @property
    def failure(self) -> str:
        """Why it failed, in words."""
        last = self.failures[-1]
        return f"failed at {last.stage}: {last.cause}"


_EMPTY = Cell()


class Ledger:
    """A study's history, indexed once."""

    def __init__(self, study: Study, history: Sequence[Trial]) -> None:
        self.study = study
        self.workload = objective_workload(study)
        self._cells: dict[tuple[str, int, space.Key], Cell] = {}
        self._spent = [0.0]
        self._launches: list[tuple[str, float, float] | None] = []
        for place, trial in enumerate(history):
            self._add(place, trial)

    def _add(self, place: int, trial: Trial) -> None:
        step, block = trial.measurement.step, trial.measurement.block
        self._spent.append(self._spent[-1] + trial.wall_s)
        whole = isinstance(trial.outcome, Completed) and bool(trial.runs)
        measured = math.fsum(run.summary.duration_s for run in trial.runs)
        self._launches.append((step, trial.wall_s, measured) if whole else None)
        name = (step, block, space.key(trial.config))
        cell = self._cells.get(name, _EMPTY)
        failed = (trial.outcome,) if isinstance(trial.outcome, Failed) and trial.outcome.cause != _CANCELLED else ()
        self._cells[name] = Cell(
            runs=cell.runs + trial.runs,
            failures=cell.failures + failed,
            first=place if cell.first < 0 else cell.first,
            last=place,
        )

    def cell(self, step: str, block: int, config: Config) -> Cell:
        """Return what happened to `config` there; an empty cell if nothing did."""
        return self._cells.get((step, block, space.key(config)), _EMPTY)

    def blocks(self, step: str) -> dict[int, set[space.Key]]:
        """Return which configs were tried in each block of `step`, in the order of the blocks."""
        found: dict[int, set[space.Key]] = {}
        for name, block, config in sorted(self._cells, key=lambda cell: cell[1]):
            if name == step:
                found.setdefault(block, set()).add(config)
        return found

    def spent(self, places: int | None = None) -> float:
        """Return the seconds spent in the first `places` trials, or in all."""
        return self._spent[-1] if places is None else self._spent[places]

    def launch_cost(self, places: int, *, validation: bool = False) -> tuple[float, float] | None:
        """Return mean seconds of a launch, and of the runs in it, of search or validation in the first trials."""
        launches = [found for found in self._launches[:places] if found is not None]
        known = [found for found in launches if (found[0] == VALIDATION) == validation]
        if not known:
            return None
        return math.fsum(found[1] for found in known) / len(known), math.fsum(found[2] for found in known) / len(known)

    def runs_of(self, config: Config) -> list[Run]:
        """Return all runs of `config` on the objective's workload."""
        name = space.key(config)
        cells = (cell for (_, _, owner), cell in self._cells.items() if owner == name)
        return [run for cell in cells for run in cell.runs if run.workload == self.workload]

    def launches(self) -> list[dict[space.Key, list[float]]]:
        """Return for each block of each step the log values of the objective of each config's runs."""
        found: dict[tuple[str, int], dict[space.Key, list[float]]] = {}
        for (step, block, config), cell in self._cells.items():
            values = self.run_values(cell.runs)
            if values:
                found.setdefault((step, block), {})[config] = values
        return list(found.values())

    def observation(self, runs: Iterable[Run], workload: str | None = None) -> float | None:
        """Return the mean log value of the objective's metric over the runs of a workload, larger being better."""
        values = self.run_values(runs, workload)
        return math.fsum(values) / len(values) if values else None

    def run_values(self, runs: Iterable[Run], workload: str | None = None) -> list[float]:
        """Return the signed log value of each run of a workload (None: the objective's) that has one, by repeat."""
        name = workload or self.workload
        chosen = sorted((run for run in runs if run.workload == name), key=lambda run: run.repeat)
        values = [metrics.value(run.summary, self.study.objective.metric) for run in chosen]
        sign = 1.0 if self.study.objective.goal == "maximize" else -1.0
        return [sign * math.log(value) for value in values if value is not None and value > 0]


def objective_workload(study: Study) -> str:
    """Return the name of the workload that decides."""
    return study.objective.on or study.workloads[0].name


def search_runs(study: Study, step: int, block: int) -> tuple[RunRequest, ...]:
    """Return the runs of one launch in a block of the search: prompts of their own in every step and block."""
    per_launch = study.budget.runs_per_launch
    first = step * _STEP_REPEATS + (block - 1) * per_launch
    return tuple(RunRequest(workload=objective_workload(study), repeat=first + run) for run in range(per_launch))


def validation_runs(study: Study, block: int) -> tuple[RunRequest, ...]:
    """Return the runs of one launch of the validation, the objective's workload first, with prompts of its own."""
    on, per_launch = objective_workload(study), study.budget.runs_per_launch
    first = _VALIDATION_REPEATS + (block - 1) * per_launch
    names = [on, *(spec.name for spec in study.workloads if spec.name != on)]
    return tuple(RunRequest(workload=name, repeat=first + run) for name in names for run in range(per_launch))


def shuffled(study: Study, step: str, block: int, configs: Sequence[Config]) -> tuple[Config, ...]:
    """Return `configs` in the order of this block, random but fixed by study seed, step and block."""
    if len(configs) < 2:
        return tuple(configs)
    salt = f"{study.seed}/{step}/{block}/"
    return tuple(
        sorted(configs, key=lambda config: hashlib.blake2b((salt + repr(space.key(config))).encode()).digest())
    )


# --------------------------------------------------------------------------- limits


def disqualified(study: Study, runs: Sequence[Run]) -> str | None:
    """Return why a config with these runs of the objective's workload may not win, or None.

    A finding that bars it, or a limit that the mean over its runs breaks.
    """
    for run in runs:
        for finding in run.findings:
            if finding.severity == "bars":
                return f"{finding.code}: {finding.evidence}"
    return broken_limit(study, runs)


def broken_limit(study: Study, runs: Sequence[Run]) -> str | None:
    """Return the first limit that the mean over `runs` breaks, with value and bound, or None."""
    for metric, bound in study.limits.bounds.items():
        if (broken := _broken(metric, bound, runs)) is not None:
            return broken
    return None


def _broken(metric: str, bound: float, runs: Sequence[Run]) -> str | None:
    values = [value for run in runs if (value := metrics.value(run.summary, metric)) is not None]
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    if metrics.METRICS[metric].better == "higher":
        return f"{metric} {mean:.4g} < {bound:.4g}" if mean < bound else None
    return f"{metric} {mean:.4g} > {bound:.4g}" if mean > bound else None
