"""The load worker as a process: cancel, dead servers, dead parents, and a worker that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import servetune.loadgen
from servetune.errors import HostProblem, LoadFailed, UserError
from servetune.loadgen.run import LoadJob, read_records
from tests.unit.loadgen.scripted import GOOD, HEAD, Peer, good, load, requests, serving, token


def endless(peer: Peer, body: bytes) -> None:
    """Answer the first requests, then talk for ever."""
    if b"hello 0" in body:
        peer.send(GOOD)
        return
    peer.send(HEAD)
    while True:
        peer.send(token(), gap_s=0.02)


class After:
    """Turns true some time after it was first asked."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.begin: float | None = None

    def __call__(self) -> bool:
        """Whether the time has passed."""
        if self.begin is None:
            self.begin = time.monotonic()
        return time.monotonic() - self.begin > self.seconds


def test_cancel_hands_over_what_there_is(tmp_path: Path) -> None:
    """What ended is whole, what runs and what waits is cancelled; every request has a record."""
    third_began = After(0.3)
    with serving(endless) as server:
        records, facts, _ = load(
            server.url,
            tmp_path / "out",
            6,
            max_concurrency=2,
            cancelled=lambda: len(server.bodies) > 2 and third_began(),
        )
    kinds = [record.error.kind if record.error else None for record in records]
    assert kinds == [None, "cancelled", "cancelled", "cancelled", "cancelled", "cancelled"]
    assert len(records[1].event_flags) > 3
    assert (records[1].closed_ns or 0) < 5_000_000_000
    assert records[5].sent_ns is None
    assert facts.peak_open == 2


def test_cancel_before_anything_was_sent(tmp_path: Path) -> None:
    """During the warm-up too: all are recorded as cancelled."""
    with serving(endless) as server:
        records, _, _ = load(
            server.url, tmp_path / "out", 2, warmup=requests(1, "warm"), cancelled=After(0.4), request_rate=1.0
        )
    assert [(record.error.kind, record.sent_ns) for record in records if record.error] == [("cancelled", None)] * 2


def test_cancel_while_requests_are_due_later(tmp_path: Path) -> None:
    """An open loop does not wait for its schedule."""
    with serving(good) as server:
        records, _, _ = load(server.url, tmp_path / "out", 4, request_rate=0.05, cancelled=After(0.3))
    assert {record.error.kind for record in records if record.error} == {"cancelled"}


def test_a_dead_server_ends_the_load(tmp_path: Path) -> None:
    """Long before any time-out."""
    begin = time.monotonic()
    with serving(lambda peer, _: peer.send(HEAD)) as server:
        records, _, _ = load(server.url, tmp_path / "out", 2, server_alive=lambda: not After(0)())
    assert time.monotonic() - begin < 6
    assert [record.error.kind for record in records if record.error] == ["cancelled", "cancelled"]


def worker_of(parent: int) -> psutil.Process | None:
    """The load worker below `parent`."""
    for child in psutil.Process(parent).children(recursive=True):
        if "servetune.loadgen.worker" in child.cmdline():
            return child
    return None


def waiting_for_worker(parent: int) -> psutil.Process:
    """The load worker, once it is there."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if worker := worker_of(parent):
            return worker
        time.sleep(0.02)
    raise AssertionError("no worker came up")


PARENT = """
import sys
from pathlib import Path
from tests.unit.loadgen.scripted import load
load(sys.argv[1], Path(sys.argv[2]), 2)
"""


def test_a_killed_parent_takes_its_worker_along(tmp_path: Path) -> None:
    """And the records that it had are on disk."""
    with serving(endless) as server:
        parent = subprocess.Popen([sys.executable, "-c", PARENT, server.url, str(tmp_path / "out")])
        worker = waiting_for_worker(parent.pid)
        until = time.monotonic() + 10
        while not server.bodies and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.5)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(10)
        _, alive = psutil.wait_procs([worker], timeout=10)
        assert alive == []
    assert [record.error for record in read_records(tmp_path / "out") if record.index == 0] == [None]


def test_the_terminals_interrupt_does_not_reach_the_worker(tmp_path: Path) -> None:
    """It lives in a session of its own and ignores SIGINT."""
    seen: list[bool] = []

    def interrupt() -> bool:
        worker = None if seen else worker_of(os.getpid())
        if worker is not None:
            seen.append(os.getsid(worker.pid) == worker.pid)
            time.sleep(0.3)
            worker.send_signal(signal.SIGINT)
        return False

    def slow(peer: Peer, body: bytes) -> None:
        time.sleep(1.0)
        peer.send(GOOD)

    with serving(slow) as server:
        records, _, _ = load(server.url, tmp_path / "out", 1, cancelled=interrupt)
    assert seen == [True]
    assert records[0].error is None


def test_a_worker_that_dies_is_told(tmp_path: Path) -> None:
    """LoadFailed with its exit code."""
    killer = threading.Thread(target=lambda: waiting_for_worker(os.getpid()).kill())
    with serving(endless) as server:
        killer.start()
        with pytest.raises(LoadFailed, match="exit code -9") as failed:
            load(server.url, tmp_path / "out", 2)
        killer.join()
    assert failed.value.cause == "client-failed"


def test_records_that_cannot_be_written(tmp_path: Path) -> None:
    """A folder that is missing, and a disk that is full."""
    with serving(good) as server:
        with pytest.raises(HostProblem, match="No such file"):
            load(server.url, tmp_path / "missing" / "out", 1)
        with pytest.raises(HostProblem, match="No space left"):
            load(server.url, Path("/dev/full"), 1)


def test_a_name_that_does_not_resolve(tmp_path: Path) -> None:
    """Every request has a record of that kind; with a warm-up the load does not begin."""
    records, facts, _ = load("http://no-such-host.invalid:80", tmp_path / "out", 3)
    assert [(record.index, record.error.kind) for record in records if record.error] == [(at, "dns") for at in range(3)]
    assert facts.peak_open == 0
    with pytest.raises(LoadFailed, match=r"warmup-failed: dns: .*no-such-host"):
        load("http://no-such-host.invalid:80", tmp_path / "out", 1, warmup=requests(1, "warm"))


def test_too_many_open_files_are_refused_before_the_load(tmp_path: Path) -> None:
    """A limit below the number of requests at once is said, with the remedy."""
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n"
        "from pathlib import Path\n"
        "from tests.unit.loadgen.scripted import load\n"
        "load(sys.argv[1], Path(sys.argv[2]), 300)\n"
    )
    with serving(good) as server:
        ended = subprocess.run(
            [sys.executable, "-c", script, server.url, str(tmp_path / "out")],
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
    assert "332 open files are needed and 200 allowed" in ended.stderr


def test_headers_that_cannot_be_sent_are_the_users_mistake(tmp_path: Path) -> None:
    """Nothing is started."""
    with pytest.raises(UserError, match="header"):
        load("http://127.0.0.1:1", tmp_path / "out", 1, headers={"a": "b\nc"})


def test_the_package_offers_the_parents_side() -> None:
    """Imported when it is first used, so that a worker does not pay for it."""
    assert servetune.loadgen.LoadJob is LoadJob
    with pytest.raises(AttributeError):
        _ = servetune.loadgen.nothing
    heavy = "any(name in sys.modules for name in ('numpy', 'rich', 'tokenizers'))"
    code = f"import sys, servetune.loadgen.worker; sys.exit({heavy})"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
