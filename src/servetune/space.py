"""Configs as points of a search space: names, neighbours and the conditions between options.

Pure. Knows catalogues and configs as values; knows no engine and nothing that was measured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable

import msgspec

from servetune.records import Catalogue, Config, EngineSpec, OptionValue, Record, Study, Variant

Key = Hashable
"""Identity of a config inside one process; cheaper than its fingerprint."""


class Stage(Record, frozen=True, kw_only=True):
    """One axis of an engine, to be varied in one step of a staged search."""

    option: str
    family: str
    values: tuple[OptionValue, ...]


def key(config: Config) -> Key:
    """Return a value that is equal for equal configs."""
    return config.engine, config.variant, tuple(sorted(config.options.items()))


def fingerprint(config: Config) -> str:
    """Return 12 hex digits that name `config`; the order of its options does not matter."""
    parts = [config.engine, config.variant, sorted(config.options.items())]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:12]


def label(config: Config) -> str:
    """Return `config` in words, like `llamacpp Q4_0 threads=2`."""
    options = (f"{name}={_shown(value)}" for name, value in sorted(config.options.items()))
    return " ".join(part for part in (config.engine, config.variant, *options) if part)


def _shown(value: OptionValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def without_fixed(config: Config, engines: Iterable[EngineSpec]) -> Config:
    """Return `config` without the options that its engine table fixes for every config; axes stay."""
    spec = next((spec for spec in engines if spec.name == config.engine), None)
    if spec is None:
        return config
    varied = {axis.option for axis in spec.axes}
    kept = {
        name: value
        for name, value in config.options.items()
        if name in varied or name not in spec.options or not same_value(value, spec.options[name])
    }
    return Config(engine=config.engine, variant=config.variant, options=kept)


def same_value(one: OptionValue | None, other: OptionValue | None) -> bool:
    """Tell whether both are the same value of an option; 1 and true are not."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def engine_defaults(spec: EngineSpec, variant: str = "") -> Config:
    """Return the config of `spec` with nothing set but the options that the study fixes."""
    return Config(engine=spec.name, variant=variant, options=dict(sorted(spec.options.items())))


def with_option(config: Config, option: str, value: OptionValue, *, default: OptionValue | None = None) -> Config:
    """Return `config` with one option changed; a value equal to the engine's `default` is left out."""
    options = {name: kept for name, kept in config.options.items() if name != option}
    if default is None or not same_value(value, default):
        options[option] = value
    return msgspec.structs.replace(config, options=dict(sorted(options.items())))


def value_of(config: Config, option: str, catalogue: Catalogue) -> OptionValue | None:
    """Return the value that `config` gives `option`, or the engine's default; None if only the engine knows it."""
    if option in config.options:
        return config.options[option]
    spec = catalogue.options.get(option)
    return spec.default if spec else None


def forbidden(config: Config, catalogue: Catalogue) -> str | None:
    """Return why the engine would refuse `config`, or None; a condition on a value that nobody knows is met."""
    for option, value in sorted(config.options.items()):
        spec = catalogue.options.get(option)
        if spec is None or same_value(value, spec.default):
            continue
        for other, accepted in spec.requires.items():
            found = value_of(config, other, catalogue)
            if found is not None and not any(same_value(found, choice) for choice in accepted):
                wanted = " or ".join(map(_shown, accepted))
                return f"{option}={_shown(value)} needs {other}={wanted}, which is {_shown(found)}"
    return None


def variants(spec: EngineSpec) -> tuple[Variant, ...]:
    """Return the variants of `spec`; one without a name, the study's model as it is, when it lists none."""
    return spec.variants or (Variant(name=""),)


def starting_configs(study: Study) -> tuple[Config, ...]:
    """Return the baseline, then every other engine and variant of `study` at its defaults, in the study's order."""
    found = [study.baseline]
    for spec in study.engines:
        for variant in variants(spec):
            config = engine_defaults(spec, variant.name)
            if key(config) not in map(key, found):
                found.append(config)
    return tuple(found)


def stages(spec: EngineSpec, catalogue: Catalogue) -> tuple[Stage, ...]:
    """Return the axes of `spec`, those of one option family together, families in the order of their first axis."""
    found = []
    for axis in spec.axes:
        option = catalogue.options.get(axis.option)
        found.append(Stage(option=axis.option, family=option.family if option else "", values=axis.values))
    order = {stage.family: place for place, stage in reversed(list(enumerate(found)))}
    return tuple(sorted(found, key=lambda stage: order[stage.family]))


def neighbours(config: Config, stage: Stage, catalogue: Catalogue) -> tuple[Config, ...]:
    """Return `config` with the option of `stage` set to each value that it does not have already."""
    now = value_of(config, stage.option, catalogue)
    spec = catalogue.options.get(stage.option)
    default = spec.default if spec else None
    others = (value for value in stage.values if not same_value(value, now))
    return tuple(with_option(config, stage.option, value, default=default) for value in others)


def find_spec(engines: Iterable[EngineSpec], name: str) -> EngineSpec:
    """Return the engine table called `name`; raises LookupError if there is none."""
    for spec in engines:
        if spec.name == name:
            return spec
    raise LookupError(f"the study has no engine {name}")
