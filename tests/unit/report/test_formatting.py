"""Numbers become text in one place, with sensible digits, signs and units."""

from __future__ import annotations

import math

import pytest

from servetune.records import Interval
from servetune.report import formatting

NBSP = "\u00a0"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (41875.09, "41,875"),
        (1000.4, "1,000"),
        (114.34, "114.3"),
        (15.117, "15.12"),
        (0.1234567, "0.123"),
        (-12.3, "\u221212.30"),
        (0.0, "0.000"),
        (3e20, "3.000e+20"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_figures_have_four_significant_digits(value: float | None, shown: str) -> None:
    """Large figures lose their decimals, small ones keep three; absent ones are a dash."""
    assert formatting.figure(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(4.0, "4"), (0.12, "0.12"), (7.75, "7.75"), (2000, "2,000"), (None, "–")])
def test_settings_are_as_short_as_they_are(value: float | None, shown: str) -> None:
    """A rate of 4 requests/s is not printed as 4.000, and 2,000 keeps its zeros."""
    assert formatting.setting(value) == shown


def test_amounts_carry_their_unit() -> None:
    """The unit follows after a space that does not break; a fraction becomes percent."""
    assert formatting.amount(12.5, "ms") == f"12.50{NBSP}ms"
    assert formatting.amount(12.5, "") == "12.50"
    assert formatting.amount(None, "ms") == "–"
    assert formatting.amount(0.99, "fraction") == f"99{NBSP}%"


@pytest.mark.parametrize(
    ("fraction", "shown"),
    [(0.01, "1"), (0.025, "2.5"), (0.98, "98"), (0.0004, "0.04"), (0.0, "0"), (12.0, "1,200"), (0.0995, "10")],
)
def test_percent_is_short(fraction: float, shown: str) -> None:
    """Shares print without needless zeros."""
    assert formatting.percent(fraction) == f"{shown}{NBSP}%"


@pytest.mark.parametrize(
    ("fraction", "shown"),
    [
        (0.471, "+47"),
        (-0.004, "\u22120.4"),
        (0.00001, "0.00"),
        (-0.00001, "0.00"),
        (0.016, "+1.6"),
        (-2.0, "\u2212200"),
    ],
)
def test_changes_have_a_sign(fraction: float, shown: str) -> None:
    """A gain has a plus, a loss a true minus sign, and nothing has neither."""
    assert formatting.change(fraction) == f"{shown}{NBSP}%"
    assert formatting.change(None) == "–"


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0.91, 1.05, "+98 % [+91 %, +105 %]"),
        (0.976, 0.984, "+98.0 % [+97.6 %, +98.4 %]"),
        (0.9795, 0.9805, "+98.00 % [+97.95 %, +98.05 %]"),
    ],
)
def test_digits_of_an_interval_follow_its_width(low: float, high: float, shown: str) -> None:
    """A wide interval has no decimals, a narrow one as many as tell its ends apart."""
    gain = Interval(estimate=0.98, low=low, high=high, confidence=0.95)
    assert formatting.bracket(gain).replace(NBSP, " ") == shown
    assert formatting.bracket(None) == "–"


def test_an_interval_is_worded_with_its_ends() -> None:
    """Both ends stand with their signs."""
    gain = Interval(estimate=0.1, low=-0.02, high=0.2, confidence=0.95)
    assert formatting.interval(gain).replace(NBSP, " ") == "\u22122 % to +20 %"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.42, "0.420 s"), (12.4, "12 s"), (221.0, "3 min 41 s"), (59.6, "60 s"), (3900.0, "1 h 5 min"), (None, "–")],
)
def test_durations_use_two_units(seconds: float | None, shown: str) -> None:
    """Seconds, minutes and hours, whichever are the largest."""
    assert formatting.duration(seconds).replace(NBSP, " ") == shown


def test_invisible_characters_are_written_out() -> None:
    """A direction override, a bell and a lone surrogate show as their codes; line ends and tabs stay."""
    assert formatting.visible("a\u202eb\x07\udcff\r\nc\td") == "a\\u202eb\\u0007\\udcff\nc\td"


def test_long_text_is_cut_to_one_line() -> None:
    """A cut is marked, and line ends become spaces."""
    assert formatting.clip("a\n  b", 10) == "a b"
    assert formatting.clip("x" * 50, 10) == "x" * 9 + "…"


def test_an_unusual_confidence_is_said() -> None:
    """An interval at another level than the study's says so; one at the study's does not."""
    gain = Interval(estimate=0.1, low=0.05, high=0.15, confidence=0.9)

    assert formatting.bracket(gain, usual=0.95).endswith(f" at 90{NBSP}%")
    assert "at" not in formatting.bracket(gain, usual=0.9)
