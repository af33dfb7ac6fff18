"""The published comparison: baseline and winner on fresh launches, on every workload, and what the study answers.

Pure: reads the history, says which launch comes next and concludes. The number of blocks is fixed before the first one,
so that no look at the data spoils the interval; prompts are none that the search used. Knows how a search reports its
progress, not how it chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from servetune import findings, search, space
from servetune.compare import UNKNOWN, Comparison, Variance, compare, interval, noise, pool, residual
from servetune.records import (
    Catalogue,
    Conclusion,
    Config,
    Finding,
    Interval,
    Measurement,
    Record,
    Run,
    Study,
    Summary,
    Trial,
    Variant,
    Verdict,
    VerdictKind,
    WorkloadChange,
)
from servetune.search.base import Progress
from servetune.search.ledger import VALIDATION, Ledger, broken_limit, disqualified, shuffled, validation_runs
from servetune.search.purse import block_cost, looks

LEAST_DEGREES = 4
"""Degrees of freedom below which the published interval also uses the spread of the steps that chose the winner."""


def next_measurement(study: Study, catalogues: Mapping[str, Catalogue], history: Sequence[Trial]) -> Measurement | None:
    """Return the next launch of the validation, or None when it is done or the search is not."""
    progress = search.get(study.search)(study, catalogues, history)
    return None if progress.wanted is not None else _Validation(study, history, progress).wanted


def conclude(study: Study, catalogues: Mapping[str, Catalogue], history: Sequence[Trial]) -> Conclusion:
    """Return what `study` answers after `history`, finished or not."""
    progress = search.get(study.search)(study, catalogues, history)
    return _Validation(study, history, progress).conclusion()


class _Round(Record, frozen=True, kw_only=True):
    """One candidate against the baseline on fresh launches."""

    candidate: Config
    blocks: tuple[int, ...]
    """Blocks that are measured, or being measured."""
    planned: int
    wanted: Measurement | None = None
    failure: str = ""
    """Why the candidate could not be measured."""


class _Validation:
    """The replay of the validation: candidates of the search's path, the last first, until one may be recommended."""

    def __init__(self, study: Study, history: Sequence[Trial], progress: Progress) -> None:
        self.study, self.progress = study, progress
        self.ledger = Ledger(study, history)
        self.trials = len(history)
        self.baseline = study.baseline
        self.has_baseline = bool(self.ledger.runs_of(study.baseline)) or not _failed(progress, study.baseline)
        self.rounds: list[_Round] = []
        self.barred: list[Verdict] = []
        self.wanted: Measurement | None = None
        self.stop_reason = progress.stop_reason
        path = [step.leader for step in progress.steps if step.finished]
        self.recommended = path[-1] if path else self.baseline
        if progress.wanted is None:
            self._replay(_candidates(path, self.baseline))

    def _replay(self, candidates: Sequence[Config]) -> None:
        for candidate in candidates:
            self.recommended = candidate
            found = self._round(candidate)
            if found is None:
                self._stop("budget: the next best config could not be validated any more")
                break
            self.rounds.append(found)
            self.wanted = found.wanted
            reason = None if self.wanted is not None else self._bars(found)
            if reason is None:
                self._note_cut(found)
                return
            self._bar(found, reason)
        self.recommended = self.baseline
        self.wanted = self._baseline_only()

    def _stop(self, reason: str) -> None:
        self.stop_reason = "; ".join(part for part in (self.stop_reason, reason) if part)

    def _note_cut(self, found: _Round) -> None:
        if self.has_baseline and found.planned < looks(self.study):
            self._stop(f"budget: {found.planned} of {looks(self.study)} repeats in the validation")

    # ----------------------------------------------------------------------- measuring

    def _round(self, candidate: Config) -> _Round | None:
        """The round of `candidate`; None when a further one cannot be paid."""
        members = (self.baseline, candidate) if self.has_baseline else (candidate,)
        blocks = self._begun(candidate)
        planned = self._planned(candidate, blocks)
        if planned is None:
            return None
        fresh = max(self.ledger.blocks(VALIDATION), default=0) + 1
        blocks += range(fresh, fresh + planned - len(blocks))
        made = _Round(candidate=candidate, blocks=tuple(blocks[:planned]), planned=planned)
        for block in made.blocks:
            wanted = self._missing(block, members)
            if wanted is not None:
                return msgspec.structs.replace(made, wanted=wanted)
            failures = [self._failure(block, config) for config in members]
            if any(failures):
                return msgspec.structs.replace(made, failure=failures[-1])
        return made

    def _begun(self, candidate: Config) -> list[int]:
        """Blocks of this candidate, and the last one if only the baseline was launched in it."""
        own, other = space.key(candidate), space.key(self.baseline)
        blocks = self.ledger.blocks(VALIDATION)
        last = max(blocks, default=0)
        return [block for block, tried in blocks.items() if own in tried or (block == last and tried == {other})]

    def _planned(self, candidate: Config, begun: Sequence[int]) -> int | None:
        """Blocks of the round, by what the budget left when it began; None when a further round cannot be paid."""
        if not self.has_baseline:
            return 1
        cells = [
            self.ledger.cell(VALIDATION, block, config) for block in begun for config in (self.baseline, candidate)
        ]
        places = min((cell.first for cell in cells if cell.first >= 0), default=self.trials)
        left_s = self.study.budget.seconds - self.ledger.spent(places)
        block_s = block_cost(self.study, self.ledger, places)
        affordable = int(max(0.0, left_s) / block_s) if block_s else looks(self.study)
        if affordable < 2 and self.rounds:
            return None
        return min(looks(self.study), max(2, affordable))

    def _missing(self, block: int, members: Sequence[Config]) -> Measurement | None:
        """The first launch of a block that is not made yet, in its random order."""
        runs = validation_runs(self.study, block)
        for config in shuffled(self.study, VALIDATION, block, members):
            cell = self.ledger.cell(VALIDATION, block, config)
            missing = cell.missing(runs)
            if missing and not cell.is_lost(2):
                role: Literal["baseline", "winner"] = "baseline" if config == self.baseline else "winner"
                return Measurement(config=config, runs=missing, step=VALIDATION, block=block, role=role)
        return None

    def _failure(self, block: int, config: Config) -> str:
        cell = self.ledger.cell(VALIDATION, block, config)
        return cell.failure if cell.missing(validation_runs(self.study, block)) else ""

    def _baseline_only(self) -> Measurement | None:
        """One launch of the baseline on every workload, if it was never made and there is time."""
        is_paid = self.ledger.spent() < self.study.budget.seconds
        if self.ledger.blocks(VALIDATION).keys() - {1} or not (self.has_baseline and is_paid):
            return None
        return self._missing(1, (self.baseline,))

    # ----------------------------------------------------------------------- judging

    def _runs(self, block: int, config: Config, workload: str) -> list[Run]:
        cell = self.ledger.cell(VALIDATION, block, config)
        return [run for run in cell.runs if run.workload == workload]

    def _pairs(self, found: _Round, workload: str) -> list[tuple[float, float]]:
        """Log values of baseline and candidate in each block in which both were measured."""
        sides = [
            [self.ledger.observation(self._runs(block, config, workload), workload) for block in found.blocks]
            for config in (self.baseline, found.candidate)
        ]
        return [(old, new) for old, new in zip(*sides, strict=True) if old is not None and new is not None]

    def _fresh_variance(self) -> Variance:
        """Of the objective, over the blocks of the validation."""
        on = self.ledger.workload
        return pool(
            residual([{"old": old, "new": new} for old, new in self._pairs(found, on)]) for found in self.rounds
        )

    def _variance(self) -> Variance:
        """For the published interval: fresh blocks, and steps whose spread had no part in choosing the winner.

        The other steps are used as well where too little would be known without them.
        """
        fresh = self._fresh_variance()
        unselected = pool((self.progress.unselected, fresh))
        return unselected if unselected.degrees >= LEAST_DEGREES else pool((self.progress.variance, fresh))

    def _compare(self, found: _Round, workload: str) -> Comparison | None:
        """The candidate against the baseline; other workloads than the objective's are judged by their own spread."""
        pairs = self._pairs(found, workload)
        variance = self._variance() if workload == self.ledger.workload else UNKNOWN
        return compare([old for old, _ in pairs], [new for _, new in pairs], variance)

    def _changes(self, found: _Round) -> tuple[WorkloadChange, ...]:
        names = [run.workload for run in validation_runs(self.study, 1)]
        changes = []
        for workload in dict.fromkeys(names):
            compared = self._compare(found, workload)
            if compared is not None:
                gain = interval(compared, self.study.objective.confidence)
                changes.append(
                    WorkloadChange(
                        workload=workload,
                        metric=self.study.objective.metric,
                        gain=gain,
                        repeats=compared.pairs,
                        barred=gain.estimate < -self.study.limits.max_loss,
                    )
                )
        return tuple(changes)

    def _bars(self, found: _Round) -> str | None:
        """Why the candidate of a finished round may not be recommended, or None."""
        if found.failure:
            return f"{found.failure} on a fresh launch"
        broken = disqualified(self.study, self.ledger.runs_of(found.candidate))
        if broken is not None:
            return broken
        if self._baseline_is_out():
            return None
        changes = self._changes(found)
        for change in changes:
            if change.barred:
                return (
                    f"loses {-change.gain.estimate:.1%} on {change.workload} "
                    f"(max_loss {self.study.limits.max_loss:.1%}){_given_up(changes)}"
                )
        if changes and changes[0].workload == self.ledger.workload and changes[0].gain.high < 0:
            return "fresh launches show that it is worse than the baseline"
        return None

    def _baseline_is_out(self) -> bool:
        """Whether the baseline could not win itself, so that a loss against it is no reason."""
        return disqualified(self.study, self.ledger.runs_of(self.baseline)) is not None

    def _bar(self, found: _Round, reason: str) -> None:
        compared = self._compare(found, self.ledger.workload)
        verdict = Verdict(
            config=found.candidate,
            against=self.baseline,
            kind="invalid",
            gain=interval(compared, self.study.objective.confidence) if compared else None,
            repeats=compared.pairs if compared else 0,
            reason=reason,
        )
        self.barred.append(verdict)

    # ----------------------------------------------------------------------- concluding

    def conclusion(self) -> Conclusion:
        """What the study answers as far as it is measured."""
        current = self.rounds[-1] if self.rounds and self.rounds[-1].candidate == self.recommended else None
        is_whole = current is not None and current.wanted is None
        changes = self._changes(current) if current and is_whole and self.has_baseline else ()
        gain = next((change.gain for change in changes if change.workload == self.ledger.workload), None)
        own = self.ledger.runs_of(self.recommended)
        return Conclusion(
            baseline=self.baseline,
            recommended=self.recommended,
            kind=self._kind(gain),
            gain=gain,
            changes=changes,
            barred=(*self.barred, *_barred_by_search(self.progress)),
            limits_met=broken_limit(self.study, own) is None,
            noise=noise(self.ledger.launches(), pool((self.progress.variance, self._fresh_variance()))),
            findings=self._findings(current, gain),
            stop_reason=self.stop_reason,
            finished=self.progress.wanted is None and self.wanted is None,
        )

    def _kind(self, gain: Interval | None) -> VerdictKind:
        if not self.has_baseline:
            return "invalid"
        if self.recommended == self.baseline:
            return "no difference shown"
        if gain is None:
            adopted = (verdict for step in self.progress.steps for verdict in step.verdicts if verdict.adopted)
            return next((verdict.kind for verdict in adopted if verdict.config == self.recommended), "invalid")
        return _kind_of(gain, self.study.objective.min_gain)

    def _findings(self, current: _Round | None, gain: Interval | None) -> tuple[Finding, ...]:
        found: list[Finding | None] = []
        if self.recommended != self.baseline:
            found.append(findings.quality_not_checked(self.baseline, self.recommended))
        if gain is not None and not self._baseline_is_out():
            found.append(findings.unconfirmed_gain(gain.low, gain.high))
        if current is not None and current.wanted is None and self.has_baseline:
            for workload in dict.fromkeys(run.workload for run in validation_runs(self.study, 1)):
                old, new = (self._summaries(current, config, workload) for config in (self.baseline, self.recommended))
                found += findings.of_comparison(workload, old, new)
        found.append(findings.requantised(self._variants()))
        found.append(self._budget_ended())
        return tuple(finding for finding in found if finding is not None)

    def _budget_ended(self) -> Finding | None:
        """What the budget left undecided, if that could change the answer."""
        if self.progress.wanted is not None:
            return None
        silent = [
            space.label(space.without_fixed(verdict.config, self.study.engines))
            for step in self.progress.steps
            for verdict in step.verdicts
            if verdict.kind == "no difference shown" and verdict.gain is None
        ]
        parts = [f"not measured: {', '.join(silent)}"] if silent else []
        parts += [self.progress.stop_reason] if self.progress.stop_reason else []
        return findings.budget_ended("; ".join(parts)) if parts else None

    def _summaries(self, current: _Round, config: Config, workload: str) -> list[Summary]:
        return [run.summary for block in current.blocks for run in self._runs(block, config, workload)]

    def _variants(self) -> list[Variant]:
        """The variants of baseline and winner."""
        used = {(config.engine, config.variant) for config in (self.baseline, self.recommended)}
        return [
            variant for spec in self.study.engines for variant in spec.variants if (spec.name, variant.name) in used
        ]


