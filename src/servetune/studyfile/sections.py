"""The tables [study], [objective], [limits], [budget] and [[workload]] of a study file.

Knows metrics by name and workload kinds as values.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from servetune.metrics import METRICS
from servetune.records import Budget, Config, EngineSpec, Limits, Load, Objective, OptionValue, WorkloadSpec
from servetune.space import same_value
from servetune.studyfile.options import Possible, read_values, unmet
from servetune.studyfile.paths import data_file, weights
from servetune.studyfile.reading import (
    Context,
    Mistakes,
    read_keys,
    reject_unknown,
    shown,
    step_into,
    suggestion,
    table_at,
    tables_at,
)
from servetune.studyfile.schema import (
    BASELINE,
    BUDGET,
    BUDGET_UNITS_S,
    LIMITS,
    LOAD_KEYS,
    OBJECTIVE,
    STUDY,
    WORKLOAD,
    Table,
)

_STATISTICS = ("mean", "median", "p90", "p95", "p99", "max")


def _read(raw: object, path: str, table: Table, mistakes: Mistakes) -> dict[str, Any]:
    """Return the right values of a table whose keys are all known beforehand."""
    found = table_at(raw, path, mistakes)
    if found is None:
        return {}
    reject_unknown(found, path, [key.name for key in table.keys], mistakes)
    return read_keys(found, path, table.keys, mistakes)


def read_study(raw: object, context: Context) -> dict[str, Any]:
    """Return the values of [study]; its baseline is still as it was written."""
    values = _read(raw, "$.study", STUDY, context.mistakes)
    for name in ("model", "tokenizer"):
        if name in values:
            values[name] = weights(values[name], f"$.study.{name}", context)
    return values


def read_objective(raw: object, workloads: Sequence[str], mistakes: Mistakes) -> Objective:
    """Return the objective; `workloads` are the names that `on` may have, the first one is its default."""
    values = _read(raw, "$.objective", OBJECTIVE, mistakes)
    if isinstance(raw, dict) and "maximize" in raw and "minimize" in raw:
        mistakes.add("$.objective.minimize", "cannot stand beside maximize", "keep one of the two")
    on = values.get("on", workloads[0] if workloads else "")
    if workloads and on not in workloads:
        mistakes.add("$.objective.on", f"there is no workload {shown(on)}", suggestion(on, workloads))
    goal: Literal["maximize", "minimize"] = "minimize" if "minimize" in values else "maximize"
    for key, better, other in (("maximize", "higher", "minimize"), ("minimize", "lower", "maximize")):
        if key in values and METRICS[values[key]].better != better:
            mistakes.add(f"$.objective.{key}", f"{values[key]} is better the other way round", f"write {other} = ...")
    rest = {name: values[name] for name in ("min_gain", "confidence") if name in values}
    metric = {"metric": values[goal]} if goal in values else {}
    return Objective(goal=goal, on=on, **metric, **rest)


def read_limits(raw: object, mistakes: Mistakes) -> Limits:
    """Return the limits; two bounds of one latency that cannot both mean something are a mistake."""
    values = _read(raw, "$.limits", LIMITS, mistakes)
    bounds = {name: value for name, value in values.items() if name in METRICS}
    for lower, upper in _ordered_pairs(bounds):
        if bounds[upper] < bounds[lower]:
            mistakes.add(
                f"$.limits.{upper}",
                f"{bounds[upper]:.15g} conflicts with {lower} = {bounds[lower]:.15g}",
                f"{upper} is never the smaller one, so {lower} would limit nothing",
            )
    return Limits(bounds=bounds, **{name: values[name] for name in ("max_loss",) if name in values})


def _ordered_pairs(bounds: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the pairs of limited metrics of which the second one is always the larger one.

    A mean is compared with the 99th percentile and the maximum only; it may lie above the 90th.
    """
    pairs = [("mean", "p99"), ("mean", "max"), *itertools.combinations(_STATISTICS[1:], 2)]
    latencies = {name.split("_", 1)[1] for name in bounds if name.split("_", 1)[0] in _STATISTICS}
    named = [(f"{low}_{latency}", f"{high}_{latency}") for latency in sorted(latencies) for low, high in pairs]
    return [(low, high) for low, high in named if low in bounds and high in bounds]


def read_budget(raw: object, mistakes: Mistakes) -> Budget:
    """Return the budget; its time is given in one unit."""
    values = _read(raw, "$.budget", BUDGET, mistakes)
    given = [unit for unit in BUDGET_UNITS_S if isinstance(raw, dict) and unit in raw]
    for unit in given[1:]:
        mistakes.add(f"$.budget.{unit}", f"cannot stand beside {given[0]}", "keep one of them")
    time = {}
    if given and given[0] in values:
        time["seconds"] = values[given[0]] * BUDGET_UNITS_S[given[0]]
    rest = {name: value for name, value in values.items() if name not in BUDGET_UNITS_S}
    return Budget(**time, **rest)


