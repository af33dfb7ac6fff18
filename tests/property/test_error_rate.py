"""The decisions keep their error rate in simulated studies; `bench/decisions.py` proves it with 2,000 a cell."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune import compare

BENCH = Path(__file__).parents[2] / "bench" / "decisions.py"


@pytest.fixture(scope="module", name="decisions")
def _decisions() -> ModuleType:
    """The benchmark as a module; bench/ is no package."""
    spec = importlib.util.spec_from_file_location("bench_decisions", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _cell(decisions: ModuleType, name: str) -> object:
    return next(cell for cell in decisions.CELLS if cell.name == name)


def test_a_few_studies_without_a_gain_adopt_next_to_nothing(decisions: ModuleType) -> None:
    """20 studies at an error rate of 5 %: more than 4 wrong ones have a probability of 0.3 %."""
    assert decisions.count(_cell(decisions, "no gain"), 20).wrong <= 4


def test_a_few_studies_with_a_gain_find_it_and_publish_it(decisions: ModuleType) -> None:
    """20 studies with a gain of 5 %; at a power of 85 % fewer than 13 have a probability of 0.6 %."""
    tally = decisions.count(_cell(decisions, "+5 % in one option"), 20)

    assert tally.found >= 13
    assert tally.covered >= tally.published - 4
    assert max(tally.launches) <= 80


@pytest.mark.slow
@pytest.mark.parametrize("name", ["no gain", "+5 % in one option", "no gain, drift 10 %", "no gain, 250 s"])
def test_promises_hold_in_150_studies(decisions: ModuleType, name: str) -> None:
    """With bounds as wide as so few studies need."""
    cell = _cell(decisions, name)

    assert decisions.failures(cell, decisions.count(cell, 150), wrong=0.10, power=0.82, coverage=0.88) == []


def test_a_broken_promise_is_seen(decisions: ModuleType) -> None:
    """The benchmark fails on each of its promises."""
    cell = _cell(decisions, "+5 % in one option")
    good = decisions.Tally(studies=2000, wrong=80, found=1800, published=1800, covered=1710)
    bad = decisions.Tally(studies=2000, wrong=120, found=1600, published=1800, covered=1670)

    assert decisions.failures(cell, good) == []
    assert len(decisions.failures(cell, bad)) == 3


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_the_variance_is_that_of_least_squares_for_any_race(sizes: list[int], seed: int) -> None:
    """Whoever leaves, whenever."""
    rng = np.random.default_rng(seed)
    alive = [list(range(size)) for size in sorted(sizes, reverse=True)]
    blocks = [{config: float(rng.normal()) for config in names} for names in alive]
    rows = [
        [float(row == number) for row in range(len(blocks))] + [float(config == other) for other in range(5)]
        for number, block in enumerate(blocks)
        for config in block
    ]
    values = np.array([value for block in blocks for value in block.values()])
    matrix = np.array(rows)
    residuals = values - matrix @ np.linalg.lstsq(matrix, values, rcond=None)[0]

    found = compare.residual(blocks)

    assert found.degrees == len(values) - int(np.linalg.matrix_rank(matrix))
    assert found.value * found.degrees == pytest.approx(float(residuals @ residuals), abs=1e-9)


@given(st.floats(1e-6, 0.2), st.integers(2, 20))
def test_looks_never_spend_more_than_there_is(alpha: float, looks: int) -> None:
    """Increments are positive and add up to alpha."""
    parts = [compare.spent(alpha, look, looks) for look in range(2, looks + 1)]

    assert min(parts) > 0
    assert sum(parts) == pytest.approx(alpha)
