"""`servetune report`: write the report of a study folder again, from its store alone."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from servetune.cli.console import say
from servetune.report import write
from servetune.study import load_results


@click.command(epilog="Example: servetune report studies/demo")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print report.json on stdout as well.")
def report(folder: Path, *, as_json: bool) -> None:
    """Write report.md, report.html and report.json of the study in DIR; measure nothing.

    An unfinished study has a report too: it says what is missing.
    """
    paths = write(load_results(folder), folder)
    for path in paths:
        say(str(path))
    if as_json:
        data = next(path for path in paths if path.suffix == ".json").read_bytes()
        sys.stdout.write(data.decode("utf-8"))
