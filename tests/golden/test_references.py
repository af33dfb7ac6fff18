"""The generated references are those of the program as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from servetune.cli.main import COMMANDS
from servetune.studyfile.schema import TABLES

ROOT = Path(__file__).parents[2]


def test_references_are_up_to_date() -> None:
    """`make docs` would change nothing."""
    done = subprocess.run(
        [sys.executable, ROOT / "docs/generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_references_name_every_key_and_command() -> None:
    """Each key of each table, and each command, has its place."""
    study_file, cli = (ROOT / "docs/study-file.md").read_text(), (ROOT / "docs/cli.md").read_text()
    for table in TABLES:
        assert f"## `{table.header}`" in study_file
        for key in table.keys:
            assert f"| `{key.name}` |" in study_file
    for name in COMMANDS:
        assert f"## `servetune {name}`" in cli
