"""Kernel time stamps, and which address a name leads to."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from servetune.errors import LoadFailed
from servetune.loadgen import run
from servetune.loadgen.connection import own_mark, stamps_ns
from tests.unit.loadgen.scripted import good, load, serving
from tests.unit.loadgen.test_run import endless, waiting_for_worker


def test_stamps_are_read() -> None:
    """The kernel's are seconds and nanoseconds of a timespec, one behind the other; our own have the same form."""
    kernel = struct.pack("@qq", 3, 7)
    assert stamps_ns(kernel + kernel) == [3_000_000_007, 3_000_000_007]
    assert stamps_ns(b"") == []
    before = time.time_ns()
    assert before <= stamps_ns(own_mark())[0] <= time.time_ns()


def test_a_name_leads_to_the_address_that_accepts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first address refuses, the second one serves; if all refuse, the first is taken and its error told."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = listener.getsockname()[1]
    addresses: list[Any] = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", dead))]
    with serving(good) as server:
        alive = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [*addresses, alive])
        records, _, _ = load("http://two.example:80", tmp_path / "out", 1)
    assert records[0].error is None
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses * 2)
    records, _, _ = load("http://two.example:80", tmp_path / "out", 1)
    assert records[0].error is not None
    assert records[0].error.message == "Connection refused"


def test_a_worker_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process does not hand over; after its time it is ended, and the load has failed."""
    monkeypatch.setattr(run, "_HAND_OVER_S", 0.3)
    stopped: list[int] = []

    def stop() -> bool:
        if not stopped:
            stopped.append(waiting_for_worker(os.getpid()).pid)
            os.kill(stopped[0], signal.SIGSTOP)
        return True

    with serving(endless) as server, pytest.raises(LoadFailed, match="exit code -9"):
        load(server.url, tmp_path / "out", 2, cancelled=stop)
