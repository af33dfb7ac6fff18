"""Output: plain columns away from a terminal, no markup surprises, JSON that programs can read."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from servetune.cli.console import plain_table, print_json, say, say_table
from servetune.records import Finding


def test_plain_tables_align_and_never_wrap() -> None:
    """Columns are two spaces apart, lines inside a cell are joined, nothing trails."""
    long = "x" * 300
    assert plain_table(("a", "bb"), [("1\n2", long), ("333", "")]) == f"a    bb\n1 2  {long}\n333"


def test_brackets_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Paths like $.engine[0] are no markup, and text for people goes to stderr."""
    say("$.engine[0] [bold]x[/bold] :smile:")
    say_table(("[a]",), [("[b]",)])
    assert capsys.readouterr() == ("", "$.engine[0] [bold]x[/bold] :smile:\n[a]\n[b]\n")


def test_json_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    """A record becomes indented JSON."""
    print_json([Finding(code="c", severity="note", evidence="é")])
    out, err = capsys.readouterr()
    assert (json.loads(out)[0]["evidence"], err) == ("é", "")
    assert out.startswith("[\n  {\n")


@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_gets_a_drawn_table(no_color: bool) -> None:
    """On a real terminal a table has lines; NO_COLOR takes the colours away and leaves the lines."""
    leader, follower = pty.openpty()
    code = "from servetune.cli.console import say, say_table; say_table(('a',), [('1',)]); say('red', style='red')"
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80", **({"NO_COLOR": "1"} if no_color else {})}
    env.pop("" if no_color else "NO_COLOR", None)
    subprocess.run([sys.executable, "-c", code], stderr=follower, env=env, check=True)
    os.close(follower)
    drawn = os.read(leader, 4096).decode()
    os.close(leader)
    assert "─" in drawn
    assert ("\x1b[31m" in drawn) is not no_color
