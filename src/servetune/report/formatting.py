"""The one place where a number becomes text: digits, signs, units, thousands.

Pure. It knows no study and no language beyond the units that every language of this field shares.
"""

from __future__ import annotations

import math
import re

from servetune.records import Interval

ABSENT = "–"
_SPACE = "\u00a0"
"""No-break: a number never loses its unit at the end of a line."""
_LARGEST_MAGNITUDE = 1e15


def figure(value: float | None) -> str:
    """Return `value` with four significant digits and thousands separators; absent and not finite give a dash."""
    if value is None or not math.isfinite(value):
        return ABSENT
    size = abs(value)
    if size >= _LARGEST_MAGNITUDE:
        return f"{value:.3e}"
    decimals = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3
    return _minus(f"{value:,.{decimals}f}")


def setting(value: float | None) -> str:
    """Return a number that somebody chose or a machine has: as short as it is."""
    text = figure(value)
    return re.sub(r"\.?0+$", "", text) if "." in text else text


def amount(value: float | None, unit: str) -> str:
    """Return `value` with its unit (ms, tok/s, %); the unit "" stands alone, and "fraction" becomes percent."""
    if unit == "fraction":
        return percent(value)
    text = figure(value)
    return text if text == ABSENT or not unit else f"{text}{_SPACE}{unit}"


def percent(fraction: float | None, *, decimals: int | None = None) -> str:
    """Return a fraction as percent, without a plus sign; without `decimals`, 5 % and 0.25 % as they are."""
    text = _percent(fraction, sign="", decimals=decimals)
    return text if decimals is not None else re.sub(r"\.0+(?=\D)", "", text)


def change(fraction: float | None, *, decimals: int | None = None) -> str:
    """Return a relative change as percent with its sign."""
    return _percent(fraction, sign="+", decimals=decimals)


def _percent(fraction: float | None, *, sign: str, decimals: int | None) -> str:
    if fraction is None or not math.isfinite(fraction):
        return ABSENT
    value = fraction * 100
    if decimals is None:
        decimals = 0 if abs(value) >= 9.95 else 1 if abs(value) >= 0.095 or value == 0 else 2
    text = f"{value:{sign},.{decimals}f}"
    if float(text.replace(",", "")) == 0:
        text = f"{0:.{decimals}f}"
    return f"{_minus(text)}{_SPACE}%"


def decimals_of(gain: Interval) -> int:
    """Return how many decimals of percent an interval deserves: two digits of its half width at most."""
    half_width = (gain.high - gain.low) * 50
    return 0 if half_width >= 3 else 1 if half_width >= 0.2 else 2


def interval(gain: Interval, *, to: str = "to") -> str:
    """Return the two ends of an interval of relative changes, with their signs and the word between them."""
    decimals = decimals_of(gain)
    return f"{change(gain.low, decimals=decimals)} {to} {change(gain.high, decimals=decimals)}"


def bracket(gain: Interval | None, *, usual: float | None = None) -> str:
    """Return estimate and interval in short form: +98 % [+91 %, +105 %].

    A confidence that is not the `usual` one is added.
    """
    if gain is None:
        return ABSENT
    estimate, low, high = (change(end, decimals=decimals_of(gain)) for end in (gain.estimate, gain.low, gain.high))
    is_usual = usual is None or math.isclose(usual, gain.confidence)
    level = "" if is_usual else f" at {100 * gain.confidence:.3g}{_SPACE}%"
    return f"{estimate} [{low}, {high}]{level}"


def count(number: float) -> str:
    """Return a whole number with thousands separators."""
    return _minus(f"{number:,.0f}")


def duration(seconds: float | None) -> str:
    """Return a time span in its two largest units (h, min, s)."""
    if seconds is None or not math.isfinite(seconds):
        return ABSENT
    if seconds < 60:
        return f"{figure(seconds) if seconds < 10 else f'{seconds:.0f}'}{_SPACE}s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{_SPACE}min {rest_s}{_SPACE}s"
    return f"{minutes // 60:,}{_SPACE}h {minutes % 60}{_SPACE}min"


_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]|[\ud800-\udfff]")
"""Control characters, direction overrides and lone surrogates: they would hide or reorder what a reader sees."""


def visible(text: str) -> str:
    """Return `text` with every invisible control character written out as its code, so that it cannot deceive."""
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n"))


def clip(text: str, limit: int = 80) -> str:
    """Return `text` on one line, cut after `limit` characters with an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _minus(text: str) -> str:
    return text.replace("-", "\u2212")
