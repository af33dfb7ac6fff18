"""`servetune`: the table of its commands, and the one place where an exception becomes a message and an exit code.

A command's module is imported when that command runs, so that `servetune --help` needs none of them.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any, NamedTuple

import click

from servetune import __version__
from servetune.cli.did_you_mean import nearest
from servetune.errors import Interrupted, ServetuneError

_INTERRUPTED = 130
_BROKEN_PIPE = 141
_UNEXPECTED = 3


class Entry(NamedTuple):
    """Where one command is found."""

    module: str
    attribute: str
    summary: str


COMMANDS: dict[str, Entry] = {
    "tune": Entry("servetune.cli.tune", "tune", "Run a study to its report: start engines, load them, decide."),
    "plan": Entry("servetune.cli.plan", "plan", "Check a study and show what it would do; start nothing."),
    "bench": Entry("servetune.cli.bench", "bench", "Load one server that already runs and print its figures."),
    "report": Entry("servetune.cli.report", "report", "Write the report of a study folder again."),
    "doctor": Entry("servetune.cli.doctor", "doctor", "Say what on this host would spoil a measurement."),
    "engines": Entry("servetune.cli.engines", "engines", "List engines, or the options of one engine."),
}
"""Name -> command, in the order of the help text."""

EXIT_CODES = (
    (0, "done"),
    (1, "done, but no config met the limits, all failed, or the compared thing is worse"),
    (2, "a mistake in the command line or in a file that you gave"),
    (3, "this machine cannot do it: no engine, no permission, disk full; or the run was aborted"),
    (_INTERRUPTED, "interrupted (SIGINT, SIGTERM, SIGHUP); what is measured is stored"),
)
"""Exit code -> meaning."""


class CommandTable(click.Group):
    """The group whose commands are named in COMMANDS and imported one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names without importing anything."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None if there is none of this name."""
        del ctx
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(importlib.import_module(entry.module), entry.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table alone."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begin with, or say which one was probably meant."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = nearest(args[0], COMMANDS)
            hint = f'did you mean "{near}"?' if near else f"commands: {', '.join(COMMANDS)}"
            ctx.fail(f'there is no command "{args[0]}" ({hint})')
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what it raises becomes one message and an exit code. click shows its own usage errors."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except (click.ClickException, click.exceptions.Exit):
            raise
        except BrokenPipeError:
            _point_at_nothing()
            ctx.exit(_BROKEN_PIPE)
        except (KeyboardInterrupt, click.Abort):
            _say("interrupted")
            ctx.exit(_INTERRUPTED)
        except ServetuneError as error:
            ctx.exit(_refuse(error, debug=ctx.params["debug"]))
        except Exception as error:  # noqa: BLE001  last resort: a user is owed a sentence, not a traceback
            ctx.exit(_apologise(error, debug=ctx.params["debug"]))
        else:
            return result


def _refuse(error: ServetuneError, *, debug: bool) -> int:
    """Tell a failure that servetune foresaw."""
    if debug:
        traceback.print_exception(error)
    _say(str(error) if isinstance(error, Interrupted) else f"error: {error}")
    return error.exit_code


def _apologise(error: Exception, *, debug: bool) -> int:
    """Tell a failure that servetune did not foresee."""
    if debug:
        traceback.print_exception(error)
    _say(f"sorry, this is a fault of servetune: {type(error).__name__}: {error}")
    if not debug:
        _say('run "servetune --debug COMMAND ..." for the details that a bug report needs')
    return _UNEXPECTED


def _say(message: str) -> None:
    try:
        click.echo(message, err=True)
    except BrokenPipeError:
        _point_at_nothing()


def _point_at_nothing() -> None:
    """Make later writes and the flush at exit harmless after the reader of our output has gone."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nothing, stream.fileno())
    os.close(nothing)


_EPILOG = """\b
Examples:
  servetune tune --demo            a whole study in a few minutes, on two cores
  servetune tune model.gguf        tune llama.cpp for one model
  servetune plan study.toml        check a study file and see its commands
  servetune engines llamacpp       the options that can be varied
"""


@click.command(cls=CommandTable, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.version_option(__version__, prog_name="servetune", message="%(prog)s %(version)s")
def servetune(*, debug: bool) -> None:
    """Find the fastest configuration of an LLM serving engine: measure, decide with a stated error rate, explain."""
    del debug  # read by CommandTable.invoke


def main() -> None:
    """Run the command line of this process."""
    servetune(prog_name="servetune")


if __name__ == "__main__":
    main()
