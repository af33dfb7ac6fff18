"""From the text of a study file to a Study: reads every table, then either all is right or every mistake is told.

Knows no engine and no workload: catalogues and kinds come in as values.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servetune.errors import StudyFileError, UserError
from servetune.records import Catalogue, Study
from servetune.studyfile.engines import read_engines
from servetune.studyfile.reading import Context, Kinds, Mistakes, read_keys, reject_unknown
from servetune.studyfile.schema import ROOT, STUDY
from servetune.studyfile.sections import (
    read_baseline,
    read_budget,
    read_limits,
    read_objective,
    read_study,
    read_workloads,
)

LARGEST_BYTES = 1 << 20
"""A study file of more than 1 MiB is taken for something else."""


def load(path: Path, *, catalogues: Mapping[str, Catalogue], kinds: Kinds) -> Study:
    """Read the study file `path`.

    `catalogues` are the engines that a study may name, `kinds` the workloads with their parameters. Raises
    UserError if there is no such file or it is no text, StudyFileError with every mistake inside.
    """
    return parse(_text(path), catalogues=catalogues, kinds=kinds, file=str(path), folder=path.absolute().parent)


def parse(
    text: str,
    *,
    catalogues: Mapping[str, Catalogue],
    kinds: Kinds,
    file: str = "study.toml",
    folder: Path | None = None,
) -> Study:
    """Return the study that `text` describes; raises StudyFileError with every mistake.

    `file` names it in messages; relative paths inside start at `folder` (the working directory if None).
    """
    mistakes = Mistakes(file)
    context = Context(mistakes=mistakes, folder=folder or Path.cwd(), catalogues=catalogues, kinds=kinds)
    study = _study(_toml(text, mistakes), context)
    if study is None or mistakes.found:
        raise mistakes.stop()
    return study


def _text(path: Path) -> str:
    """Return the file's text; raises UserError that says what is there instead."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except FileNotFoundError as error:
        raise UserError(str(path), "there is no such file", "give the path of a study file (*.toml)") from error
    except IsADirectoryError as error:
        raise UserError(str(path), "is a folder", "give the study file inside it") from error
    except (OSError, ValueError) as error:
        raise UserError(str(path), f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > LARGEST_BYTES:
        raise UserError(str(path), "is larger than 1 MiB", "is it a study file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(str(path), f"is not UTF-8 text (line {line})", "save it as UTF-8") from error


def _toml(text: str, mistakes: Mistakes) -> dict[str, Any]:
    """Return the tables of `text`; what is not TOML ends the reading at once, since nothing after it is sure."""
    if not text.strip():
        raise StudyFileError(mistakes.file, [UserError(mistakes.file, "is empty", "docs/study-file.md has an example")])
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise StudyFileError(mistakes.file, [UserError(mistakes.file, "is nested too deeply")]) from error
    except ValueError as error:
        problem = f"is not valid TOML: {error}"
        raise StudyFileError(mistakes.file, [UserError(mistakes.file, problem)]) from error


def _study(data: Mapping[str, Any], context: Context) -> Study | None:
    mistakes = context.mistakes
    reject_unknown(data, "$", [key.name for key in ROOT.keys], mistakes)
    tables = read_keys(data, "$", ROOT.keys, mistakes)
    for name in ("engine", "workload"):
        if tables.get(name) == []:
            mistakes.add(f"$.{name}", "is empty", f"begin one with a line [[{name}]]")
    values = read_study(tables["study"], context) if "study" in tables else {}
    engines = read_engines(tables.get("engine", []), context)
    workloads = read_workloads(tables.get("workload", []), context)
    workload_names = list(dict.fromkeys(spec.name for spec in workloads if spec.name))
    parts: dict[str, Any] = {
        "baseline": read_baseline(values.pop("baseline", None), engines, context),
        "objective": read_objective(tables.get("objective", {}), workload_names, mistakes),
        "limits": read_limits(tables.get("limits", {}), mistakes),
        "budget": read_budget(tables.get("budget", {}), mistakes),
    }
    is_served = bool(engines) and all(spec.url for spec in engines)
    if "study" in tables and "model" not in tables["study"] and not is_served:
        mistakes.add("$.study.model", "is missing", STUDY.key("model").doc.rstrip("."))
    if mistakes.found:
        return None
    return Study(engines=engines, workloads=workloads, **{"model": "", **values}, **parts)
