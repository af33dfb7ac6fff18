"""The keeper's own protocol: one job in, one line an event out, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from servetune.engines import keeper
from servetune.engines.keeper import all_pids, descendants, process_start_time, read_small, send
from tests.unit.engines.processes import Marked, wait_for

SLEEP = "import time; time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
BREED = """
import subprocess, sys
sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
child = f"import subprocess; subprocess.Popen({sleep!r}, start_new_session=True)"
for _ in range(5):
    subprocess.Popen([sys.executable, "-S", "-c", child], start_new_session=True).wait()
print("bred", flush=True)
"""


class Talk:
    """A keeper with its pipes in our hands."""

    def __init__(self, log: Path) -> None:
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "servetune.engines.keeper"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,
            )
        self.log = log

    @property
    def input(self) -> IO[bytes]:
        """The pipe to it."""
        assert self.process.stdin is not None
        return self.process.stdin

    def say(self, **message: Any) -> None:
        """Write one line."""
        self.input.write(json.dumps(message).encode() + b"\n")
        self.input.flush()

    def begin(self, code: str, **job: Any) -> dict[str, Any]:
        """Give it a job; return its first event."""
        argv = [sys.executable, "-S", "-c", code]
        self.say(**{"argv": argv, "env": {}, "cwd": None, "grace_s": 0.3, **job})
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """Return the next event."""
        assert self.process.stdout is not None
        event: dict[str, Any] = json.loads(self.process.stdout.readline())
        return event

    def close(self) -> int:
        """Close the pipes, wait for its end, return its exit code."""
        self.input.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(20)


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Talk]:
    """A keeper of which nothing may be left."""
    marked = Marked(monkeypatch)
    talk = Talk(tmp_path / "log")
    yield talk
    assert talk.close() == 0
    assert marked.pids() == []
    assert "Traceback" not in talk.log.read_text()


def test_the_end_of_its_input_stops_the_engine(talk: Talk) -> None:
    """However servetune ended, the pipe ends; SIGTERM is tried first."""
    started = talk.begin(SLEEP)
    assert started["event"] == "started"
    assert process_start_time(started["pid"]) == started["start_time"]
    talk.input.close()
    assert talk.hear() == {"event": "exited", "code": -signal.SIGTERM}


def test_a_deaf_engine_is_killed_after_the_grace_time_of_the_stop_line(talk: Talk) -> None:
    """The line's grace time replaces the one of the job."""
    talk.begin(DEAF, grace_s=600.0)
    wait_for(lambda: "deaf" in talk.log.read_text())
    talk.say(grace_s=0.2)
    assert talk.hear() == {"event": "exited", "code": -signal.SIGKILL}


@pytest.mark.parametrize("ending", ["", SLEEP])
def test_orphans_are_adopted_and_killed(talk: Talk, ending: str) -> None:
    """Grandchildren in sessions of their own, whose parents are gone; the engine ends by itself or is stopped."""
    talk.begin(BREED + ending)
    wait_for(lambda: "bred" in talk.log.read_text())
    if ending:
        assert len(descendants(talk.process.pid)) == 6
        talk.say(grace_s=1.0)
    assert talk.hear() == {"event": "exited", "code": -signal.SIGTERM if ending else 0}


def test_what_cannot_be_executed_is_told(talk: Talk, tmp_path: Path) -> None:
    """With the name of the file or folder at fault."""
    told = talk.begin("", cwd=str(tmp_path / "nowhere"))
    assert told == {"event": "failed", "problem": f"No such file or directory: {tmp_path}/nowhere"}


def test_sigterm_stops_the_engine(talk: Talk) -> None:
    """As the end of the input does."""
    talk.begin(SLEEP)
    os.kill(talk.process.pid, signal.SIGTERM)
    assert talk.hear() == {"event": "exited", "code": -signal.SIGTERM}


def test_a_job_that_never_comes_is_no_error(talk: Talk) -> None:
    """The keeper of a servetune that died at once starts nothing."""
    talk.input.write(b'{"argv": [')


def test_processes_are_named_by_pid_and_start_time() -> None:
    """This process runs; one that ended, or was never there, does not."""
    own = process_start_time(os.getpid())
    assert own is not None
    assert own > 0
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    wait_for(lambda: process_start_time(child.pid) is None)  # a zombie does not run
    child.wait()
    assert process_start_time(child.pid) is None
    send(child.pid, signal.SIGTERM)


def test_proc_is_read_without_surprises() -> None:
    """Files that are not there give None; this process is in the list and below its parent."""
    assert read_small("/proc/0/stat") is None
    assert read_small("/proc") is None
    assert os.getpid() in all_pids()
    assert os.getpid() in descendants(os.getppid())
    assert os.getpid() not in descendants(os.getpid())


def test_elsewhere_than_on_linux_pids_are_asked_by_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc there is no start time, but running and gone are still told apart."""
    monkeypatch.setattr(keeper, "_IS_LINUX", False)
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    child.wait()

    assert process_start_time(os.getpid()) == 0
    assert process_start_time(1) == 0
    assert process_start_time(child.pid) is None
