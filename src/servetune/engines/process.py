"""Start, readiness, life and end of one engine process; the only way in which servetune starts an engine.

The engine runs under keeper.py, which outlives whatever happens to servetune and leaves no process behind. This module
knows no engine: readiness and the meaning of logs come from an Engine.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from servetune.engines import keeper
from servetune.engines.base import Engine, Explanation, decisive_lines, explain_exit
from servetune.engines.keeper import process_start_time, send
from servetune.engines.listener import is_listening_elsewhere
from servetune.engines.memory import resident_peak_mib
from servetune.errors import EngineFailed
from servetune.records import Command

__all__ = ["Server", "free_port", "process_start_time", "stop_stale"]

GRACE_S = 5.0
"""From SIGTERM to SIGKILL; short enough that nothing runs 15 s after a kill -9 of servetune."""
_KEEPER_ANSWERS_S = 60.0
_KEEPER_ENDS_S = 20.0
_MARK = "SERVETUNE_SERVER"
"""Variable in the environment of an engine and all its children, by which they are found if the keeper was killed."""
_LOG_BYTES = 256 * 1024
_MEMORY_EACH_S = 2.0


def free_port() -> int:
    """Return a TCP port on loopback that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_port_free(port: int) -> bool:
    """Tell whether `port` can be bound on loopback now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def stop_stale(pid: int, start_time: int, *, grace_s: float = GRACE_S) -> bool:
    """End the process that was stored as (pid, start time), if it still runs; return whether it did.

    SIGTERM, up to `grace_s`, then SIGKILL to it and its group (if it leads one). A keeper stops its engine at SIGTERM.
    """
    if process_start_time(pid) != start_time:
        return False
    send(pid, signal.SIGTERM)
    end = time.monotonic() + grace_s + _KEEPER_ENDS_S
    kill_at = time.monotonic() + grace_s
    while process_start_time(pid) == start_time and time.monotonic() < end:
        if time.monotonic() >= kill_at:
            _kill_with_group(pid)
        time.sleep(0.02)
    return True


def _kill_with_group(pid: int) -> None:
    for below in keeper.descendants(pid):
        send(below, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(pid) == pid:
            send(-pid, signal.SIGKILL)
    send(pid, signal.SIGKILL)


def kill_marked(mark: str) -> None:
    """Kill every process that has `mark` in its environment: what an engine left behind when its keeper was killed."""
    wanted = f"{_MARK}={mark}".encode()
    for pid in keeper.all_pids():
        environment = keeper.read_small(f"/proc/{pid}/environ")
        if environment is not None and wanted in environment.split(b"\0"):
            send(pid, signal.SIGKILL)


class Server:
    """One running engine process. Not for use from several threads."""

    def __init__(self, process: subprocess.Popen[bytes], *, port: int, log_path: Path) -> None:
        self.port = port
        self.log_path = log_path
        self.pid = 0
        self.start_time: int | None = None
        self.started_at = time.time()
        """Seconds since 1970."""
        self._started_s = time.monotonic()
        self._process = process
        self._mark = f"{process.pid}-{time.time_ns()}"
        self._unread = b""
        self._exit_code: int | None = None
        self._peak_rss_mib: float | None = None
        self._memory_due_s = 0.0
        self._stopped = False

    @classmethod
    def launch(cls, command: Command, *, port: int, log_path: Path, cwd: Path | None = None) -> Server:
        """Start `command` under a keeper; its output goes to `log_path` (appended).

        Raises EngineFailed with stage launch: port-in-use, not-installed.
        """
        if not is_port_free(port):
            raise EngineFailed("launch", "port-in-use", f"127.0.0.1:{port} is taken by another program")
        with contextlib.ExitStack() as undo:
            server = cls(_start_keeper(log_path), port=port, log_path=log_path)
            undo.callback(server.stop)
            server._begin(command, cwd)
            undo.pop_all()
        return server

    def _begin(self, command: Command, cwd: Path | None) -> None:
        job = {
            "argv": list(command.argv),
            "env": {**command.env, _MARK: self._mark},
            "cwd": None if cwd is None else str(cwd),
            "grace_s": GRACE_S,
        }
        self._say(job)
        end = time.monotonic() + _KEEPER_ANSWERS_S
        while not self.pid:
            if not self._wait_for_event(end - time.monotonic()):
                raise EngineFailed("launch", "hung", f"the keeper did not answer in {_KEEPER_ANSWERS_S:.0f} s")
            self._read_events()
            if self._exit_code is not None and not self.pid:
                raise EngineFailed("launch", "crashed", f"the keeper ended at once\n{self.log_tail(3)}")

    @property
    def url(self) -> str:
        """Base URL, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def keeper_pid(self) -> int:
        """Pid of the keeper; with its process_start_time it can be stored and stopped later."""
        return self._process.pid

    def wait_ready(self, engine: Engine, timeout_s: float, cancelled: Callable[[], bool]) -> None:
        """Return once the engine answers that it is ready.

        Raises EngineFailed with stage ready: whatever engine.explain() finds in the log if it exits, hung after
        `timeout_s`, cancelled as soon as `cancelled()` is true, port-in-use if another program answers.
        """
        end = self._started_s + timeout_s
        while not self._answers_ready(engine):
            if (code := self.exit_code()) is not None:
                raise self._failure(engine, code)
            if cancelled():
                raise EngineFailed("ready", "cancelled", "servetune was asked to stop")
            elapsed = time.monotonic() - self._started_s
            if time.monotonic() >= end:
                raise EngineFailed("ready", "hung", _hung_evidence(timeout_s, self.log_tail(5)))
            self._wait_for_event(min(max(0.05, elapsed / 10), 0.5))
        if is_listening_elsewhere(self.port, self.keeper_pid):
            raise EngineFailed("ready", "port-in-use", f"another program answers on 127.0.0.1:{self.port}")
        self._sample_memory(now=True)

    def _failure(self, engine: Engine, code: int) -> EngineFailed:
        found = explain_end(engine, self.log_text(), code)
        return EngineFailed("ready", found.cause, found.evidence)

    def _answers_ready(self, engine: Engine) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2.0)
        try:
            connection.request("GET", engine.ready_path)
            response = connection.getresponse()
            return engine.is_ready(response.status, response.read())
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def exit_code(self) -> int | None:
        """Return the engine's exit code (negative: the signal that ended it), or None while it runs."""
        if self._exit_code is None and not self._stopped:
            self._sample_memory()
            if self._wait_for_event(0.0):
                self._read_events()
        return self._exit_code

    def is_alive(self) -> bool:
        """Tell whether the engine's process runs; cheap enough to be asked many times a second."""
        return not self._stopped and self.exit_code() is None

    def peak_rss_mib(self) -> float | None:
        """Return the largest seen sum of the peak resident sizes of the engine's processes, in MiB.

        Pages that several processes share count more than once. None where /proc is missing.
        """
        return self._peak_rss_mib

    def log_text(self) -> str:
        """Return the end of the log, at most 256 KiB."""
        with self.log_path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LOG_BYTES))
            return file.read().decode(errors="replace")

    def log_tail(self, n: int) -> str:
        """Return the last `n` lines of the log that are not blank."""
        return "\n".join([line for line in self.log_text().splitlines() if line.strip()][-n:])

    def stop(self, grace_s: float = GRACE_S) -> None:
        """End the engine and everything it started; at most `grace_s` pass before it is killed. Idempotent."""
        if self._stopped:
            return
        self._sample_memory(now=True)
        with contextlib.suppress(BrokenPipeError):
            self._say({"grace_s": grace_s})
        try:
            self._process.wait(grace_s + _KEEPER_ENDS_S)
        except subprocess.TimeoutExpired:
            _kill_with_group(self._process.pid)
            self._process.wait()
        if self._process.returncode != 0:
            kill_marked(self._mark)
        self._close()

    def _close(self) -> None:
        self._read_events()
        self._stopped = True
        if self._exit_code is None:
            self._exit_code = -signal.SIGKILL
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _say(self, message: Mapping[str, object]) -> None:
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), json.dumps(message).encode() + b"\n")

    def _wait_for_event(self, seconds: float) -> bool:
        """Wait until the keeper has said something (or is gone), for at most `seconds`."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], max(seconds, 0.0))
        return bool(readable)

    def _read_events(self) -> None:
        """Take in what the keeper said; its end without a word about the engine means that it was killed."""
        assert self._process.stdout is not None
        piece = os.read(self._process.stdout.fileno(), 65536)
        *lines, self._unread = (self._unread + piece).split(b"\n")
        for line in lines:
            self._take_event(json.loads(line))
        if not piece and self._exit_code is None:
            self._exit_code = -signal.SIGKILL

    def _take_event(self, event: dict[str, object]) -> None:
        match event:
            case {"event": "started", "pid": int(pid), "start_time": int() | None as start_time}:
                self.pid, self.start_time = pid, start_time
            case {"event": "failed", "problem": str(problem)}:
                raise EngineFailed("launch", "not-installed", f"cannot be started: {problem}")
            case {"event": "exited", "code": int(code)}:
                self._exit_code = code

    def _sample_memory(self, *, now: bool = False) -> None:
        """Look at the memory if it is time to, or `now`."""
        clock_s = time.monotonic()
        if clock_s < self._memory_due_s and not now:
            return
        self._memory_due_s = clock_s + _MEMORY_EACH_S
        seen = resident_peak_mib(self.keeper_pid)
        if seen is not None:
            self._peak_rss_mib = max(seen, self._peak_rss_mib or 0.0)


def _start_keeper(log_path: Path) -> subprocess.Popen[bytes]:
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            bufsize=0,
        )


def _hung_evidence(timeout_s: float, last_lines: str) -> str:
    return f"not ready after {timeout_s:.0f} s; last log lines:\n{last_lines or '(the log is empty)'}"


def explain_end(engine: Engine, log: str, code: int) -> Explanation:
    """Return why an engine that ended with `code` did so: its own explanation, else what the code says."""
    return (
        engine.explain(log, code)
        or explain_exit(log, code)
        or Explanation(
            cause="crashed", evidence=f"it ended by itself (exit code {code})\n{decisive_lines(log)}".strip()
        )
    )