def _candidates(path: Sequence[Config], baseline: Config) -> list[Config]:
    """The leaders of a search, the last first, each once, without the baseline."""
    found: list[Config] = []
    for leader in reversed(path):
        if leader != baseline and leader not in found:
            found.append(leader)
    return found


def _failed(progress: Progress, baseline: Config) -> bool:
    """Whether the search found that the baseline does not run."""
    verdicts = [verdict for step in progress.steps for verdict in step.verdicts]
    return any(verdict.config == baseline and verdict.kind == "invalid" for verdict in verdicts)


def _given_up(changes: Sequence[WorkloadChange]) -> str:
    gains = [f"{change.gain.estimate:+.1%} on {change.workload}" for change in changes if change.gain.estimate > 0]
    return f"; given up: {', '.join(gains)}" if gains else ""


def _kind_of(gain: Interval, min_gain: float) -> VerdictKind:
    if -min_gain < gain.low and gain.high < min_gain:
        return "equivalent"
    if gain.low > 0:
        return "better"
    return "worse" if gain.high < 0 else "no difference shown"


def _barred_by_search(progress: Progress) -> tuple[Verdict, ...]:
    """Configs that the search measured as gaining, but that may not win."""
    return tuple(
        verdict
        for step in progress.steps
        for verdict in step.verdicts
        if not verdict.adopted
        and verdict.gain is not None
        and (
            (verdict.kind == "invalid" and verdict.gain.low > 0)
            or (verdict.kind == "better" and verdict.reason.startswith("quality-not-checked"))
        )
    )
