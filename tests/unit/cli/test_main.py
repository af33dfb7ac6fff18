"""The command table: help without imports, messages instead of tracebacks, and the promised exit codes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn

import click
import pytest
from click.testing import CliRunner, Result

from servetune import __version__
from servetune.cli.main import COMMANDS, CommandTable, Entry, servetune
from servetune.errors import HostProblem, Interrupted, ServetuneError, StudyFileError, UserError


def run(*arguments: str) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(servetune, arguments, prog_name="servetune")


def test_help_names_every_command_without_importing_one() -> None:
    """`servetune --help` loads the table, click and nothing heavy."""
    code = (
        "import sys; from servetune.cli.main import servetune\n"
        "try: servetune(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "bad = {'rich', 'numpy', 'msgspec', 'asyncio', 'servetune.records', 'servetune.cli.tune'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, entry in COMMANDS.items():
        assert name in done.stdout
        assert entry.summary in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_has_help_with_examples(name: str) -> None:
    """Each entry leads to a click command that explains itself."""
    result = run(name, "--help")
    assert result.exit_code == 0, result.output
    assert "Example" in result.output
    assert name in result.output


def test_version_is_that_of_the_package() -> None:
    """`--version` prints one line."""
    assert run("--version").output == f"servetune {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tnue"], 'there is no command "tnue" (did you mean "tune"?)'),
        (["xyzzy"], "commands: tune, plan, bench, report, doctor, engines"),
        (["--debgu"], "--debug"),
        (["engines", "--jsn"], "--json"),
        (["engines", "llamacp"], 'did you mean "llamacpp"?'),
    ],
)
def test_mistakes_of_the_command_line_end_with_2_and_a_hint(arguments: list[str], words: str) -> None:
    """Unknown commands, options and engines name the nearest right one."""
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output


# --------------------------------------------------------------------------- from an exception to a message


APOLOGY = """\
sorry, this is a fault of servetune: ValueError: three
run "servetune --debug COMMAND ..." for the details that a bug report needs
"""


def raising(error: BaseException) -> Callable[[], NoReturn]:
    """A command body that raises `error`."""

    def body() -> NoReturn:
        raise error

    return body


def run_raising(monkeypatch: pytest.MonkeyPatch, error: BaseException, *before: str) -> Result:
    """Run a command of its own that raises `error`."""
    monkeypatch.setitem(COMMANDS, "break", Entry("unused", "unused", "for tests"))
    command = click.command("break")(raising(error))
    monkeypatch.setattr(CommandTable, "get_command", lambda self, ctx, name: command)
    return run(*before, "break")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("x.toml", "is odd", "make it even"), 2, "error: x.toml: is odd (make it even)\n"),
        (
            StudyFileError("x.toml", [UserError("x.toml $.a", "is odd"), UserError("x.toml $.b", "is odd")]),
            2,
            "error: x.toml: 2 mistakes\n  x.toml $.a: is odd\n  x.toml $.b: is odd\n",
        ),
        (HostProblem("the disk is full"), 3, "error: the disk is full\n"),
        (Interrupted("SIGTERM"), 130, "interrupted by SIGTERM; everything measured so far is stored\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (
            ValueError("three"),
            3,
            APOLOGY,
        ),
    ],
    ids=["user", "study-file", "host", "interrupted", "ctrl-c", "unexpected"],
)
def test_an_exception_becomes_one_message_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    """Nobody sees a traceback that did not ask for one."""
    result = run_raising(monkeypatch, error)
    assert (result.exit_code, result.stderr) == (code, message)


@pytest.mark.parametrize("error", [HostProblem("full"), ValueError("three")], ids=["foreseen", "unforeseen"])
def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """With --debug the message is preceded by where it came from."""
    result = run_raising(monkeypatch, error, "--debug")
    assert "Traceback" in result.stderr
    assert result.exit_code == (error.exit_code if isinstance(error, ServetuneError) else 3)
    assert "--debug COMMAND" not in result.stderr


def test_a_reader_that_goes_away_is_no_error() -> None:
    """`servetune engines --json | head -0` ends quietly."""
    code = "from servetune.cli.main import main; import sys; sys.argv[1:] = ['engines', '--json']; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert (process.wait(timeout=60), said) == (141, "")
