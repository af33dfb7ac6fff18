"""The [[engine]] tables: options that are set, axes to vary, variants of the weights.

Knows option catalogues as values and no engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from servetune.records import Axis, Catalogue, EngineSpec, OptionSpec, OptionValue, Variant
from servetune.space import same_value
from servetune.studyfile.options import Possible, accepted, domain, read_values, unmet
from servetune.studyfile.paths import program, weights
from servetune.studyfile.reading import (
    Context,
    Mistakes,
    read_keys,
    reject_unknown,
    shown,
    step_into,
    suggestion,
    tables_at,
)
from servetune.studyfile.schema import ENGINE, VARIANT

_SCALARS = ("name", "command", "python", "url", "ready_timeout_s")


def read_engines(raw: list[object], context: Context) -> tuple[EngineSpec, ...]:
    """Return the engines that could be read, even those with mistakes inside, so that other tables can name them."""
    engines: list[EngineSpec] = []
    for path, table in tables_at(raw, "$.engine", context.mistakes):
        spec = _engine(table, path, context)
        if any(spec.name == other.name for other in engines):
            context.mistakes.add(f"{path}.name", f"{shown(spec.name)} is named twice", "put its axes into one table")
        if spec.name:
            engines.append(spec)
    return tuple(engines)


def is_reached(catalogue: Catalogue) -> bool:
    """Tell whether the engine is a server that already runs: only its load has options."""
    return all(option.applies == "load" for option in catalogue.options.values())


def _check_url(url: str | None, path: str, catalogue: Catalogue | None, mistakes: Mistakes) -> None:
    """Note a missing or malformed address; the address itself is not repeated, since it may hold a key."""
    if catalogue is None:
        return
    if is_reached(catalogue) and url is None:
        mistakes.add(f"{path}.url", "is missing", 'the address of the server, like "http://127.0.0.1:8000"')
    if not is_reached(catalogue) and url is not None:
        mistakes.add(
            f"{path}.url", f"cannot be given for {catalogue.engine}, which is started", 'use name = "endpoint"'
        )
    elif url is not None and not re.match(r"https?://[^/\s]+", url):
        mistakes.add(f"{path}.url", "is not an address of a server", 'like "http://127.0.0.1:8000"')


def _engine(table: Mapping[str, Any], path: str, context: Context) -> EngineSpec:
    mistakes = context.mistakes
    reject_unknown(table, path, [key.name for key in ENGINE.keys], mistakes)
    values = read_keys(table, path, ENGINE.keys, mistakes)
    name = values.get("name", "")
    if name and name not in context.catalogues:
        mistakes.add(f"{path}.name", f"there is no engine {shown(name)}", suggestion(name, list(context.catalogues)))
    catalogue = context.catalogues.get(name)
    _check_url(values.get("url"), path, catalogue, mistakes)
    options, axes = _settings(values, path, catalogue, mistakes)
    scalars = {key: values[key] for key in _SCALARS if key in values and key != "name"}
    for key in ("command", "python"):
        if key in scalars:
            scalars[key] = program(scalars[key], context.folder)
    return EngineSpec(
        name=name,
        options=options,
        axes=axes,
        variants=_variants(values.get("variant", []), path, context),
        env=_env(values.get("env", {}), path, mistakes),
        **scalars,
    )


def _settings(
    values: Mapping[str, Any], path: str, catalogue: Catalogue | None, mistakes: Mistakes
) -> tuple[dict[str, OptionValue], tuple[Axis, ...]]:
    """Return set options and axes; nothing is checked for an engine without a catalogue."""
    if catalogue is None:
        return {}, ()
    what = f"an option of {catalogue.engine}"
    raw_options, raw_axes = values.get("options", {}), values.get("axes", {})
    fixed = read_values(raw_options, f"{path}.options", catalogue.options, mistakes, what=what)
    axes = [
        axis
        for name in raw_axes
        if (axis := _axis(name, raw_axes[name], f"{path}.axes", catalogue, mistakes)) is not None
    ]
    for axis in axes:
        start = fixed.get(axis.option)
        if start is not None and not any(same_value(start, value) for value in axis.values):
            fix = f"add it to the axis, or remove it from {path}.options"
            problem = f"does not hold {shown(start)}, the value that {path}.options starts from"
            mistakes.add(step_into(f"{path}.axes", axis.option), problem, fix)
    _check_conditions(fixed, axes, path, catalogue, mistakes)
    return fixed, tuple(axes)


def _axis(name: str, raw: object, path: str, catalogue: Catalogue, mistakes: Mistakes) -> Axis | None:
    place = step_into(path, name)
    spec = catalogue.options.get(name)
    if spec is None:
        mistakes.add(place, f"is not an option of {catalogue.engine}", suggestion(name, list(catalogue.options)))
        return None
    if spec.applies == "load" and not is_reached(catalogue):
        mistakes.add(place, "is set by the load, not by the launch", "give it as a key of the [[workload]] table")
        return None
    if not isinstance(raw, list):
        mistakes.add(place, f"{shown(raw)} is not a list", f"list the values to try, each {domain(spec)}")
        return None
    return _axis_of(spec, raw, place, mistakes)


def _axis_of(spec: OptionSpec, raw: list[object], place: str, mistakes: Mistakes) -> Axis | None:
    before = len(mistakes.found)
    values: list[OptionValue] = []
    for index, entry in enumerate(raw):
        value = accepted(spec, entry)
        if value is None:
            mistakes.add(f"{place}[{index}]", f"{shown(entry)} is not accepted", f"must be {domain(spec)}")
        elif any(same_value(value, other) for other in values):
            mistakes.add(f"{place}[{index}]", f"{shown(value)} is listed twice")
        else:
            values.append(value)
    if len(raw) < 2:
        mistakes.add(place, f"has {len(raw)} of at least 2 values", "a single value belongs into options")
    return Axis(option=spec.name, values=tuple(values)) if len(mistakes.found) == before else None


def _check_conditions(
    fixed: Mapping[str, OptionValue], axes: list[Axis], path: str, catalogue: Catalogue, mistakes: Mistakes
) -> None:
    """Note each fixed value and each value of an axis that no config of this engine can have."""
    possible = _possible(fixed, axes, catalogue)
    for name, value in fixed.items():
        if words := unmet(catalogue.options[name], value, possible):
            mistakes.add(step_into(f"{path}.options", name), f"{shown(value)} {words}")
    for axis in axes:
        for index, value in enumerate(axis.values):
            if words := unmet(catalogue.options[axis.option], value, possible):
                mistakes.add(f"{step_into(f'{path}.axes', axis.option)}[{index}]", f"{shown(value)} {words}")


def _possible(fixed: Mapping[str, OptionValue], axes: list[Axis], catalogue: Catalogue) -> Possible:
    possible: dict[str, tuple[OptionValue | None, ...]] = {
        name: (fixed.get(name, spec.default),) for name, spec in catalogue.options.items()
    }
    for axis in axes:
        possible[axis.option] = (*possible[axis.option], *axis.values)
    return possible


def _variants(raw: list[object], path: str, context: Context) -> tuple[Variant, ...]:
    mistakes = context.mistakes
    variants: list[Variant] = []
    for place, table in tables_at(raw, f"{path}.variant", mistakes):
        reject_unknown(table, place, [key.name for key in VARIANT.keys], mistakes)
        values = read_keys(table, place, VARIANT.keys, mistakes)
        if "model" in table and "quantize" in table:
            mistakes.add(f"{place}.quantize", "cannot stand beside model", "quantize works on the study's model only")
        if "model" in values:
            values["model"] = weights(values["model"], f"{place}.model", context)
        if any(values.get("name") == other.name for other in variants):
            mistakes.add(f"{place}.name", f"{shown(values['name'])} is the name of an earlier variant")
        if "name" in values:
            variants.append(Variant(**values))
    return tuple(variants)


def _env(raw: Mapping[str, Any], path: str, mistakes: Mistakes) -> dict[str, str]:
    """Return the environment; a value is never repeated in a message, since it may be a secret."""
    for name, value in raw.items():
        place = step_into(f"{path}.env", name)
        if not isinstance(value, str):
            mistakes.add(place, "the value is not a text", "put it in quotes")
        elif "\0" in value:
            mistakes.add(place, "the value holds a zero byte, which no environment can")
        if not name or "=" in name or "\0" in name:
            mistakes.add(place, "cannot be the name of an environment variable")
    return {name: value for name, value in raw.items() if isinstance(value, str)}
