"""From a Study to the text of a study file that loads back to the same Study.

Pure. Absent and default values are left out, so that the file says what was chosen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from servetune.records import Config, EngineSpec, Load, Objective, OptionValue, Study, WorkloadSpec
from servetune.studyfile.schema import BUDGET_UNITS_S, LOAD_KEYS, STUDY

_Value = OptionValue | Sequence[OptionValue]


def dump(study: Study) -> str:
    """Return `study` as the TOML text of a study file.

    Environment values are written as they are: who may read the file may read them.
    """
    sections = [_study(study), _objective(study.objective), _limits(study), _budget(study)]
    sections += [part for spec in study.engines for part in _engine(spec)]
    sections += [_workload(spec) for spec in study.workloads]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def toml_key(name: str) -> str:
    """Return `name` as a TOML key, quoted if it must be."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def toml_value(value: _Value) -> str:
    """Return `value` as TOML text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    return f"[{', '.join(map(toml_value, value))}]"


def _lines(values: Mapping[str, _Value | None]) -> Iterator[str]:
    for name, value in values.items():
        if value is not None:
            yield f"{toml_key(name)} = {toml_value(value)}"


def _table(header: str, values: Mapping[str, _Value | None]) -> list[str]:
    lines = list(_lines(values))
    return [header, *lines] if lines else []


def _study(study: Study) -> list[str]:
    defaults = {key.name: key.default for key in STUDY.keys}
    optional = {
        name: getattr(study, name)
        for name in ("definitions", "quality", "tokenizer", "search", "seed")
        if getattr(study, name) != defaults[name]
    }
    lines = ["[study]", *_lines({"name": study.name, "model": study.model or None})]
    return [*lines, f"baseline = {_baseline(study)}", *_lines(optional)]


def _baseline(study: Study) -> str:
    baseline = study.baseline
    own = _own_options(baseline, study.engines)
    first = next(
        (spec.variants[0].name for spec in study.engines if spec.name == baseline.engine and spec.variants), ""
    )
    if baseline.variant == first and not own:
        return toml_value(baseline.engine)
    parts = list(_lines({"engine": baseline.engine, "variant": baseline.variant or None}))
    if own:
        parts.append(f"options = {{ {', '.join(_lines(own))} }}")
    return f"{{ {', '.join(parts)} }}"


def _own_options(baseline: Config, engines: Sequence[EngineSpec]) -> dict[str, OptionValue]:
    """Return the options of the baseline that its engine does not fix anyway."""
    fixed = next((spec.options for spec in engines if spec.name == baseline.engine), {})
    return {name: value for name, value in baseline.options.items() if name not in fixed or fixed[name] != value}


def _objective(objective: Objective) -> list[str]:
    values = {objective.goal: objective.metric, "on": objective.on or None}
    return _table("[objective]", {**values, "min_gain": objective.min_gain, "confidence": objective.confidence})


def _limits(study: Study) -> list[str]:
    return _table("[limits]", {**study.limits.bounds, "max_loss": study.limits.max_loss})


def _budget(study: Study) -> list[str]:
    budget = study.budget
    unit = next(unit for unit, size_s in BUDGET_UNITS_S.items() if budget.seconds % size_s == 0 or unit == "seconds")
    amount = budget.seconds if budget.seconds % 1 else int(budget.seconds) // int(BUDGET_UNITS_S[unit])
    rest = {"max_repeats": budget.max_repeats, "max_configs": budget.max_configs}
    return _table("[budget]", {unit: amount, **rest, "runs_per_launch": budget.runs_per_launch})


def _engine(spec: EngineSpec) -> Iterator[list[str]]:
    start = {"name": spec.name, "command": spec.command, "python": spec.python, "url": spec.url}
    yield _table("[[engine]]", {**start, "ready_timeout_s": spec.ready_timeout_s})
    yield _table("[engine.options]", spec.options)
    yield _table("[engine.axes]", {axis.option: axis.values for axis in spec.axes})
    yield _table("[engine.env]", spec.env)
    for variant in spec.variants:
        form = {"name": variant.name, "model": variant.model, "quantize": variant.quantize}
        yield _table("[[engine.variant]]", {**form, "note": variant.note or None})


def _workload(spec: WorkloadSpec) -> list[str]:
    what: dict[str, _Value | None] = {
        "name": spec.name,
        "kind": spec.kind,
        "num_prompts": spec.num_prompts,
        "seed": spec.seed,
    }
    return _table("[[workload]]", {**what, **spec.params, **_changed(spec.load)})


def _changed(load: Load) -> dict[str, OptionValue]:
    return {key.name: getattr(load, key.name) for key in LOAD_KEYS if getattr(load, key.name) != key.default}