def read_workloads(raw: list[object], context: Context) -> tuple[WorkloadSpec, ...]:
    """Return the workloads that could be read, even those with mistakes inside."""
    workloads: list[WorkloadSpec] = []
    for path, table in tables_at(raw, "$.workload", context.mistakes):
        spec = _workload(table, path, context)
        if spec.name and any(spec.name == other.name for other in workloads):
            context.mistakes.add(f"{path}.name", f"{shown(spec.name)} is the name of an earlier workload")
        workloads.append(spec)
    return tuple(workloads)


def _workload(table: Mapping[str, Any], path: str, context: Context) -> WorkloadSpec:
    mistakes = context.mistakes
    values = read_keys(table, path, WORKLOAD.keys, mistakes)
    own = tuple(key.name for key in WORKLOAD.keys)
    kind = values.get("kind", "")
    params: dict[str, OptionValue] = {}
    if kind in context.kinds:
        specs = context.kinds[kind]
        reject_unknown(table, path, [*own, *specs], mistakes)
        raw = {name: value for name, value in table.items() if name in specs and name not in own}
        params = read_values(raw, path, specs, mistakes, what=f"a parameter of {kind}")
    elif kind:
        mistakes.add(f"{path}.kind", f"there is no workload {shown(kind)}", suggestion(kind, list(context.kinds)))
    if isinstance(params.get("path"), str):
        params["path"] = data_file(str(params["path"]), f"{path}.path", context)
    load = Load(**{key.name: values[key.name] for key in LOAD_KEYS if key.name in values})
    rest = {name: values[name] for name in ("seed",) if name in values}
    return WorkloadSpec(
        name=values.get("name", ""),
        kind=kind,
        num_prompts=values.get("num_prompts", 1),
        params=params,
        load=load,
        **rest,
    )


def read_baseline(raw: object, engines: Sequence[EngineSpec], context: Context) -> Config:
    """Return the baseline; without one it is the first engine as the study fixes it."""
    names = list(dict.fromkeys(engine.name for engine in engines))
    if raw is None and not names:
        return Config(engine="")
    values = {"engine": names[0]} if raw is None else _baseline_values(raw, context.mistakes)
    engine = next((engine for engine in engines if engine.name == values.get("engine")), None)
    if engine is None:
        if "engine" in values and names:
            place = "$.study.baseline.engine" if isinstance(raw, dict) else "$.study.baseline"
            fix = suggestion(values["engine"], names)
            context.mistakes.add(place, f"there is no engine {shown(values['engine'])} in this study", fix)
        return Config(engine="")
    return _baseline_config(values, engine, context)


def _baseline_values(raw: object, mistakes: Mistakes) -> dict[str, Any]:
    return {"engine": raw} if isinstance(raw, str) else _read(raw, "$.study.baseline", BASELINE, mistakes)


def _baseline_config(values: Mapping[str, Any], engine: EngineSpec, context: Context) -> Config:
    path, mistakes = "$.study.baseline", context.mistakes
    variants = [variant.name for variant in engine.variants]
    variant = values.get("variant", variants[0] if variants else "")
    if variant and variant not in variants:
        fix = suggestion(variant, variants)
        mistakes.add(f"{path}.variant", f"there is no variant {shown(variant)} of {engine.name}", fix)
    catalogue = context.catalogues.get(engine.name)
    own: dict[str, OptionValue] = {}
    if catalogue is not None:
        what = f"an option of {engine.name}"
        own = read_values(values.get("options", {}), f"{path}.options", catalogue.options, mistakes, what=what)
        chosen = {**engine.options, **own}
        possible: Possible = {name: (chosen.get(name, spec.default),) for name, spec in catalogue.options.items()}
        for name, value in own.items():
            if words := unmet(catalogue.options[name], value, possible):
                mistakes.add(step_into(f"{path}.options", name), f"{shown(value)} {words}")
        own = {
            name: value
            for name, value in own.items()
            if _tells(value, engine.options.get(name), catalogue.options[name].default)
        }
    return Config(engine=engine.name, variant=variant, options=dict(sorted({**engine.options, **own}.items())))


def _tells(value: OptionValue, fixed: OptionValue | None, default: OptionValue | None) -> bool:
    """Tell whether an option of the baseline says something that is not so without it."""
    stands = default if fixed is None else fixed
    return stands is None or not same_value(value, stands)
