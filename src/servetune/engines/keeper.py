"""The keeper: a small process between servetune and one engine, which leaves nothing behind.

It runs as a script of its own (`python -I -S keeper.py`), in its own session, as a child subreaper: whatever the engine
starts, even in other groups and sessions, becomes the keeper's child when its parent dies, so that it is found. Its
standard input is a pipe from servetune. The first line says what to start; a later line, or the end of the file (that
servetune is gone, however it ended), stops everything: SIGTERM to the engine's group, a grace time, SIGKILL to the
group, then SIGKILL to every descendant that is left. Standard output carries one JSON line for each event: started,
failed, exited. Standard error is the log file, shared with the engine.

Only the standard library, and little of it, so that it starts fast and cannot be broken by what is installed. The
functions about processes are shared with process.py; nothing else of servetune may be imported here.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping

_IS_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GIVE_UP_S = 8.0
"""A process in an uninterruptible system call cannot be killed; nothing can be gained by waiting longer."""


def process_start_time(pid: int) -> int | None:
    """Return when `pid` was started, in clock ticks since boot (0 where /proc is missing); None if it is not running.

    With the pid it names one process for ever; a pid alone is given again to others. A zombie does not run.
    """
    if not _IS_LINUX:
        return 0 if _exists(pid) else None
    fields = _stat_fields(pid)
    if fields is None or fields[0] in ("Z", "X"):
        return None
    return int(fields[19])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state (field 3 of proc(5)) on."""
    text = read_small(f"/proc/{pid}/stat")
    return None if text is None else text.decode(errors="replace").rpartition(")")[2].split() or None


