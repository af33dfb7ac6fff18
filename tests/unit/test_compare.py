"""Statistics of paired measurements, against numpy and scipy where those can say the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from servetune import compare
from servetune.compare import UNKNOWN, Comparison, Rule, Variance

RULE = Rule(alpha=0.01, looks=5, min_gain=0.01, confidence=0.95)


def _least_squares(blocks: list[dict[str, float]]) -> tuple[float, int]:
    """Residual sum of squares and degrees of freedom of block + config, by a general solver."""
    configs = sorted({config for block in blocks for config in block})
    rows, values = [], []
    for number, block in enumerate(blocks):
        for config, value in block.items():
            rows.append([float(number == other) for other in range(len(blocks))])
            rows[-1] += [float(config == other) for other in configs]
            values.append(value)
    matrix, observed = np.array(rows), np.array(values)
    solution = np.linalg.lstsq(matrix, observed, rcond=None)[0]
    return float(((observed - matrix @ solution) ** 2).sum()), len(values) - int(np.linalg.matrix_rank(matrix))


def test_the_residual_variance_is_that_of_least_squares() -> None:
    """Also when configs leave the race block by block."""
    rng = np.random.default_rng(1)
    alive = [["a", "b", "c", "d"], ["a", "b", "c", "d"], ["a", "b", "d"], ["a", "d"]]
    blocks = [{config: float(rng.normal()) for config in names} for names in alive]

    found = compare.residual(blocks)

    squares, degrees = _least_squares(blocks)
    assert found.degrees == degrees
    assert found.value == pytest.approx(squares / degrees)


@pytest.mark.parametrize("blocks", [[], [{"a": 1.0, "b": 2.0}], [{"a": 1.0}, {"b": 2.0}, {"b": 3.0}]])
def test_nothing_is_known_from_one_block_or_from_strangers(blocks: list[dict[str, float]]) -> None:
    """No degree of freedom, no variance."""
    assert compare.residual(blocks) == UNKNOWN


def test_pooling_weights_by_degrees_of_freedom() -> None:
    """An estimate without any counts nothing."""
    parts = (Variance(value=1.0, degrees=1), Variance(value=4.0, degrees=3), UNKNOWN)

    assert compare.pool(parts) == Variance(value=13 / 4, degrees=4)
    assert compare.pool(()) == UNKNOWN


def test_a_pair_alone_gives_the_paired_t_interval() -> None:
    """As scipy computes it."""
    old, new = [1.0, 1.1, 0.9, 1.0], [1.1, 1.3, 0.9, 1.2]
    found = compare.compare(old, new)
    assert found is not None

    shown = compare.interval(found, 0.95)

    expected = scipy.stats.ttest_rel(new, old).confidence_interval(0.95)
    assert (math.log1p(shown.low), math.log1p(shown.high)) == pytest.approx((expected.low, expected.high))
    assert shown.estimate == pytest.approx(math.expm1(0.125))
    assert shown.confidence == 0.95


def test_the_pooled_variance_narrows_the_interval() -> None:
    """Its degrees of freedom count."""
    found = compare.compare([0.0, 0.0], [0.1, 0.12], Variance(value=0.0001, degrees=20))

    assert found is not None
    assert (found.estimate, found.error) == pytest.approx((0.11, 0.01))
    assert (found.degrees, found.pairs) == (20, 2)


def test_a_pair_that_is_noisier_than_the_others_is_judged_by_its_own_spread() -> None:
    """The F test notices; a pooled variance that does not fit would claim too much."""
    found = compare.compare([0.0, 0.0, 0.0], [0.3, -0.3, 0.3], Variance(value=0.0001, degrees=20))

    assert found is not None
    assert found.degrees == 2
    assert found.error == pytest.approx(math.sqrt(0.12 / 3))


@pytest.mark.parametrize(("old", "new"), [([], []), ([1.0], [2.0])])
def test_without_any_spread_there_is_no_comparison(old: list[float], new: list[float]) -> None:
    """No pair, or one pair and nothing pooled."""
    assert compare.compare(old, new) is None


def test_what_is_spent_at_all_looks_is_alpha() -> None:
    """Nothing before the second block, most at the last."""
    parts = [compare.spent(0.05, look, 5) for look in range(1, 6)]

    assert parts[0] == 0
    assert math.fsum(parts) == pytest.approx(0.05)
    assert parts == sorted(parts)


def _comparison(estimate: float, error: float = 0.005, pairs: int = 3, degrees: int = 20) -> Comparison:
    return Comparison(estimate=estimate, error=error, degrees=degrees, pairs=pairs)


@pytest.mark.parametrize(
    ("comparison", "kind", "settled"),
    [
        (_comparison(0.05), "better", True),
        (_comparison(0.012), "no difference shown", False),
        (_comparison(0.0), "no difference shown", True),
        (_comparison(-0.05), "worse", True),
        (_comparison(0.0, error=0.0001), "equivalent", True),
        (_comparison(0.3, pairs=1), "no difference shown", False),
    ],
)
def test_a_look_ends_in_a_word(comparison: Comparison, kind: str, settled: bool) -> None:
    """Better, worse, equivalent or nothing shown; settled when more repeats would not change what is done."""
    judgement = compare.judge(comparison, RULE)

    assert (judgement.kind, judgement.settled) == (kind, settled)


def test_a_certain_gain_below_min_gain_is_not_adopted() -> None:
    """The reason says so while it is not settled."""
    judgement = compare.judge(_comparison(0.0095, error=0.0006), RULE)

    assert judgement.kind == "no difference shown"
    assert judgement.reason == "the gain is below 1.0%"


def test_bounds_are_those_of_student() -> None:
    """One-sided, against scipy's distribution."""
    comparison = _comparison(0.1, error=0.02, degrees=7)

    assert comparison.bound(0.99) == pytest.approx(0.1 - 0.02 * scipy.stats.t.ppf(0.99, 7))
    assert compare.f_quantile(0.95, 3, 9) == pytest.approx(scipy.stats.f.ppf(0.95, 3, 9))


