"""One step of a search: challengers race against an incumbent, block by block, until each one is decided.

Pure: replays the step from the ledger and says where it stands and which launch comes next. Knows nothing of how the
challengers were chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from servetune import space
from servetune.compare import (
    FUTILITY,
    Comparison,
    Rule,
    Variance,
    compare,
    interval,
    judge,
    pool,
    residual,
)
from servetune.records import Config, Measurement, Record, Run, StepResult, Verdict, VerdictKind
from servetune.search.ledger import Cell, Ledger, disqualified, search_runs, shuffled
from servetune.search.purse import Purse, looks

BUDGET = "budget"
DECIDED = "decided"
BEATEN = "unlikely to beat the best of this step"
NONE_LEFT = "no config is left to compare with"


class Contest(Record, frozen=True, kw_only=True):
    """What one step is about."""

    name: str
    title: str
    place: int
    """Number of the step in its study, from 0."""
    incumbent: Config
    challengers: tuple[Config, ...]
    refused: tuple[Verdict, ...] = ()
    """Configs that are not measured, with the reason."""
    alpha: float
    """Error probability of each challenger."""
    note: str = ""
    """Said in the step's stop reason."""


class Outcome(Record, frozen=True, kw_only=True):
    """Where a step stands."""

    result: StepResult
    wanted: Measurement | None
    variance: Variance
    places: int
    """Trials of the history up to the last one of this step."""
    is_unpaid: bool = False
    """The budget ended before its first launch."""