def read_small(path: str) -> bytes | None:
    """Return the first 64 KiB of a file of /proc; None if it is gone or may not be read."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.read(file, 65536)
    except OSError:
        return None
    finally:
        os.close(file)


def all_pids() -> list[int]:
    """Return every pid of the system; empty where /proc is missing."""
    try:
        with os.scandir("/proc") as entries:
            return [int(entry.name) for entry in entries if entry.name.isdigit()]
    except OSError:
        return []


def descendants(root: int) -> list[int]:
    """Return the pids of all running processes below `root`, without it; empty where /proc is missing."""
    children: dict[int, list[int]] = {}
    for pid in all_pids():
        if (fields := _stat_fields(pid)) and fields[0] not in ("Z", "X"):
            children.setdefault(int(fields[1]), []).append(pid)
    found: list[int] = []
    ahead = [root]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return found


def send(pid: int, number: int) -> None:
    """Send signal `number` to process `pid`, or to the group -`pid`; one that is gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def set_process_flag(option: int, value: int) -> None:
    """Call prctl(2); does nothing elsewhere than on Linux."""
    if _IS_LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class Keeper:
    """Starts one engine and stops everything that comes from it."""

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self.engine_pid = 0
        self.exit_code: int | None = None
        self._wake_read, self._wake_write = os.pipe()
        self._stop_signal = False

    def prepare(self) -> None:
        """Become a subreaper, and let signals wake the loop instead of ending the process."""
        set_process_flag(_PR_SET_CHILD_SUBREAPER, 1)
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, self._on_stop_signal)

    def _on_stop_signal(self, _number: int, _frame: object) -> None:
        self._stop_signal = True

    def start(self, argv: list[str], env: Mapping[str, str], cwd: str | None) -> str | None:
        """Start the engine in a group of its own; return why it could not be executed, or None."""
        error_read, error_write = os.pipe()
        keeper_pid = os.getpid()
        self.engine_pid = os.fork()
        if self.engine_pid == 0:
            try:
                _become_engine(argv, env, cwd, keeper_pid)
            except OSError as error:
                what = error.filename if isinstance(error.filename, str) else argv[0]
                os.write(error_write, f"{error.strerror}: {what}".encode())
            finally:
                os._exit(127)
        os.close(error_write)
        with os.fdopen(error_read, "rb") as file:
            problem = file.read().decode(errors="replace")
        if not problem:
            return None
        os.waitpid(self.engine_pid, 0)
        return problem

    def watch(self) -> None:
        """Wait until the engine ends by itself, or servetune wants it stopped or is gone."""
        while self.exit_code is None and not self._stop_signal:
            self._reap()
            if self.exit_code is not None:
                return
            readable, _, _ = select.select([0, self._wake_read], [], [])
            self._drain_wakes()
            if 0 in readable:
                self._read_stop()
                return

    def _read_stop(self) -> None:
        """Take the grace time of a stop line; the end of the file keeps the one of the job."""
        line = os.read(0, 4096)
        if line.strip():
            self.grace_s = float(json.loads(line)["grace_s"])

    def stop_engine(self) -> None:
        """Ask the engine's group to end, wait for the grace time, then kill the group."""
        if self.exit_code is None:
            send(-self.engine_pid, signal.SIGTERM)
            send(-self.engine_pid, signal.SIGCONT)
            self._wait_for_engine(self.grace_s)
        if self.exit_code is None:
            send(-self.engine_pid, signal.SIGKILL)
            self._wait_for_engine(_GIVE_UP_S)

    def _wait_for_engine(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self.exit_code is None and (left := end - time.monotonic()) > 0:
            self._reap()
            if self.exit_code is None:
                select.select([self._wake_read], [], [], min(left, 0.5))
                self._drain_wakes()

    def kill_descendants(self) -> None:
        """Kill whatever is left of the engine, also outside its group, until nothing is."""
        send(-self.engine_pid, signal.SIGKILL)
        end = time.monotonic() + _GIVE_UP_S
        while (left := descendants(os.getpid())) and time.monotonic() < end:
            for pid in left:
                send(pid, signal.SIGKILL)
            self._reap()
            time.sleep(0.01)
        self._reap()

    def _reap(self) -> None:
        """Collect every ended child; as a subreaper the keeper has children it never started."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self.engine_pid:
                    self.exit_code = os.waitstatus_to_exitcode(status)

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 512):
                pass


def _become_engine(argv: list[str], env: Mapping[str, str], cwd: str | None, keeper_pid: int) -> None:
    """Turn the forked child into the engine (the keeper has one thread, so everything is allowed here)."""
    set_process_flag(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper_pid:
        os._exit(127)
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    if cwd is not None:
        os.chdir(cwd)
    os.execvpe(argv[0], argv, {**os.environ, **env})  # noqa: S606 -- a shell is what must not be between


def _tell(**event: object) -> None:
    """Write one event for servetune; it may be gone."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(event).encode() + b"\n")


def _read_job() -> dict[str, object] | None:
    """Return the job of the first line; None if servetune went away before it was complete."""
    text = b""
    while not text.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            return None
        text += piece
    job: dict[str, object] = json.loads(text)
    return job


def keep(argv: list[str], env: Mapping[str, str], cwd: str | None, grace_s: float) -> None:
    """Run one engine from its start until nothing of it is left."""
    keeper = Keeper(grace_s)
    keeper.prepare()
    problem = keeper.start(argv, env, cwd)
    if problem is not None:
        _tell(event="failed", problem=problem)
        return
    _tell(event="started", pid=keeper.engine_pid, start_time=process_start_time(keeper.engine_pid))
    keeper.watch()
    if keeper.exit_code is not None:
        _tell(event="exited", code=keeper.exit_code)
    else:
        keeper.stop_engine()
        _tell(event="exited", code=keeper.exit_code)
    keeper.kill_descendants()


def main() -> None:
    """Read the job, then keep its engine."""
    job = _read_job()
    if job is None:
        return
    argv, env, cwd, grace_s = job["argv"], job["env"], job["cwd"], job["grace_s"]
    assert isinstance(argv, list)
    assert isinstance(env, dict)
    assert isinstance(cwd, str | None)
    assert isinstance(grace_s, float)
    keep(argv, env, cwd, grace_s)


if __name__ == "__main__":
    main()
