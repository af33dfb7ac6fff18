"""Statistics of paired measurements: gains with intervals, and the rule that decides with a stated error rate.

Pure arithmetic on natural logarithms of a metric, signed so that larger is better. A *block* is one fresh launch of
each of several configs on common prompts, in random order; observations follow the additive model

    log value = block + config + noise,        noise ~ N(0, variance)

so that a difference of two configs inside a block is free of the block. Knows no trial, study or engine.
`docs/decisions/0002-error-rate.md` gives the reasons and the sources.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from servetune.records import Interval, Noise, Record, VerdictKind

SPENDING_POWER = 4.0
"""Exponent of the alpha-spending function (Kim and DeMets 1987)."""
FUTILITY = 0.05
"""A challenger is dropped when, had it a gain that can be shown, it would look this bad less often than this."""
UNEQUAL_NOISE = 0.05
"""Level of the F test by which a pair that is noisier than the others is judged by its own spread."""

K = TypeVar("K", bound=Hashable)


class Variance(Record, frozen=True, kw_only=True):
    """Estimated variance of what one launch reports, in squared log units."""

    value: float
    degrees: int
    """Degrees of freedom; 0: nothing is known."""


UNKNOWN = Variance(value=0.0, degrees=0)


class Comparison(Record, frozen=True, kw_only=True):
    """A difference of two configs in log units with its standard error."""

    estimate: float
    error: float
    degrees: int
    pairs: int

    def bound(self, level: float) -> float:
        """Return the value that the true difference exceeds with probability `level`."""
        return self.estimate - t_quantile(level, self.degrees) * self.error


class Rule(Record, frozen=True, kw_only=True):
    """What one challenger is judged by."""

    alpha: float
    """Its share of the study's error probability, over all looks."""
    looks: int
    """The last block after which it can be judged; the first is 2."""
    min_gain: float
    confidence: float


class Judgement(Record, frozen=True, kw_only=True):
    """What one look says about one challenger."""

    kind: VerdictKind
    settled: bool
    """More repeats would not change what is done about it."""
    reason: str
    confidence: float
    """Of the interval that shows it: the study's, or less where the test itself asks for less, so that the interval
    of a challenger that is better never holds zero."""


@functools.lru_cache(maxsize=16384)
def t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution."""
    from scipy.special import stdtrit  # noqa: PLC0415 - half a second that only a measuring command should pay

    return float(stdtrit(degrees, probability))


@functools.lru_cache(maxsize=16384)
def f_quantile(probability: float, upper_degrees: int, lower_degrees: int) -> float:
    """Return the quantile of Fisher's F distribution."""
    from scipy.special import fdtri  # noqa: PLC0415 - as above

    return float(fdtri(upper_degrees, lower_degrees, probability))


def gain(difference: float) -> float:
    """Return a log difference as a gain, a fraction."""
    return math.expm1(difference)


# --------------------------------------------------------------------------- variance


def residual(blocks: Sequence[Mapping[K, float]]) -> Variance:
    """Return the residual variance of the additive model block + config.

    Each block's values are compared with the means of the same configs over the blocks before, which are recursive
    residuals (Brown, Durbin and Evans 1975): where configs only ever leave, their sum of squares is that of least
    squares over all blocks. A config counts up to the first block in which it is missing.
    """
    squares, degrees = 0.0, 0
    sums = dict(blocks[0]) if blocks else {}
    for seen, block in enumerate(blocks[1:], start=1):
        shifts = {config: block[config] - total / seen for config, total in sums.items() if config in block}
        if not shifts:
            break
        mean = math.fsum(shifts.values()) / len(shifts)
        squares += math.fsum((shift - mean) ** 2 for shift in shifts.values()) * seen / (seen + 1)
        degrees += len(shifts) - 1
        sums = {config: sums[config] + block[config] for config in shifts}
    return Variance(value=squares / degrees, degrees=degrees) if degrees else UNKNOWN


def pool(parts: Iterable[Variance]) -> Variance:
    """Return the common variance of independent estimates, weighted by their degrees of freedom."""
    squares, degrees = 0.0, 0
    for part in parts:
        squares += part.value * part.degrees
        degrees += part.degrees
    return Variance(value=squares / degrees, degrees=degrees) if degrees else UNKNOWN


def noise(blocks: Iterable[Mapping[K, Sequence[float]]], one_launch: Variance) -> Noise:
    """Split the variance of one launch into between launches and within a launch (analysis of variance).

    Args:
        blocks: For each block the log values of every run of each config's launch, runs in a common order.
        one_launch: The residual variance of the launches' means.
    """
    squares, degrees, launches, runs = 0.0, 0, 0, 0
    for block in blocks:
        width = min(map(len, block.values()), default=0)
        if len(block) > 1 and width > 1:
            rows = [list(values[:width]) for values in block.values()]
            squares += _interaction(rows)
            degrees += (len(rows) - 1) * (width - 1)
            launches += len(rows)
            runs += len(rows) * width
    total = math.sqrt(one_launch.value) if one_launch.degrees else None
    if not degrees:
        return Noise(between_launches=None, within_launch=None, one_launch=total, degrees=one_launch.degrees)
    within = squares / degrees
    between = math.sqrt(max(0.0, one_launch.value - within * launches / runs)) if one_launch.degrees else None
    return Noise(
        between_launches=between, within_launch=math.sqrt(within), one_launch=total, degrees=one_launch.degrees
    )


