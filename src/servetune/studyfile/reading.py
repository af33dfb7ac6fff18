"""Reading one table against its keys, and collecting mistakes instead of stopping at the first.

Knows no table of the study file: those are data in schema.py.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from servetune.errors import StudyFileError, UserError
from servetune.records import Catalogue, OptionSpec, Record
from servetune.studyfile.schema import NAME_PATTERN, NAME_WORDS, Key, KeyType

_MOST_SHOWN = 12


Kinds = Mapping[str, Mapping[str, OptionSpec]]
"""Kind of workload -> its parameters."""


class Mistakes:
    """Mistakes of one study file, in the order in which they were found."""

    def __init__(self, file: str) -> None:
        """Collect for `file`, whose name begins every message."""
        self.file = file
        self.found: list[UserError] = []

    def add(self, path: str, problem: str, fix: str = "") -> None:
        """Note one mistake at `path` (like `$.engine[0].axes.threads`)."""
        self.found.append(UserError(f"{self.file} {path}", problem, fix))

    def stop(self) -> StudyFileError:
        """Return the error that carries them all."""
        return StudyFileError(self.file, self.found)


class Context(Record, frozen=True, kw_only=True):
    """What the reader needs to know beside the text."""

    mistakes: Mistakes
    folder: Path
    """Where relative paths start."""
    catalogues: Mapping[str, Catalogue]
    kinds: Kinds


def step_into(path: str, name: str) -> str:
    """Return the path of key `name` below `path`; names that TOML would quote are quoted."""
    return f"{path}.{name}" if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f"{path}.{shown(name)}"


def shown(value: object, *, longest: int = 60) -> str:
    """Return `value` as it would be written in the file; a text of more than `longest` characters is cut."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = value if len(value) <= longest else f"{value[: longest - 3]}..."
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value[:_MOST_SHOWN]))}{', ...' if len(value) > _MOST_SHOWN else ''}]"
    return "a table" if isinstance(value, dict) else str(value)


def suggestion(name: str, allowed: Collection[str]) -> str:
    """Say which of `allowed` was probably meant by `name`, and what is allowed."""
    plain = {option.lower().replace("-", "_"): option for option in allowed}
    near = difflib.get_close_matches(name.lower().replace("-", "_"), plain, n=1, cutoff=0.6)
    listed = ", ".join(list(allowed)[:_MOST_SHOWN]) + (", ..." if len(allowed) > _MOST_SHOWN else "")
    meant = f'did you mean "{plain[near[0]]}"? ' if near else ""
    return f"{meant}allowed: {listed}" if allowed else "none is allowed here"


def table_at(raw: object, path: str, mistakes: Mistakes) -> dict[str, Any] | None:
    """Return `raw` as a table, or None with a mistake."""
    if isinstance(raw, dict):
        return raw
    mistakes.add(path, f"{shown(raw)} is not a table", f"begin it with a line {_header(path)}")
    return None


def _header(path: str) -> str:
    """Return the line that begins the table at `path`."""
    name = re.sub(r"\[\d+\]", "", path.removeprefix("$."))
    return f"[[{name}]]" if path.endswith("]") else f"[{name}]"


def tables_at(raw: list[object], path: str, mistakes: Mistakes) -> list[tuple[str, dict[str, Any]]]:
    """Return each table of the list `raw` with its path; what is not a table is a mistake."""
    paths = [(f"{path}[{index}]", entry) for index, entry in enumerate(raw)]
    return [(place, table) for place, entry in paths if (table := table_at(entry, place, mistakes)) is not None]


def read_keys(table: Mapping[str, Any], path: str, keys: Sequence[Key], mistakes: Mistakes) -> dict[str, Any]:
    """Return the values of `keys` that are present and right; note the wrong ones and the missing ones."""
    right: dict[str, Any] = {}
    for key in keys:
        place = step_into(path, key.name)
        if key.name not in table:
            if key.required:
                mistakes.add(place, "is missing", key.doc.rstrip("."))
            continue
        problem, fix = _problem(key, table[key.name])
        if problem:
            mistakes.add(place, problem, fix or _table_hint(key, place))
        else:
            right[key.name] = float(table[key.name]) if key.type == "number" else table[key.name]
    return right


def _table_hint(key: Key, place: str) -> str:
    """Say how a table is begun, where one was expected."""
    headers: dict[KeyType, str] = {"table": _header(place), "list of tables": _header(f"{place}[0]")}
    return f"begin it with a line {headers[key.type]}" if key.type in headers else ""


def reject_unknown(table: Mapping[str, Any], path: str, allowed: Collection[str], mistakes: Mistakes) -> None:
    """Note each key of `table` that is not in `allowed`."""
    for name in table:
        if name not in allowed:
            mistakes.add(step_into(path, name), "is not a key of this table", suggestion(name, allowed))


_TYPES: dict[KeyType, tuple[type, ...]] = {
    "text": (str,),
    "whole number": (int,),
    "number": (int, float),
    "table": (dict,),
    "list of tables": (list,),
    "text or table": (str, dict),
}


def _problem(key: Key, value: object) -> tuple[str, str]:
    """Return what is wrong with `value` and what to write instead; ("", "") if nothing is."""
    said = "the value" if key.is_secret else shown(value)
    if not isinstance(value, _TYPES[key.type]) or isinstance(value, bool):
        return f"{said} is not a {key.type}", ""
    if isinstance(value, str):
        return _text_problem(key, value, said)
    if isinstance(value, int | float) and not _is_inside(key, value):
        words = key.bounds.words() if key.bounds else ""
        return f"{said} is out of range", f"must be {words or 'finite'}"
    return "", ""


def _is_inside(key: Key, value: float) -> bool:
    sane = abs(value) < 2**63 if isinstance(value, int) else math.isfinite(value)
    return sane and (key.bounds is None or key.bounds.accept(value))


def _text_problem(key: Key, value: str, said: str) -> tuple[str, str]:
    if not value.strip() and key.default != "":
        return "is empty", key.doc.rstrip(".")
    if key.choices and value not in key.choices:
        return f"{said} is not known", suggestion(value, key.choices)
    if key.is_name and not re.fullmatch(NAME_PATTERN, value):
        return f"{said} cannot be part of a file name", NAME_WORDS
    return "", ""
