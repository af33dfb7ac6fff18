"""Prints a ReportView as Markdown (the GitHub form, with tables).

Every text is escaped, so that no study can put markup, HTML, links or table cells into the page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from servetune.report import document, formatting
from servetune.report.phrases import Phrases
from servetune.report.views import ReportView

_SPECIAL = re.compile(r"([\\`*<>|~#$&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|\[(?![+−\d])|\](?=[(\[:]))")
"""What has a meaning where it stands: not every bracket and underscore, so that the source stays readable."""
_LINE_START = re.compile(r"^(\s*)([-+](?=\s|$)|[-=](?=[-=\s]*$)|\d+[.)](?=\s|$))")
_AUTOLINK = re.compile(r"(?i)(https?|ftp|mailto)(:)|(www)(\.)|(\S)(@)(?=\S)")
_BACKTICKS = re.compile("`+")


def page(view: ReportView, *, drawings: Mapping[str, str], version: str, say: Phrases | None = None) -> str:
    """Return the page; charts are named by their files in `charts/`, as far as they were drawn."""
    say = say or Phrases()
    blocks = [f"# {text(view.title)}", text(view.subtitle), *_headline(view, say)]
    for section in view.sections:
        blocks.append(f"## {text(section.title)}")
        blocks += [_part(part, drawings, say) for part in section.parts]
    blocks.append(f"*{text(say('page.made-by', version=version))}*")
    return "\n\n".join(block for block in blocks if block) + "\n"


def _headline(view: ReportView, say: Phrases) -> list[str]:
    lines = [f"> **{text(say('page.verdict'))}: {text(view.headline.sentence)}**"]
    for _, note in view.headline.notes:
        lines += [">", f"> {text(note)}"]
    return ["\n".join(lines)]


def text(value: str) -> str:
    """Return one line of plain text, escaped so that it shows as it is wherever it stands."""
    line = " ".join(formatting.visible(value).split("\n"))
    escaped = _SPECIAL.sub(r"\\\1", line).replace("\\<", "&lt;").replace("\\>", "&gt;").replace("\\&", "&amp;")
    escaped = _LINE_START.sub(lambda found: f"{found[1]}{_escaped_start(found[2])}", escaped)
    return _AUTOLINK.sub(_unlinked, escaped)


def _escaped_start(mark: str) -> str:
    return f"{mark[:-1]}\\{mark[-1]}"


def _unlinked(found: re.Match[str]) -> str:
    """Put an empty entity-like break where a renderer would make a link by itself."""
    before = found[1] or found[3] or found[5]
    mark = found[2] or found[4] or found[6]
    return f"{before}&#{ord(mark)};"


def _part(part: document.Part, drawings: Mapping[str, str], say: Phrases) -> str:
    match part:
        case document.Paragraph():
            printed = text(part.text)
        case document.Heading():
            printed = f"### {text(part.text)}"
        case document.Bullets():
            printed = "\n".join(f"- {text(item)}" for item in part.items)
        case document.Facts():
            printed = "\n".join(f"- **{text(name)}**: {text(value)}" for name, value in part.items)
        case document.Code():
            printed = fenced(part.text, part.language)
        case document.Table():
            printed = table(part)
        case document.Figure():
            printed = _figure(part, drawings, say)
        case document.Fold():
            inside = [_lower(_part(inner, drawings, say)) for inner in part.parts]
            printed = "\n\n".join([f"### {text(part.summary)}", *inside])
    return printed


def _lower(block: str) -> str:
    return f"#{block}" if block.startswith("### ") else block


def _figure(figure: document.Figure, drawings: Mapping[str, str], say: Phrases) -> str:
    if figure.chart in drawings:
        return f"![{text(figure.caption)}](charts/{figure.chart}.svg)\n\n{text(figure.caption)}"
    return f"{text(figure.caption)} {text(say('page.no-chart', name=figure.chart))}"


def fenced(code: str, language: str = "") -> str:
    """Return `code` in a fence that is longer than any run of backticks inside it."""
    shown = formatting.visible(code)
    longest = max((len(run) for run in _BACKTICKS.findall(shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{shown}\n{fence}"


def table(part: document.Table) -> str:
    """Return a table; numbers are aligned to the right."""
    rules = ["---:" if column.number else "---" for column in part.columns]
    rows = [
        [text(column.title) for column in part.columns],
        rules,
        *([_cell(cell) for cell in row] for row in part.rows),
    ]
    return "\n".join(_row(row) for row in rows)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: document.Cell) -> str:
    # Text and not code spans: only escaped text is safe from both backticks and table bars in every renderer.
    shown = "<br>".join(text(line) for line in cell.text.split("\n"))
    return f"**{shown}**" if shown and cell.tone in {"bad", "strong"} else shown
