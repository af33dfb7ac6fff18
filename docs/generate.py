"""Write the generated references: docs/study-file.md and docs/cli.md. With --check, fail if one is out of date."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from servetune import workloads
from servetune.cli.bench_paste import FOREIGN
from servetune.cli.engines import domain
from servetune.cli.main import COMMANDS, EXIT_CODES, servetune
from servetune.records import OptionSpec
from servetune.studyfile.schema import ROOT, TABLES, Key
from servetune.studyfile.writing import toml_value

DOCS = Path(__file__).parent
EXAMPLE = DOCS / "examples" / "llamacpp.toml"
NOTICE = "<!-- Written by docs/generate.py (make docs) from the program itself. Do not edit. -->\n"
INTRODUCTION = """\
A study file asks one question: which of these engines, variants and options serves this model best? It is TOML, in
UTF-8. `servetune plan STUDY.toml` checks it and shows what it would do; `servetune tune STUDY.toml` runs it. Every
mistake is told at once, with its path. Relative paths start at the file's folder.
"""


def pages() -> dict[Path, str]:
    """Return every generated page with its text."""
    return {DOCS / "study-file.md": study_file_page(), DOCS / "cli.md": cli_page()}


# --------------------------------------------------------------------------- study file


def study_file_page() -> str:
    """Return the reference of the study file."""
    parts = [
        NOTICE,
        "# The study file\n",
        INTRODUCTION,
        f"## A complete example\n\n```toml\n{EXAMPLE.read_text()}```\n",
        f"## Tables\n\n{ROOT.doc}\n",
        key_table(ROOT.keys),
        *(f"## `{table.header}`\n\n{table.doc}\n\n{key_table(table.keys)}" for table in TABLES),
        workload_kinds(),
    ]
    return "\n".join(parts)


def key_table(keys: Sequence[Key]) -> str:
    """Return the keys of one table as a Markdown table."""
    rows = [(f"`{key.name}`", _type(key), _default(key), key.doc) for key in keys]
    return markdown_table(("key", "type", "default", "meaning"), rows)


def _type(key: Key) -> str:
    if 0 < len(key.choices) <= 8:
        return ", ".join(f"`{choice}`" for choice in key.choices)
    if key.choices:
        return "name of a metric (see `[limits]`)"
    words = key.bounds.words() if key.bounds else ""
    return f"{key.type}, {words}" if words else key.type


def _default(key: Key) -> str:
    if key.required:
        return "**required**"
    return f"`{toml_value(key.default)}`" if key.default is not None else key.absent


def workload_kinds() -> str:
    """Return the parameters of each kind of workload."""
    parts = ["## Kinds of workload\n\nTheir parameters are keys of the `[[workload]]` table.\n"]
    for kind, workload in workloads.KINDS.items():
        parts.append(f"### `{kind}`\n\n{first_paragraph(workload.__doc__)}\n\n{parameter_table(workload.params)}")
    return "\n".join(parts)


def parameter_table(params: Mapping[str, OptionSpec]) -> str:
    """Return the parameters of one kind of workload as a Markdown table."""
    rows = [
        (f"`{spec.name}`", domain(spec), "-" if spec.default is None else f"`{toml_value(spec.default)}`", spec.doc)
        for spec in params.values()
    ]
    return markdown_table(("parameter", "values", "default", "meaning"), rows)


# --------------------------------------------------------------------------- command line


def cli_page() -> str:
    """Return the reference of the command line: the help text of each command."""
    codes = markdown_table(("exit code", "meaning"), [(str(code), meaning) for code, meaning in EXIT_CODES])
    parts = [
        NOTICE,
        "# The command line\n",
        "Text for people goes to stderr; `--json` puts JSON for programs on stdout.\n",
        codes,
        help_section("servetune", servetune, None),
    ]
    group = click.Context(servetune, info_name="servetune", **servetune.context_settings)
    for name in COMMANDS:
        command = servetune.get_command(group, name)
        assert command is not None
        parts.append(help_section(name, command, group))
        if name == "bench":
            parts.append(foreign_flags())
    return "\n".join(parts)


def foreign_flags() -> str:
    """Return what becomes of the flags of `vllm bench serve` that are not offered."""
    rows = [(f"`{name}`", "refused" if flag.refused else "left out", flag.why) for name, flag in FOREIGN.items()]
    text = (
        "All other flags of `vllm bench serve` are taken as they are pasted; `--no-stream` alone means another thing"
        " here (whole answers). Those that would change the load or the figures are refused with the reason."
        " The rest, and the flags of datasets that are not offered, are left out, and the command says so.\n"
    )
    return f"{text}\n{markdown_table(('flag of vllm', 'here', 'why'), rows)}"


def help_section(name: str, command: click.Command, parent: click.Context | None) -> str:
    """Return one command's help text, as it is printed 100 columns wide."""
    width = {"terminal_width": 100, "max_content_width": 100}
    context = click.Context(command, info_name=name, parent=parent, **{**command.context_settings, **width})
    title = f"servetune {name}" if parent else name
    return f"## `{title}`\n\n```text\n{command.get_help(context)}\n```\n"


# --------------------------------------------------------------------------- Markdown


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; a bar inside a cell is escaped."""
    lines = [columns, ["---"] * len(columns), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def first_paragraph(text: str | None) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return " ".join((text or "").strip().partition("\n\n")[0].split())


def main() -> int:
    """Write or check the pages; returns the exit code."""
    stale = [path for path, text in pages().items() if not path.is_file() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            sys.stderr.write(f"{path} is out of date: run make docs\n")
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages()[path])
        sys.stderr.write(f"wrote {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
