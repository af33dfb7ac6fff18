"""When requests are due."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest

from servetune.loadgen.arrivals import offsets_ns
from servetune.records import Load, RampUp

NS = 1_000_000_000


def test_without_a_rate_all_are_due_at_once() -> None:
    """No draw is made."""
    assert offsets_ns(3, Load(), 1) == (0, 0, 0)


def test_no_requests_have_no_offsets() -> None:
    """Also with a rate."""
    assert offsets_ns(0, Load(request_rate=5.0), 1) == ()


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 4.0])
def test_the_last_request_is_due_at_count_over_rate(burstiness: float) -> None:
    """The gaps are stretched; order and positivity stay."""
    due = offsets_ns(100, Load(request_rate=20.0, burstiness=burstiness), 7)
    assert due[-1] == 5 * NS
    assert list(due) == sorted(due)
    assert due[0] > 0


def test_equal_seeds_give_equal_offsets_and_others_differ() -> None:
    """Seeds of any size are taken."""
    load = Load(request_rate=20.0)
    assert offsets_ns(10, load, 2**53 + 1) == offsets_ns(10, load, 2**53 + 1)
    assert offsets_ns(10, load, 1) != offsets_ns(10, load, 2)


def test_the_gaps_are_those_of_vllm() -> None:
    """Gamma draws one by one from the legacy generator, summed and stretched."""
    generator = np.random.RandomState(3)
    sums = np.cumsum([generator.gamma(shape=0.5, scale=1 / (10 * 0.5)) for _ in range(8)])
    expected = [round(float(moment) * (0.8 / sums[-1]) * NS) for moment in sums]
    assert offsets_ns(8, Load(request_rate=10.0, burstiness=0.5), 3) == pytest.approx(expected, abs=2)


def test_infinite_burstiness_is_an_even_pace() -> None:
    """Every gap is 1/rate."""
    assert offsets_ns(4, Load(request_rate=2.0, burstiness=math.inf), 0) == (NS // 2, NS, 3 * NS // 2, 2 * NS)


def test_gaps_that_are_all_zero_are_left_alone() -> None:
    """A tiny burstiness draws numbers below the smallest float."""
    assert offsets_ns(3, Load(request_rate=2.0, burstiness=1e-300), 0) == (0, 0, 0)


def test_burstiness_widens_the_spread_of_the_gaps() -> None:
    """The coefficient of variation is about 1/sqrt(burstiness)."""
    for burstiness in (0.25, 1.0, 4.0):
        gaps = np.diff(offsets_ns(4000, Load(request_rate=1.0, burstiness=burstiness), 5))
        assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.1)


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
def test_a_ramp_is_an_even_pace_that_quickens(strategy: Literal["linear", "exponential"]) -> None:
    """Without randomness each gap is 1/rate of its own request; nothing is stretched."""
    ramp = RampUp(strategy=strategy, start_rps=1.0, end_rps=4.0)
    due = offsets_ns(3, Load(ramp_up=ramp, burstiness=math.inf), 0)
    middle = 2.5 if strategy == "linear" else 2.0
    assert due == pytest.approx([NS, NS + NS / middle, NS + NS / middle + NS / 4], abs=2)


def test_the_gaps_of_a_ramp_are_those_of_vllm() -> None:
    """One gamma draw a request from the legacy generator, each with the request's own rate, summed."""
    generator = np.random.RandomState(11)
    rates = [2.0 * (50.0 / 2.0) ** (index / 7) for index in range(8)]
    sums = np.cumsum([generator.gamma(shape=2.0, scale=1 / (rate * 2.0)) for rate in rates])
    load = Load(ramp_up=RampUp(strategy="exponential", start_rps=2.0, end_rps=50.0), burstiness=2.0)
    assert offsets_ns(8, load, 11) == pytest.approx([float(moment) * NS for moment in sums], abs=2)


def test_one_request_of_a_ramp_has_its_first_rate() -> None:
    """There is no last one to rise to."""
    ramp = RampUp(strategy="linear", start_rps=2.0, end_rps=8.0)
    assert offsets_ns(1, Load(ramp_up=ramp, burstiness=math.inf), 0) == (NS // 2,)
