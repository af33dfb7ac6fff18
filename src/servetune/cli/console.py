"""What commands print with: text and tables for people on stderr, JSON for programs on stdout.

Tables are drawn on a terminal and plain, unwrapped columns elsewhere; NO_COLOR is honoured.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.console import Console  # the functions that need rich import it: `servetune bench` starts sooner

Rows = Sequence[Sequence[str]]


def stderr_console() -> Console:
    """Return the console for people; text is printed as it is, without markup."""
    from rich.console import Console  # noqa: PLC0415

    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def say(text: str = "", *, style: str = "") -> None:
    """Print one piece of text for people."""
    from rich.text import Text  # noqa: PLC0415

    stderr_console().print(Text(text, style=style), soft_wrap=True)


def say_heading(text: str) -> None:
    """Print a line that begins a part of the output."""
    say()
    say(text, style="bold")


def say_table(columns: Sequence[str], rows: Rows) -> None:
    """Print a table for people; a cell may hold several lines on a terminal."""
    console = stderr_console()
    if not console.is_terminal:
        say(plain_table(columns, rows))
        return
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(*columns, box=box.SIMPLE, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def plain_table(columns: Sequence[str], rows: Rows) -> str:
    """Return a table as aligned columns, two spaces apart; lines inside a cell are joined."""
    cells = [[cell.replace("\n", " ") for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def print_json(value: Any) -> None:
    """Print a record or plain value as indented JSON on stdout, for programs."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
