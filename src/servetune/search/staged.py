"""The staged search: choose engine and variant at their defaults, then one option after another on the leader.

Pure: replays the study's steps from its history. Error probability is divided equally over the challengers that the
plan can have (Bonferroni), so that the rate holds for the study as a whole: see docs/decisions/0002-error-rate.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from servetune import space
from servetune.compare import UNKNOWN, Variance, pool
from servetune.records import Catalogue, Config, Measurement, Record, Run, StepResult, Study, Trial, Verdict
from servetune.search.base import Progress
from servetune.search.ledger import Ledger
from servetune.search.purse import Purse
from servetune.search.race import BUDGET, Contest, Race

ENGINE_STEP = "engine"
FIRST_STEP_WEIGHT = 2.0
"""Error probability of a challenger of the first step against one of a later step: little is known of the noise yet."""


def steps(study: Study, catalogues: Mapping[str, Catalogue], history: Sequence[Trial]) -> tuple[StepResult, ...]:
    """Return the finished steps of `study`, then the one that is being measured, if any."""
    return progress(study, catalogues, history).steps


def next_measurement(study: Study, catalogues: Mapping[str, Catalogue], history: Sequence[Trial]) -> Measurement | None:
    """Return what to measure next, or None when the search is over."""
    return progress(study, catalogues, history).wanted


def progress(study: Study, catalogues: Mapping[str, Catalogue], history: Sequence[Trial]) -> Progress:
    """Return where the staged search of `study` stands after `history`."""
    return _Replay(study, catalogues, history).run()


class _Shares(Record, frozen=True, kw_only=True):
    """How the study's error probability is divided."""

    first: float
    """For each challenger of the first step."""
    later: float
    """For all challengers of all later steps together."""


class _Replay:
    """The study so far, step by step."""

    def __init__(self, study: Study, catalogues: Mapping[str, Catalogue], history: Sequence[Trial]) -> None:
        self.study, self.catalogues = study, catalogues
        self.ledger = Ledger(study, history)
        self.results: list[StepResult] = []
        self.variance: Variance = UNKNOWN
        self.unselected: Variance = UNKNOWN
        self.seen: dict[space.Key, list[Run]] = {}
        self.entered: set[space.Key] = set()
        self.places = 0
        self.wanted: Measurement | None = None

    def run(self) -> Progress:
        starting = space.starting_configs(self.study)
        first = self._capped(starting)
        shares = self._shares(first)
        note = self._note(len(starting) - len(first))
        contest = Contest(
            name=ENGINE_STEP,
            title="Engine and model variant",
            place=0,
            incumbent=self.study.baseline,
            challengers=first[1:],
            alpha=shares.first,
            note=note,
        )
        coming = sum(len(axis.values) for axis in space.find_spec(self.study.engines, first[0].engine).axes)
        stop_reason = self._step(contest, coming) if len(first) > 1 else ""
        if self.wanted is None and not stop_reason:
            leader = self.results[-1].leader if self.results else self.study.baseline
            stop_reason = self._options(leader, shares.later)
        return Progress(
            steps=tuple(self.results),
            wanted=self.wanted,
            variance=self.variance,
            unselected=self.unselected,
            stop_reason=stop_reason,
        )

    def _step(self, contest: Contest, coming: int) -> str:
        """Replay one step; returns why the search ends with it, "" if it does not."""
        launches = len(contest.challengers) + 1
        purse = Purse(ledger=self.ledger, places=self.places, share=launches / (launches + coming))
        outcome = Race(self.ledger, contest, purse, prior=self.variance, seen=self.seen).run()
        self.places = outcome.places
        self.variance = pool((self.variance, outcome.variance))
        has_adopted = outcome.result.leader != contest.incumbent
        self.unselected = UNKNOWN if has_adopted else pool((self.unselected, outcome.variance))
        self.wanted = outcome.wanted
        if outcome.is_unpaid:
            return BUDGET
        self.results.append(outcome.result)
        return ""

    def _options(self, leader: Config, alpha: float) -> str:
        """Replay the steps of the leader's engine; returns why the search ended early."""
        catalogue = self.catalogues[leader.engine]
        stages = space.stages(space.find_spec(self.study.engines, leader.engine), catalogue)
        planned = self._planned(leader, len(self.entered))
        for number, stage in enumerate(stages):
            contest = self._contest(leader, stage, number + 1, alpha / max(1, planned))
            if contest is None:
                continue
            coming = sum(len(later.values) for later in stages[number + 1 :])
            if self._step(contest, coming):
                left = ", ".join(later.option for later in stages[number:])
                return f"{BUDGET}: not tried any more: {left}"
            if self.wanted is not None:
                return ""
            leader = self.results[-1].leader
        return ""

    def _contest(self, leader: Config, stage: space.Stage, place: int, alpha: float) -> Contest | None:
        """The step of one option; None where nothing is to be said about it."""
        catalogue = self.catalogues[leader.engine]
        wished = space.neighbours(leader, stage, catalogue)
        reasons = {space.key(config): space.forbidden(config, catalogue) for config in wished}
        allowed = tuple(config for config in wished if reasons[space.key(config)] is None)
        refused = tuple(
            Verdict(config=config, against=leader, kind="invalid", gain=None, repeats=0, reason=reason)
            for config in wished
            if (reason := reasons[space.key(config)]) is not None
        )
        challengers = self._capped((leader, *allowed))[1:]
        if not wished:
            return None
        family = f"{stage.family}: " if stage.family not in ("", stage.option) else ""
        return Contest(
            name=stage.option,
            title=f"{family}{stage.option}",
            place=place,
            incumbent=leader,
            challengers=challengers,
            refused=refused,
            alpha=alpha,
            note=self._note(len(allowed) - len(challengers)),
        )

    # ----------------------------------------------------------------------- plan

    def _capped(self, configs: tuple[Config, ...]) -> tuple[Config, ...]:
        """`configs` without the last ones that budget.max_configs leaves no room for; those kept are counted."""
        most = self.study.budget.max_configs
        kept = []
        for place, config in enumerate(configs):
            if place == 0 or most is None or len(self.entered) < most or space.key(config) in self.entered:
                self.entered.add(space.key(config))
                kept.append(config)
        return tuple(kept)

    def _note(self, dropped: int) -> str:
        most = self.study.budget.max_configs
        return f"max_configs {most}: {dropped} left out" if dropped else ""

    def _planned(self, config: Config, entered: int) -> int:
        """Most challengers that the option steps can have if `config` leads."""
        catalogue = self.catalogues[config.engine]
        stages = space.stages(space.find_spec(self.study.engines, config.engine), catalogue)
        count = sum(len(space.neighbours(config, stage, catalogue)) for stage in stages)
        most = self.study.budget.max_configs
        return count if most is None else min(count, max(0, most - entered))

    def _shares(self, first: tuple[Config, ...]) -> _Shares:
        """Equal parts for every challenger of the longest plan.

        The part of the later steps is divided anew by the number of challengers of the engine that leads then: what
        the first step chose is fixed before they begin, so that their errors still add up to at most that part.
        """
        alpha = 1 - self.study.objective.confidence
        later = max(self._planned(config, len(first)) for config in first)
        each = alpha / max(1, FIRST_STEP_WEIGHT * (len(first) - 1) + later)
        return _Shares(first=FIRST_STEP_WEIGHT * each, later=each * later)
