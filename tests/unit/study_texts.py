"""A right study file, ways to spoil it, and small catalogues to read it against."""

from __future__ import annotations

from pathlib import Path

from servetune import studyfile
from servetune.errors import StudyFileError
from servetune.records import Catalogue, OptionSpec, Study


def _option(name: str, kind: str = "int", **more: object) -> OptionSpec:
    return OptionSpec(**{"name": name, "type": kind, "family": "batching", "doc": "for tests", **more})  # type: ignore[arg-type]


CATALOGUES = {
    "alpha": Catalogue(
        engine="alpha",
        options={
            "max_num_seqs": _option("max_num_seqs", default=32, range=(1, 1024)),
            "ratio": _option("ratio", "float", default=0.5, range=(0, 1)),
            "flash": _option("flash", "bool", default=False),
            "kv_type": _option(
                "kv_type", "choice", default="f16", choices=("f16", "q8_0"), requires={"flash": (True,)}
            ),
            "block": _option("block", "choice", default=16, choices=(1, 8, 16)),
            "label": _option("label", "str"),
            "threads": _option("threads", range=(1, 64)),
            "pinned": _option("pinned", "bool", default=False, requires={"threads": (1, 2)}),
            "rate": _option("rate", "float", applies="load"),
        },
    ),
    "beta": Catalogue(engine="beta", options={"depth": _option("depth", default=1)}),
    "remote": Catalogue(
        engine="remote", options={"concurrency": _option("concurrency", range=(1, 100), applies="load")}
    ),
}
KINDS = {
    "random": {
        "input_len": _option("input_len", default=1024, range=(1, 100_000), applies="load"),
        "output_len": _option("output_len", default=128, applies="load"),
    },
    "file": {"path": _option("path", "str", default="", applies="load")},
}

RIGHT = """\
[study]
name = "right"
model = "some/model"

[[engine]]
name = "alpha"

[[workload]]
name = "short"
kind = "random"
num_prompts = 10
"""


def read(text: str, folder: Path | None = None) -> Study:
    """Read a study file against the catalogues above."""
    return studyfile.parse(text, catalogues=CATALOGUES, kinds=KINDS, folder=folder)


def mistakes(text: str, folder: Path | None = None) -> list[str]:
    """Return the mistakes of a study file as a user sees them; [] if it is right."""
    try:
        read(text, folder)
    except StudyFileError as error:
        return [str(mistake) for mistake in error.mistakes]
    return []


def with_lines(table: str, *lines: str) -> str:
    """Return the right file with lines put right below the header `table`, or with that table at its end."""
    added = "\n".join(lines)
    if f"{table}\n" in RIGHT:
        return RIGHT.replace(f"{table}\n", f"{table}\n{added}\n", 1)
    return f"{RIGHT}{table}\n{added}\n"


def with_engine(*lines: str) -> str:
    """Return the right file with lines after the engine's name (tables of the engine included)."""
    return RIGHT.replace('name = "alpha"\n', 'name = "alpha"\n' + "\n".join(lines) + "\n", 1)
