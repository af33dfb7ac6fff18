"""The few parts that a report page is made of, as values: text, tables, code, charts by name, folds, sections.

Views build these parts and the writers (html.py, markdown.py) print them; neither knows the other. Nothing here knows
what a study is. Every text is plain text: no part carries markup, links or images, so hostile text stays text.
"""

from __future__ import annotations

from typing import Literal

from servetune.records import Record

Tone = Literal["", "good", "bad", "warn", "muted", "strong"]
"""What a text means for the reader; writers choose how that looks, and never by colour alone."""


class Cell(Record, frozen=True, kw_only=True):
    """One cell of a table."""

    text: str
    tone: Tone = ""
    code: bool = False
    """Print it in a fixed-width face, line by line."""


class Column(Record, frozen=True, kw_only=True):
    """One column of a table."""

    title: str
    number: bool = False
    """Aligned to the right, with digits of equal width."""


class Table(Record, frozen=True, kw_only=True, tag="table"):
    """Rows of cells under titled columns; every row has as many cells as there are columns."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Paragraph(Record, frozen=True, kw_only=True, tag="paragraph"):
    """A few sentences."""

    text: str
    tone: Tone = ""


class Heading(Record, frozen=True, kw_only=True, tag="heading"):
    """A title inside a section."""

    text: str


class Bullets(Record, frozen=True, kw_only=True, tag="bullets"):
    """A list of short texts."""

    items: tuple[str, ...]


class Facts(Record, frozen=True, kw_only=True, tag="facts"):
    """Names with what they stand for."""

    items: tuple[tuple[str, str], ...]


class Code(Record, frozen=True, kw_only=True, tag="code"):
    """Text to be shown as it is, and copied."""

    text: str
    language: str = ""


class Figure(Record, frozen=True, kw_only=True, tag="figure"):
    """A chart of ReportView.charts, by its name."""

    chart: str
    caption: str


class Fold(Record, frozen=True, kw_only=True, tag="fold"):
    """Details behind a one-line summary."""

    summary: str
    parts: tuple[Table | Paragraph | Heading | Bullets | Facts | Code, ...]


Part = Table | Paragraph | Heading | Bullets | Facts | Code | Figure | Fold


class Section(Record, frozen=True, kw_only=True):
    """A titled part of the page; `name` is one of our own words and serves as its anchor."""

    name: str
    title: str
    parts: tuple[Part, ...]
