"""Option catalogues: one TOML file an engine, checked and turned into records, and what a value of an option may be.

Knows the form of the files and nothing about any engine.
"""

from __future__ import annotations

import functools
from importlib import resources

import msgspec

from servetune.errors import HostProblem
from servetune.records import Catalogue, OptionSpec, OptionValue, Record


class _OptionTable(OptionSpec, frozen=True, kw_only=True):
    """One table of the file: the option's name is its key, so it is not repeated inside."""

    name: str = ""


class _CatalogueFile(Record, frozen=True, kw_only=True):
    """The whole file."""

    engine: str
    options: dict[str, _OptionTable]


@functools.cache
def load_catalogue(name: str) -> Catalogue:
    """Read and check the catalogue of engine `name`; raises HostProblem with every mistake of the file."""
    file = resources.files("servetune.engines").joinpath("options", f"{name}.toml")
    try:
        data = file.read_bytes()
    except FileNotFoundError as error:
        raise HostProblem(f"engine {name} has no option catalogue (engines/options/{name}.toml)") from error
    return parse_catalogue(data, engine=name)


def parse_catalogue(data: bytes, *, engine: str) -> Catalogue:
    """Turn the TOML text of a catalogue into a Catalogue; raises HostProblem with every mistake."""
    try:
        parsed = msgspec.toml.decode(data, type=_CatalogueFile)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise HostProblem(f"option catalogue of {engine}: {error}") from error
    options = {name: _named(name, table) for name, table in parsed.options.items()}
    mistakes = [f"{name}: {mistake}" for name, option in options.items() for mistake in _mistakes(option, options)]
    if parsed.engine != engine:
        mistakes.insert(0, f'engine = "{parsed.engine}" should be "{engine}"')
    if mistakes:
        raise HostProblem(f"option catalogue of {engine}:\n" + "\n".join(f"  {mistake}" for mistake in mistakes))
    return Catalogue(engine=engine, options=options)


def _named(name: str, table: _OptionTable) -> OptionSpec:
    fields = {field: getattr(table, field) for field in OptionSpec.__struct_fields__}
    return OptionSpec(**{**fields, "name": name})


def _mistakes(option: OptionSpec, options: dict[str, OptionSpec]) -> list[str]:
    """Return what is wrong with one option of a catalogue."""
    found = [f"{field} is empty" for field in ("doc", "family") if not getattr(option, field).strip()]
    if option.type == "choice" and not option.choices:
        found.append("type choice without choices")
    if option.range is not None and option.range[0] > option.range[1]:
        found.append("the range ends before it begins")
    if option.scale == "log2" and option.range is not None and option.range[0] < 0:
        found.append("scale log2 with a negative range")
    tried = [("default", option.default)] if option.default is not None else []
    tried += [("values", value) for value in option.values]
    found += [f"{field}: {problem}" for field, value in tried if (problem := value_error(option, value))]
    found += _requirement_mistakes(option, options)
    return found


def _requirement_mistakes(option: OptionSpec, options: dict[str, OptionSpec]) -> list[str]:
    found = []
    for other, accepted in option.requires.items():
        if other not in options:
            found.append(f"requires the unknown option {other}")
            continue
        problems = (value_error(options[other], value) for value in accepted)
        found += [f"requires {other}: {problem}" for problem in problems if problem]
    return found


def value_error(option: OptionSpec, value: OptionValue) -> str | None:
    """Return what is wrong with `value` for `option`, with what is allowed, or None if it is accepted."""
    if not _is_of_type(option, value):
        return f"{_shown(value)} is not {_TYPE_WORDS[option.type]}"
    if option.choices and not any(_same(value, choice) for choice in option.choices):
        return f"{_shown(value)} is not one of {', '.join(map(_shown, option.choices))}"
    if option.range is not None and not isinstance(value, str):
        low, high = option.range
        if not low <= value <= high:
            return f"{_shown(value)} is outside {low:g} to {high:g}"
    return None


_TYPE_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "choice": "one of the choices",
    "str": "a text",
}


def _is_of_type(option: OptionSpec, value: OptionValue) -> bool:
    is_number = not isinstance(value, bool | str)
    match option.type:
        case "bool":
            return isinstance(value, bool)
        case "int":
            return is_number and isinstance(value, int)
        case "float":
            return is_number
        case "str":
            return isinstance(value, str)
        case "choice":
            return True


def _same(value: OptionValue, choice: OptionValue) -> bool:
    """Tell whether both are the same value; 1 and true are not."""
    return isinstance(value, bool) == isinstance(choice, bool) and value == choice


def _shown(value: OptionValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def axis_values(option: OptionSpec) -> tuple[OptionValue, ...]:
    """Return the values worth trying when the user names none: `values`, else the choices, else both of a bool."""
    if option.values:
        return option.values
    if option.choices:
        return option.choices
    return (False, True) if option.type == "bool" else ()
