"""`servetune engines`: which engines are known and found on this machine, and what each option of one does."""

from __future__ import annotations

from collections.abc import Mapping

import click

from servetune import engines as known
from servetune.cli.console import print_json, say_heading, say_table
from servetune.records import Catalogue, EngineSpec, Installed, Missing, OptionSpec, OptionValue, Record


class EngineState(Record, frozen=True, kw_only=True):
    """Whether one engine can be used here."""

    engine: str
    found: Installed | None = None
    missing: Missing | None = None


class EngineOptions(Record, frozen=True, kw_only=True):
    """One engine with everything that can be set."""

    state: EngineState
    options: dict[str, OptionSpec]


_EPILOG = """\b
Examples:
  servetune engines                which engines are found, and what to do about the others
  servetune engines llamacpp       its options with flag, values, default and effect
"""


@click.command(epilog=_EPILOG)
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def engines(*, name: str | None, as_json: bool) -> None:
    """List the engines and whether they are found here, or every option of the engine NAME."""
    if name is None:
        states = engine_states()
        print_json(states) if as_json else say_states(states)
        return
    catalogue = known.get(name).catalogue()
    state = engine_state(EngineSpec(name=name))
    if as_json:
        print_json(EngineOptions(state=state, options=catalogue.options))
    else:
        _say_options(catalogue, state)


def engine_states() -> list[EngineState]:
    """Look for every known engine at its usual place."""
    return [engine_state(EngineSpec(name=name)) for name in known.ENGINES]


def engine_state(spec: EngineSpec) -> EngineState:
    """Look for one engine at the place that `spec` names, or its usual one."""
    answer = known.get(spec.name).find(spec)
    if isinstance(answer, Installed):
        return EngineState(engine=spec.name, found=answer)
    return EngineState(engine=spec.name, missing=answer)


def say_states(states: list[EngineState]) -> None:
    """Print one line for each engine."""
    say_table(("engine", "version", "how it is found, or what is missing"), [_row(state) for state in states])


def _row(state: EngineState) -> tuple[str, str, str]:
    if state.found:
        return state.engine, state.found.version or "-", state.found.how
    missing = state.missing
    return state.engine, "-", f"{missing.reason}: {missing.remedy}" if missing else ""


def _say_options(catalogue: Catalogue, state: EngineState) -> None:
    say_states([state])
    say_heading(f"options of {catalogue.engine}")
    rows = [
        (option.name, _flag(option), domain(option), _value(option.default), option.family, option.effect or option.doc)
        for option in by_family(catalogue.options)
    ]
    say_table(("option", "flag", "values", "default", "family", "effect"), rows)


def by_family(options: Mapping[str, OptionSpec]) -> list[OptionSpec]:
    """Return the options with those of one family side by side, families in the catalogue's order."""
    families = list(dict.fromkeys(option.family for option in options.values()))
    return sorted(options.values(), key=lambda option: families.index(option.family))


def domain(option: OptionSpec) -> str:
    """Say which values an option accepts."""
    if option.choices:
        return " | ".join(map(_value, option.choices))
    if option.range:
        return f"{option.type} {option.range[0]:.15g}..{option.range[1]:.15g}"
    return "true | false" if option.type == "bool" else option.type


def _flag(option: OptionSpec) -> str:
    return " / ".join(filter(None, (option.flag, option.off_flag, option.env))) or "-"


def _value(value: OptionValue | None) -> str:
    if value is None:
        return "by the engine"
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'
