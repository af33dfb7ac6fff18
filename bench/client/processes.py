"""The processes of one side, server or client: pinned to a core, favoured by the scheduler, counted together."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

_CONTROLLERS = Path("/sys/fs/cgroup")
_JOIN = 'for procs in $SERVETUNE_PROCS; do echo $$ >"$procs"; done; exec "$@"'
_MOST_SHARES = 262_144
_MOST_WEIGHT = 10_000
_MEMORY_EVERY = 10
_KIB_PER_MIB = 1024


def cores() -> tuple[int | None, int | None]:
    """Return the cores for server and client; None where fewer than two are free, or `taskset` is missing."""
    free = sorted(os.sched_getaffinity(0))
    return (free[0], free[1]) if len(free) > 1 and shutil.which("taskset") else (None, None)


class Group:
    """Starts processes of one side, in a control group of its own where one can be made."""

    def __init__(self, name: str, core: int | None) -> None:
        self._core = core
        self._folders, self._usage = _make_control_group(f"servetune-bench-{os.getpid()}-{name}")
        self._root: psutil.Process | None = None
        self._seen_s: dict[int, float] = {}

    @property
    def is_weighted(self) -> bool:
        """Whether the scheduler favours these processes over others of the machine."""
        return bool(self._folders)

    def start(self, argv: Sequence[str], *, env: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
        """Start a program; what it prints goes to files of the folder, `NAME.out` and `NAME.err` after its own name."""
        pinned = [] if self._core is None else ["taskset", "-c", str(self._core)]
        joins = ["/bin/sh", "-c", _JOIN, "sh"] if self._folders else []
        procs = " ".join(str(path / "cgroup.procs") for path in self._folders)
        name = Path(argv[0]).name
        with (folder / f"{name}.out").open("wb") as out, (folder / f"{name}.err").open("wb") as err:
            process = subprocess.Popen(
                [*joins, *pinned, *argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env={**env, "SERVETUNE_PROCS": procs},
                start_new_session=True,
            )
        self._root = psutil.Process(process.pid)
        self._seen_s = {}
        return process

    def pids(self) -> list[int]:
        """Return the processes that run now."""
        if self._folders:
            return [int(line) for line in (self._folders[0] / "cgroup.procs").read_text().split()]
        with suppress(psutil.Error):
            if self._root:
                return [self._root.pid, *(child.pid for child in self._root.children(recursive=True))]
        return []

    def cpu_s(self) -> float:
        """Return the CPU time, user and system, that all processes took, those that ended included."""
        if self._usage:
            return _read_usage_s(self._usage)
        for pid in self.pids():
            with suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                self._seen_s[pid] = times.user + times.system
        return sum(self._seen_s.values())

    def kill(self) -> None:
        """End what still runs."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Remove the control group."""
        self.kill()
        for folder in self._folders:
            for _ in range(50):
                with suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(0.02)
        self._folders = []


def _make_control_group(name: str) -> tuple[list[Path], Path | None]:
    """Return the folders to join and the file that counts CPU time; nothing where the user may not make them."""
    made: list[Path] = []
    try:
        if (_CONTROLLERS / "cgroup.controllers").exists():
            with suppress(OSError):
                (_CONTROLLERS / "cgroup.subtree_control").write_text("+cpu")
            made = [_CONTROLLERS / name]
            made[0].mkdir()
            (made[0] / "cpu.weight").write_text(str(_MOST_WEIGHT))
            return made, made[0] / "cpu.stat"
        for controller in ("cpu", "cpuacct"):
            folder = _CONTROLLERS / controller / name
            folder.mkdir(exist_ok=True)
            if folder.resolve() not in [other.resolve() for other in made]:
                made.append(folder)
        (made[0] / "cpu.shares").write_text(str(_MOST_SHARES))
        return made, made[-1] / "cpuacct.usage"
    except OSError:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        return [], None


def _read_usage_s(path: Path) -> float:
    text = path.read_text()
    if path.name == "cpu.stat":
        return int(text.split("usage_usec", 1)[1].split(maxsplit=1)[0]) / 1e6
    return int(text) / 1e9


class Sample(NamedTuple):
    """CPU time taken until a moment (ns of CLOCK_MONOTONIC)."""

    at_ns: int
    server_s: float
    client_s: float


class Memory(NamedTuple):
    """Peak resident memory of the client, in MiB."""

    largest: float
    """Of its largest process."""
    total: float
    """Of all at one moment."""
    worker: float | None
    """Of the largest process that makes servetune's load."""


class Watch:
    """Samples CPU time and memory while a client runs."""

    def __init__(self, server: Group, client: Group) -> None:
        self._server = server
        self._client = client
        self._samples: list[Sample] = []
        self._peaks: dict[int, float] = {}
        self._workers: dict[int, bool] = {}
        self._total = 0.0
        self._count = 0

    def sample(self) -> None:
        """Take one sample; memory less often."""
        self._samples.append(Sample(time.monotonic_ns(), self._server.cpu_s(), self._client.cpu_s()))
        self._count += 1
        if self._count % _MEMORY_EVERY == 0:
            self._sample_memory()

    def _sample_memory(self) -> None:
        total = 0.0
        for pid in self._client.pids():
            with suppress(OSError, KeyError):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
                self._peaks[pid] = int(fields["VmHWM"].split()[0]) / _KIB_PER_MIB
                total += int(fields["VmRSS"].split()[0]) / _KIB_PER_MIB
                if not self._workers.get(pid):
                    self._workers[pid] = b"servetune.loadgen.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        self._total = max(self._total, total)

    def cpu_s(self, begin_ns: int, end_ns: int) -> tuple[float, float]:
        """Return the CPU time of server and client between two moments, straight between the samples."""
        begin, end = self._at(begin_ns), self._at(end_ns)
        return end.server_s - begin.server_s, end.client_s - begin.client_s

    def _at(self, moment_ns: int) -> Sample:
        earlier = later = self._samples[0]
        for sample in self._samples:
            earlier, later = later, sample
            if sample.at_ns >= moment_ns:
                break
        span = later.at_ns - earlier.at_ns
        share = min(1.0, max(0.0, (moment_ns - earlier.at_ns) / span)) if span else 0.0
        return Sample(
            moment_ns,
            earlier.server_s + share * (later.server_s - earlier.server_s),
            earlier.client_s + share * (later.client_s - earlier.client_s),
        )

    def memory(self) -> Memory:
        """Return the peaks."""
        workers = [peak for pid, peak in self._peaks.items() if self._workers.get(pid)]
        return Memory(max(self._peaks.values(), default=0.0), self._total, max(workers, default=None))
