"""Values of engine options and workload parameters: what is accepted, and conditions between options.

Knows records.OptionSpec and no engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from servetune.records import OptionSpec, OptionValue
from servetune.space import same_value
from servetune.studyfile.reading import Mistakes, shown, step_into, suggestion

Possible = Mapping[str, tuple[OptionValue | None, ...]]
"""Option -> the values it can have in some config; None stands for "the engine decides"."""

_TYPE_WORDS = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text"}


def domain(spec: OptionSpec) -> str:
    """Say in words which values `spec` accepts."""
    if spec.choices:
        return f"one of {', '.join(map(shown, spec.choices))}"
    words = _TYPE_WORDS[spec.type]
    return f"{words} from {spec.range[0]:.15g} to {spec.range[1]:.15g}" if spec.range else words


def accepted(spec: OptionSpec, raw: object) -> OptionValue | None:
    """Return `raw` as a value of `spec` (a whole number becomes a float where it must), or None if it is none."""
    if not isinstance(raw, bool | int | float | str):
        return None
    if spec.choices:
        return next((choice for choice in spec.choices if same_value(choice, raw)), None)
    if isinstance(raw, bool) or spec.type == "bool":
        return raw if isinstance(raw, bool) and spec.type == "bool" else None
    if isinstance(raw, str) or spec.type == "str":
        return raw if isinstance(raw, str) and spec.type == "str" else None
    return _accepted_number(spec, raw)


def _accepted_number(spec: OptionSpec, raw: float) -> float | None:
    sane = abs(raw) < 2**63 if isinstance(raw, int) else math.isfinite(raw)
    low, high = spec.range or (-math.inf, math.inf)
    if not sane or not low <= raw <= high or (spec.type == "int" and not isinstance(raw, int)):
        return None
    return float(raw) if spec.type == "float" else raw


def read_values(
    raw: Mapping[str, Any], path: str, specs: Mapping[str, OptionSpec], mistakes: Mistakes, *, what: str
) -> dict[str, OptionValue]:
    """Return the right values of the table `raw`, sorted by name; unknown names and wrong values are mistakes.

    `what` names the table in messages ("an option of llamacpp").
    """
    right: dict[str, OptionValue] = {}
    for name in sorted(raw):
        place = step_into(path, name)
        if name not in specs:
            mistakes.add(place, f"is not {what}", suggestion(name, specs))
            continue
        value = accepted(specs[name], raw[name])
        if value is None:
            mistakes.add(place, f"{shown(raw[name])} is not accepted", f"must be {domain(specs[name])}")
        else:
            right[name] = value
    return right


def unmet(spec: OptionSpec, value: OptionValue | None, possible: Possible) -> str:
    """Say which condition of `spec` no config can meet while it has `value`, or "" if all can be met.

    An option at its default has no conditions; an option that the engine decides may turn out right.
    """
    if value is None or (spec.default is not None and same_value(value, spec.default)):
        return ""
    for other, wanted in spec.requires.items():
        have = possible.get(other, (None,))
        if not any(one is None or _is_among(one, wanted) for one in have):
            return f"needs {other} = {' or '.join(map(shown, wanted))}, which is {_among_words(have)} here"
    return ""


def _is_among(value: OptionValue, wanted: Iterable[OptionValue]) -> bool:
    return any(same_value(value, one) for one in wanted)


def _among_words(have: Iterable[OptionValue | None]) -> str:
    return " or ".join(shown(one) for one in have)
