"""Decisions with their evidence."""

from __future__ import annotations

from typing import Literal

from servetune.records.config import Config
from servetune.records.summary import Finding
from servetune.records.value import Record


class Interval(Record, frozen=True, kw_only=True):
    """A gain with its interval.

    Gains are improvements as a fraction: new/old - 1 for a metric to maximise, old/new - 1 for one to minimise,
    so that positive is always better.
    """

    estimate: float
    low: float
    high: float
    confidence: float
    """Two-sided coverage of [low, high]."""


VerdictKind = Literal["better", "worse", "equivalent", "no difference shown", "invalid"]


class Verdict(Record, frozen=True, kw_only=True):
    """A decision about one config against the incumbent of its step, with its evidence."""

    config: Config
    against: Config
    kind: VerdictKind
    gain: Interval | None
    """None: there is no pair of measurements (failed, or barred before)."""
    repeats: int
    """Pairs of launches it rests on."""
    adopted: bool = False
    reason: str = ""
    """Why it was adopted, barred or not decided, in words."""


class StepResult(Record, frozen=True, kw_only=True):
    """One stage of a staged search."""

    name: str
    title: str
    incumbent: Config
    verdicts: tuple[Verdict, ...]
    leader: Config
    """The incumbent of the next step."""
    finished: bool
    stop_reason: str = ""
    """Why it ended before all repeats were made (decided, budget), or "" ."""


class Noise(Record, frozen=True, kw_only=True):
    """Spread of the objective as a fraction, pooled over configs."""

    between_launches: float | None
    """None: needs at least two runs in some launch."""
    within_launch: float | None
    one_launch: float | None
    """Standard deviation of what one launch reports (between launches and within together)."""
    degrees: float


class WorkloadChange(Record, frozen=True, kw_only=True):
    """Baseline against recommended config on one workload, from fresh interleaved launches."""

    workload: str
    metric: str
    gain: Interval
    repeats: int
    barred: bool = False
    """It loses more than `max_loss`."""


class Conclusion(Record, frozen=True, kw_only=True):
    """What the study answers."""

    baseline: Config
    recommended: Config
    kind: VerdictKind
    gain: Interval | None
    """From the fresh launches of the validation; None: nothing was adopted or the budget ended before."""
    changes: tuple[WorkloadChange, ...] = ()
    """One entry for each workload, the objective's first."""
    barred: tuple[Verdict, ...] = ()
    """Configs that would have won but may not be recommended, with the reason."""
    limits_met: bool = True
    noise: Noise | None = None
    findings: tuple[Finding, ...] = ()
    stop_reason: str = ""
    finished: bool = True