class Race:
    """The replay of one step."""

    def __init__(
        self, ledger: Ledger, contest: Contest, purse: Purse, *, prior: Variance, seen: dict[space.Key, list[Run]]
    ) -> None:
        """`seen` holds the runs of the steps before, by config; the runs of this step are added to it."""
        self.ledger, self.contest, self.purse, self.prior, self.seen = ledger, contest, purse, prior, seen
        self.study = ledger.study
        self.looks = looks(self.study)
        self.last = self.looks
        """The last look, as far as the budget allows."""
        self.incumbent = contest.incumbent
        self.broken: str | None = None
        """Why the incumbent could not win itself."""
        self.alive = list(contest.challengers)
        self.blocks: list[dict[space.Key, float]] = []
        self.verdicts: dict[space.Key, Verdict] = {}
        self.compared: dict[space.Key, Comparison] = {}
        """Challengers that may take over as far as limits, findings and quality go."""
        self.won: dict[space.Key, Comparison] = {}
        """Those of them that were shown to be better."""
        self.places = purse.places

    def run(self) -> Outcome:
        """Replay block after block up to the first launch that is missing, or to the end of the step."""
        if not self.alive:
            return self._outcome(None)
        block = 0
        while True:
            block += 1
            missing = self._missing(block)
            if missing is not None:
                return self._outcome(missing) if self._may_launch(block) else self._outcome(None, BUDGET)
            if not self._close(block):
                return self._outcome(None, NONE_LEFT)
            if block >= 2:
                self._judge(block)
            if self._is_decided(block):
                return self._outcome(None, DECIDED if block < self.looks else "")
            if block == self.last or (block > 2 and not self._may_repeat(block)):
                return self._outcome(None, BUDGET if block < self.looks else "")

    # ----------------------------------------------------------------------- measuring

    def _entrants(self) -> list[Config]:
        return [self.incumbent, *self.alive]

    def _cell(self, block: int, config: Config) -> Cell:
        return self.ledger.cell(self.contest.name, block, config)

    def _missing(self, block: int) -> Measurement | None:
        """The first launch of the block that is not made yet, in its random order."""
        runs = search_runs(self.study, self.contest.place, block)
        first: Measurement | None = None
        for config in shuffled(self.study, self.contest.name, block, self._entrants()):
            cell = self._cell(block, config)
            self.places = max(self.places, cell.last + 1)
            missing = cell.missing(runs)
            is_incumbent = config is self.incumbent
            if first is None and missing and not cell.is_lost(2 if is_incumbent else 1):
                first = Measurement(
                    config=config,
                    runs=missing,
                    step=self.contest.name,
                    block=block,
                    role="incumbent" if is_incumbent else "challenger",
                )
        return first

    def _may_launch(self, block: int) -> bool:
        """Whether the next launch is paid for; later blocks are paid for as a whole."""
        if block > 2:
            return True
        if block == 1 and self.contest.place > 0 and self.places == self.purse.places:
            return self.purse.allows_start(len(self._entrants()))
        return self.purse.allows_launch(self.places)

    def _may_repeat(self, block: int) -> bool:
        """Whether the next block is paid for; one that has begun is."""
        begun = any(self._cell(block + 1, config).last >= 0 for config in self._entrants())
        return begun or self.purse.blocks(self.places, len(self._entrants())) >= 1

    # ----------------------------------------------------------------------- deciding

    def _close(self, block: int) -> bool:
        """Take in a block that is measured: values, failures, limits. False when there is no incumbent any more."""
        runs = search_runs(self.study, self.contest.place, block)
        values: dict[space.Key, float] = {}
        for config in self._entrants():
            name, cell = space.key(config), self._cell(block, config)
            value = None if cell.missing(runs) else self.ledger.observation(cell.runs)
            if value is None:
                reason = cell.failure if cell.failures else f"no {self.study.objective.metric}"
                self._exclude(config, reason, None)
            else:
                values[name] = value
                self.seen.setdefault(name, []).extend(cell.runs)
        self.blocks.append(values)
        self.alive = [config for config in self.alive if space.key(config) in values]
        if space.key(self.incumbent) not in values and not self._replace(values):
            return False
        self._keep_limits()
        return True

    def _exclude(self, config: Config, reason: str, found: Comparison | None) -> None:
        """Note that a config may not win, with what it would have gained."""
        self.compared.pop(space.key(config), None)
        self.won.pop(space.key(config), None)
        self.verdicts[space.key(config)] = self._verdict(config, "invalid", reason, found)

    def _replace(self, values: dict[space.Key, float]) -> bool:
        """Let the best of those that run take the place of an incumbent that failed, unless one has won anyway."""
        able = [config for config in self.alive if self._has_checked_weights(config)]
        if self.won or not able:
            return False
        failed, self.incumbent = self.incumbent, max(able, key=lambda config: values[space.key(config)])
        self.alive.remove(self.incumbent)
        self.verdicts[space.key(self.incumbent)] = Verdict(
            config=self.incumbent,
            against=failed,
            kind="no difference shown",
            gain=None,
            repeats=0,
            reason=f"takes the place of {space.label(failed)}, which failed",
        )
        return True

    def _keep_limits(self) -> None:
        """Take out challengers that break a limit, and see whether the incumbent does (acted on from two blocks on)."""
        for config in tuple(self.alive):
            reason = disqualified(self.study, self.seen[space.key(config)])
            if reason is not None:
                self.alive.remove(config)
                self._exclude(config, reason, self._compare(config))
        self.broken = disqualified(self.study, self.seen[space.key(self.incumbent)])

    def _compare(self, config: Config) -> Comparison | None:
        old, new = space.key(self.incumbent), space.key(config)
        both = [block for block in self.blocks if old in block and new in block]
        variance = pool((self.prior, residual(self.blocks)))
        return compare([block[old] for block in both], [block[new] for block in both], variance)

    def _judge(self, block: int) -> None:
        """Look at each challenger that is still alive.

        The last look is fixed at the first one from costs alone: what is known of the gains must not move it.
        """
        if block == 2:
            expected = 1 + (len(self.contest.challengers) + 1) // 2
            self.last = min(self.looks, 2 + self.purse.blocks(self.places, expected))
        objective = self.study.objective
        rule = Rule(
            alpha=self.contest.alpha, looks=self.last, min_gain=objective.min_gain, confidence=objective.confidence
        )
        looks: dict[space.Key, Comparison] = {}
        rivals = len(self.alive)
        for config in tuple(self.alive):
            found = self._compare(config)
            assert found is not None, "two blocks of two configs leave a degree of freedom"
            looks[space.key(config)] = found
            judgement = judge(found, rule, rivals=rivals)
            self.verdicts[space.key(config)] = self._verdict(
                config, judgement.kind, judgement.reason, found, confidence=judgement.confidence
            )
            if self._has_checked_weights(config):
                self.compared[space.key(config)] = found
                if judgement.kind == "better":
                    self.won[space.key(config)] = found
            if judgement.settled and self.broken is None:
                self.alive.remove(config)
        self._drop_beaten(looks)

    def _drop_beaten(self, looks: Mapping[space.Key, Comparison]) -> None:
        """Leave those that may still be the best.

        They must beat a challenger that has won, or, while any config that keeps the limits will do, the best of them.
        """
        rivals = self.won
        if self.broken is not None:
            self.alive = [config for config in self.alive if self._has_checked_weights(config)]
            rivals = {space.key(config): looks[space.key(config)] for config in self.alive}
        best = max((found.estimate for found in rivals.values()), default=-math.inf)
        for config in tuple(self.alive):
            found = looks[space.key(config)]
            if found.bound(FUTILITY) < best:
                self.alive.remove(config)
                kind = self.verdicts[space.key(config)].kind
                self.verdicts[space.key(config)] = self._verdict(config, kind, BEATEN, found)

    def _has_checked_weights(self, config: Config) -> bool:
        return self.study.quality == "report" or config.variant == self.study.baseline.variant

    def _is_decided(self, block: int) -> bool:
        is_last_able = block >= 2 and self.broken is not None and len(self.alive) == 1
        return not self.alive or is_last_able

    # ----------------------------------------------------------------------- results

    def _verdict(
        self,
        config: Config,
        kind: VerdictKind,
        reason: str,
        found: Comparison | None,
        *,
        confidence: float | None = None,
    ) -> Verdict:
        """`confidence` is that of the interval; None: the study's."""
        return Verdict(
            config=config,
            against=self.incumbent,
            kind=kind,
            gain=interval(found, confidence or self.study.objective.confidence) if found else None,
            repeats=found.pairs if found else 0,
            reason=reason,
        )

    def _outcome(self, wanted: Measurement | None, stop_reason: str = "") -> Outcome:
        leader, why = self._leader() if wanted is None else (self.contest.incumbent, "")
        reasons = [reason for reason in (stop_reason, self.contest.note) if reason]
        result = StepResult(
            name=self.contest.name,
            title=self.contest.title,
            incumbent=self.contest.incumbent,
            verdicts=self._verdicts(leader, why, "too few repeats" if wanted is None else "being measured"),
            leader=leader,
            finished=wanted is None,
            stop_reason="; ".join(reasons),
        )
        return Outcome(
            result=result,
            wanted=wanted,
            variance=residual(self.blocks),
            places=self.places,
            is_unpaid=wanted is None and bool(self.alive) and self.places == self.purse.places,
        )

    def _leader(self) -> tuple[Config, str]:
        """The incumbent of the next step, with the reason if it is not the gain."""
        able = self.won if self.broken is None else self.compared
        names = [config for config in self.contest.challengers if space.key(config) in able]
        if not names:
            return self.incumbent, ""
        leader = max(names, key=lambda config: able[space.key(config)].estimate)
        reason = "" if self.broken is None else f"keeps the limits that the incumbent breaks ({self.broken})"
        return leader, reason

    def _verdicts(self, leader: Config, why: str, undecided: str) -> tuple[Verdict, ...]:
        entered = [config for config in self.contest.challengers if space.key(config) in self.verdicts]
        silent = [config for config in self.contest.challengers if space.key(config) not in self.verdicts]
        found = [self._with_adoption(self.verdicts[space.key(config)], leader, why) for config in entered]
        found += [self._verdict(config, "no difference shown", undecided, None) for config in silent]
        if space.key(self.contest.incumbent) in self.verdicts:
            found.insert(0, self.verdicts[space.key(self.contest.incumbent)])
        return (*found, *self.contest.refused)

    def _with_adoption(self, verdict: Verdict, leader: Config, why: str) -> Verdict:
        """Mark the verdict of the config that took over, and say why another one that is better did not."""
        if verdict.config == leader and leader != self.contest.incumbent:
            return msgspec.structs.replace(verdict, adopted=True, reason=why or verdict.reason)
        if verdict.kind != "better":
            return verdict
        reason = "another config gained more"
        if not self._has_checked_weights(verdict.config):
            reason = "quality-not-checked: its weights are not the baseline's, and the study requires a quality check"
        return msgspec.structs.replace(verdict, reason=reason)