def _interaction(rows: Sequence[Sequence[float]]) -> float:
    """Sum of squares of a table after the means of its rows and columns are taken out."""
    means = [math.fsum(row) / len(row) for row in rows]
    columns = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    grand = math.fsum(means) / len(means)
    return math.fsum(
        (value - mean - column + grand) ** 2
        for row, mean in zip(rows, means, strict=True)
        for value, column in zip(row, columns, strict=True)
    )


# --------------------------------------------------------------------------- comparisons


def compare(old: Sequence[float], new: Sequence[float], variance: Variance = UNKNOWN) -> Comparison | None:
    """Compare two configs over their common blocks; None where nothing is known about the spread.

    The standard error comes from `variance`, unless these pairs spread more than it allows (F test), or it is
    unknown: then from the pairs alone.
    """
    differences = [later - earlier for earlier, later in zip(old, new, strict=True)]
    pairs = len(differences)
    if not pairs:
        return None
    estimate = math.fsum(differences) / pairs
    own = Variance(
        value=math.fsum((value - estimate) ** 2 for value in differences) / max(1, pairs - 1), degrees=pairs - 1
    )
    chosen = Variance(value=2 * variance.value, degrees=variance.degrees)
    if own.degrees and (not chosen.degrees or _is_noisier(own, chosen)):
        chosen = own
    if not chosen.degrees:
        return None
    return Comparison(estimate=estimate, error=math.sqrt(chosen.value / pairs), degrees=chosen.degrees, pairs=pairs)


def _is_noisier(own: Variance, pooled: Variance) -> bool:
    return own.value > pooled.value * f_quantile(1 - UNEQUAL_NOISE, own.degrees, pooled.degrees)


def interval(comparison: Comparison, confidence: float) -> Interval:
    """Return the gain with its two-sided interval."""
    half = (1 - confidence) / 2
    return Interval(
        estimate=gain(comparison.estimate),
        low=gain(comparison.bound(1 - half)),
        high=gain(comparison.bound(half)),
        confidence=confidence,
    )


# --------------------------------------------------------------------------- decisions


def spent(alpha: float, look: int, looks: int) -> float:
    """Return the part of `alpha` that may be spent at look `look` of 2 to `looks`.

    Increments of the spending function alpha x (look / looks) ** SPENDING_POWER (Lan and DeMets 1983, Kim and DeMets
    1987). They add up to alpha, so that by Boole's inequality the probability that any look errs is at most alpha,
    whatever the dependence between looks.
    """
    if look < 2:
        return 0.0
    before = 0.0 if look == 2 else math.pow((look - 1) / looks, SPENDING_POWER)
    return alpha * (math.pow(look / looks, SPENDING_POWER) - before)


def judge(comparison: Comparison, rule: Rule, *, rivals: int = 1) -> Judgement:
    """Say what the look after `comparison.pairs` blocks shows about a challenger.

    Args:
        comparison: The challenger against the incumbent.
        rule: Its error probability, its last look and the gain that counts.
        rivals: Challengers that are still measured, from which the degrees of freedom at the last look are foreseen.
    """
    level = spent(rule.alpha, comparison.pairs, rule.looks)
    own = min(rule.confidence, 1 - 2 * level)
    least = math.log1p(rule.min_gain)
    low, high = (comparison.bound(1 - level), comparison.bound(level)) if level > 0 else (-math.inf, math.inf)
    if low > 0 and comparison.estimate >= least:
        return Judgement(kind="better", settled=True, reason="", confidence=own)
    shown = interval(comparison, rule.confidence)
    if gain(low) > -rule.min_gain and gain(high) < rule.min_gain:
        return Judgement(kind="equivalent", settled=True, reason=f"within ±{rule.min_gain:.1%}", confidence=own)
    kind: VerdictKind = "worse" if shown.high < 0 else "no difference shown"
    optimistic = comparison.bound(FUTILITY)
    if comparison.pairs < 2:
        return Judgement(kind=kind, settled=False, reason="", confidence=rule.confidence)
    if optimistic < max(least, _showable(comparison, rule, rivals)):
        reason = "" if kind == "worse" else "more repeats are unlikely to show a gain"
        return Judgement(kind=kind, settled=True, reason=reason, confidence=rule.confidence)
    reason = f"the gain is below {rule.min_gain:.1%}" if low > 0 else ""
    return Judgement(kind=kind, settled=False, reason=reason, confidence=rule.confidence)


def _showable(comparison: Comparison, rule: Rule, rivals: int) -> float:
    """Smallest log difference that would be significant at the last look, if the spread stays as it is."""
    left = max(0, rule.looks - comparison.pairs)
    quantile = t_quantile(1 - spent(rule.alpha, rule.looks, rule.looks), comparison.degrees + rivals * left)
    return quantile * comparison.error * math.sqrt(comparison.pairs / rule.looks)
