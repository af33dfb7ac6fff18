"""Small programs to run under the keeper, and ways to see which processes are left of them."""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path

import pytest

from servetune.engines import get
from servetune.engines.base import Explanation
from servetune.engines.process import Server, free_port
from servetune.records import Command, Config, EngineSpec, Installed, OptionValue

MARK = "SERVETUNE_TEST_PROCESSES"


class Marked:
    """All processes that inherit one variable of the environment; set it before anything is started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.value = uuid.uuid4().hex
        monkeypatch.setenv(MARK, self.value)

    def pids(self) -> list[int]:
        """Running processes with the mark, without this one (whose environment was set too late to be seen)."""
        wanted = f"{MARK}={self.value}".encode()
        return [pid for pid in _all_pids() if wanted in _environment(pid)]

    def wait_until_gone(self, timeout_s: float = 15.0) -> float:
        """Return the seconds until none is left; fails after `timeout_s`."""
        begin = time.monotonic()
        while left := self.pids():
            assert time.monotonic() - begin < timeout_s, f"still running: {left}"
            time.sleep(0.02)
        return time.monotonic() - begin


def _all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def python(code: str) -> Command:
    """A command that runs `code`."""
    return Command(argv=(sys.executable, "-S", "-c", code))


def launch(command: Command, folder: Path, port: int | None = None) -> Server:
    """Launch `command` with its log in `folder`."""
    return Server.launch(command, port=port or free_port(), log_path=folder / "logs" / "engine.log")


def mock_command(port: int, variant: str = "", **options: OptionValue) -> Command:
    """The command line of a mock engine."""
    engine, spec = get("mock"), EngineSpec(name="mock")
    installed = engine.find(spec)
    assert isinstance(installed, Installed)
    config = Config(engine="mock", variant=variant, options=options)
    return engine.command(config, spec=spec, installed=installed, model="mock", port=port)


def launch_mock(folder: Path, variant: str = "", **options: OptionValue) -> Server:
    """Launch a mock engine."""
    port = free_port()
    return launch(mock_command(port, variant, **options), folder, port)


def wait_for(condition: object, timeout_s: float = 10.0) -> None:
    """Wait until the callable `condition` is true."""
    assert callable(condition)
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


class Listening:
    """An engine that is ready when its port answers anything."""

    name = "listening"
    ready_path = "/"

    def is_ready(self, status: int, body: bytes) -> bool:
        """Any answer is good."""
        return True

    def explain(self, log: str, exit_code: int | None) -> Explanation | None:
        """Leave it to the exit code."""
        return None


def never() -> bool:
    """Nobody cancels."""
    return False