def test_noise_is_split_between_and_within_launches() -> None:
    """The analysis of variance finds the parts that were put in."""
    rng = np.random.default_rng(2)
    blocks = []
    for _ in range(200):
        prompts = rng.normal(0, 0.05, 3)
        blocks.append({config: rng.normal(0, 0.02) + rng.normal(0, 0.01, 3) + prompts for config in "abc"})
    means = [{config: float(runs.mean()) for config, runs in block.items()} for block in blocks]

    found = compare.noise(
        [{config: list(runs) for config, runs in block.items()} for block in blocks], compare.residual(means)
    )

    assert found.between_launches == pytest.approx(0.02, rel=0.1)
    assert found.within_launch == pytest.approx(0.01, rel=0.1)
    assert found.one_launch == pytest.approx(math.hypot(0.02, 0.01 / math.sqrt(3)), rel=0.1)
    assert found.degrees == 2 * 199


def test_noise_without_repeats_in_a_launch_is_not_split() -> None:
    """Nor is anything said about launches when there was one block."""
    single = compare.noise([{"a": [1.0], "b": [2.0]}, {}], Variance(value=0.0004, degrees=3))
    unknown = compare.noise([{"a": [1.0, 1.1], "b": [2.0, 2.0]}], UNKNOWN)

    assert (single.between_launches, single.within_launch, single.one_launch) == (None, None, 0.02)
    assert unknown.between_launches is None
    assert unknown.one_launch is None
    assert unknown.within_launch == pytest.approx(0.05)


@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.002])
def test_the_interval_of_what_is_better_never_holds_zero(alpha: float) -> None:
    """Where one challenger has the whole error probability, the test asks for less than the study's interval."""
    rule = Rule(alpha=alpha, looks=3, min_gain=0.0, confidence=0.95)
    thousandths = (estimate for estimate in range(1, 60))

    better = [
        (found, judgement)
        for thousandth in thousandths
        if (judgement := compare.judge(found := _comparison(thousandth / 1000), rule)).kind == "better"
    ]

    assert better
    for found, judgement in better:
        shown = compare.interval(found, judgement.confidence)
        assert shown.low > 0
        assert shown.confidence <= 0.95
