"""Several workers on one load, and what they and the loop are made of."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from servetune.loadgen.connection import Connection, Pool
from servetune.loadgen.job import PreparedRequest
from servetune.loadgen.loop import READ, Loop, _Portable
from servetune.loadgen.measure import Processor, Sample
from servetune.loadgen.run import LoadJob, first_worker, merged, run_load, workers_for
from servetune.loadgen.supply import Schedule, Tickets
from servetune.loadgen.transport import Route
from servetune.records import ClientFacts, Load, RequestError
from tests.unit.loadgen.scripted import GOOD, Peer, good, load, requests, serving
from tests.unit.loadgen.test_run import endless

MS = 1_000_000


def prepared(count: int, gap_ns: int = 0) -> tuple[PreparedRequest, ...]:
    """Requests that are due one after the other."""
    return tuple(
        PreparedRequest(index=at, begin=0, size=0, due_ns=at * gap_ns, requested_tokens=1, local_prompt_tokens=1)
        for at in range(count)
    )


# --------------------------------------------------------------------------- loads of several workers


def test_closed_loop_slots_of_two_workers_share_one_counter(tmp_path: Path) -> None:
    """One worker's slots are slow: the other one takes the rest, and every request is sent once."""
    lock = threading.Lock()
    slow: set[Peer] = set()

    def script(peer: Peer, _: bytes) -> None:
        with lock:
            if len(slow) < 2:
                slow.add(peer)
        time.sleep(0.5 if peer in slow else 0.01)
        peer.send(GOOD)

    with serving(script) as server:
        records, facts, events = load(server.url, tmp_path / "out", 60, max_concurrency=4, workers=2)
        assert len(server.peers) == 4
    assert [record.index for record in records] == list(range(60))
    assert all(record.error is None for record in records)
    assert (facts.workers, facts.peak_open) == (2, 4)
    # Two slots that each take half a second get few of the sixty.
    assert max(record.closed_ns or 0 for record in records) < 2_000 * MS
    assert events


def test_two_workers_follow_one_schedule(tmp_path: Path) -> None:
    """Each request is sent when it is due on the common clock."""
    with serving(good) as server:
        records, facts, _ = load(server.url, tmp_path / "out", 40, request_rate=100.0, workers=2)
    assert [record.index for record in records] == list(range(40))
    lags = [(record.sent_ns or 0) - record.scheduled_ns for record in records]
    assert min(lags) >= 0
    assert sorted(lags)[len(lags) // 2] < 10 * MS
    assert facts.workers == 2


def test_cancelled_workers_account_for_every_request(tmp_path: Path) -> None:
    """Those that nobody had taken are recorded once."""
    begin = time.monotonic()
    with serving(endless) as server:
        records, _, _ = load(
            server.url,
            tmp_path / "out",
            20,
            max_concurrency=4,
            workers=2,
            cancelled=lambda: time.monotonic() - begin > 0.8,
        )
    assert [record.index for record in records] == list(range(20))
    assert {record.error.kind for record in records if record.error} == {"cancelled"}


def test_a_worker_started_early_gets_its_job_later(tmp_path: Path) -> None:
    """And ends with the block, used or not."""
    with serving(good) as server:
        job = LoadJob(url=server.url, requests=requests(3))
        with first_worker() as first:
            facts = run_load(
                job,
                out=tmp_path / "out",
                emit=lambda _: None,
                cancelled=lambda: False,
                server_alive=lambda: True,
                first=first,
            )
    assert facts.workers == 1
    with first_worker() as unused:
        assert unused.process.has_ended is False


def test_an_error_rate_ends_the_load_of_all_workers(tmp_path: Path) -> None:
    """What had ended is kept, and the facts say why it stopped."""

    def script(peer: Peer, _: bytes) -> None:
        time.sleep(0.01)
        peer.send(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")

    with serving(script) as server:
        records, facts, _ = load(server.url, tmp_path / "out", 2000, max_concurrency=4, workers=2, max_error_rate=0.5)
    kinds = {record.error.kind for record in records if record.error}
    assert kinds == {"http-status", "cancelled"}
    assert len(records) == 2000
    assert "failed, more than 50%" in facts.aborted
    assert any("ended early" in record.error.message for record in records if record.error)


@pytest.mark.parametrize(
    ("load_", "count", "gap_ms", "cores", "expected"),
    [
        (Load(max_concurrency=256), 1000, 20.0, 16, 1),
        (Load(max_concurrency=1000), 1000, 20.0, 16, 2),
        (Load(max_concurrency=1000), 5000, 2.0, 16, 13),
        (Load(max_concurrency=1000), 5000, 2.0, 4, 3),
        (Load(max_concurrency=1000), 5000, 2.0, 1, 1),
        (Load(max_concurrency=2), 5000, 0.001, 16, 2),
        (Load(), 4000, None, 16, 5),
        (Load(workers=3), 1000, 2.0, 2, 3),
        (Load(workers=3), 2, 2.0, 2, 2),
    ],
)
def test_how_many_workers(load_: Load, count: int, gap_ms: float | None, cores: int, expected: int) -> None:
    """By expected chunks per second, never more than cores allow, unless the user says so."""
    assert workers_for(load_, count, gap_ms, cores) == expected


def test_facts_of_several_workers_are_merged() -> None:
    """Sums, means by chunks, and the worst."""
    one = ClientFacts(
        stamps="kernel", workers=1, epoch_ns=5, duration_ns=10, clock_step_ns=-3, cpu_share=0.5, max_loop_lag_ms=1.0,
        late_sends=1, multi_event_reads=0.1, unresolved_ttft=0.0, peak_open=3, chunks=300, retried=1,
    )  # fmt: skip
    two = msgspec.structs.replace(
        one, stamps="user", duration_ns=20, clock_step_ns=2, multi_event_reads=0.5, chunks=100
    )
    both = merged([one, two])
    assert (both.workers, both.stamps, both.duration_ns, both.clock_step_ns) == (2, "user", 20, -3)
    assert (both.cpu_share, both.peak_open, both.late_sends, both.chunks, both.retried) == (1.0, 6, 2, 400, 2)
    assert both.multi_event_reads == pytest.approx(0.2)
    assert merged([one]) is one


# --------------------------------------------------------------------------- parts


def test_tickets_are_drawn_once() -> None:
    """Whoever draws: all that inherit the file share one position in it."""
    with tempfile.TemporaryFile() as file:
        Tickets.write(file, 3000)
        tickets = Tickets(prepared(3000), file.fileno())
        other = Tickets(prepared(3000), os.dup(file.fileno()))
        drawn: list[int] = []
        while (request := tickets.take()) is not None:
            drawn.append(request.index)
            if (more := other.take()) is not None:
                drawn.append(more.index)
        assert drawn == list(range(3000))
        assert tickets.remaining() == other.remaining() == 0


def test_a_schedule_tells_what_comes() -> None:
    """In order of due times."""
    schedule = Schedule(prepared(4, gap_ns=10))
    assert (schedule.remaining(), schedule.due_ns(), schedule.due_before(20)) == (4, 0, 3)
    assert schedule.first_due_after(3) == 30
    assert schedule.first_due_after(4) is None
    assert [request.index for request in iter(schedule.take, None)] == [0, 1, 2, 3]
    assert (schedule.remaining(), schedule.due_ns(), schedule.due_before(99)) == (0, None, 0)


def test_timers_run_in_order_and_can_be_taken_back() -> None:
    """Never early."""
    loop = Loop()
    seen: list[str] = []
    loop.later(20 * MS, lambda: seen.append("second"))
    loop.later(5 * MS, lambda: seen.append("first"))
    loop.later(10 * MS, lambda: seen.append("never")).cancel()
    loop.later(30 * MS, loop.stop)
    begin = time.monotonic_ns()
    loop.run()
    assert seen == ["first", "second"]
    assert time.monotonic_ns() - begin >= 30 * MS
    loop.close()


@pytest.mark.parametrize("is_portable", [False, True])
def test_sockets_are_served_while_the_loop_naps(monkeypatch: pytest.MonkeyPatch, is_portable: bool) -> None:
    """With epoll and with poll(2); work that can wait is done in the naps."""
    if is_portable:
        monkeypatch.setattr("servetune.loadgen.loop._EDGES", 0)
    loop = Loop()
    assert isinstance(loop._poller, _Portable) == is_portable  # which one is what is tested
    left, right = socket.socketpair()
    heard: list[bytes] = []
    worked: list[int] = []

    def work(slice_ns: int) -> bool:
        worked.append(slice_ns)
        return False

    def hear(mask: int) -> None:
        assert mask == READ
        heard.append(right.recv(100))
        loop.stop()

    with left, right:
        loop.watch(right.fileno(), hear)
        loop.nap_ns = MS
        loop.idle = work
        loop.later(3 * MS, partial(left.sendall, b"x"))
        loop.run()
        loop.forget(right.fileno())
    assert heard == [b"x"]
    assert worked
    loop.close()


def test_ports_of_one_source_address_may_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the pool binds the next address of the loopback network."""
    asked: list[int] = []

    class Scarce(socket.socket):
        def connect_ex(self, address: Any) -> int:
            asked.append(1)
            return errno.EADDRNOTAVAIL if len(asked) == 1 else super().connect_ex(address)

    with serving(good) as server:
        loop = Loop()
        host, port = server.url.removeprefix("http://").split(":")
        route = Route(family=socket.AF_INET, address=(host, int(port)), tls=False, server_name="")
        pool = Pool(loop, route, None, lambda _: lambda _: None)
        monkeypatch.setattr("servetune.loadgen.connection.socket.socket", Scarce)
        sources: list[str] = []

        def opened(connection: Connection | None, error: RequestError | None) -> None:
            assert connection is not None, error
            sources.append(connection.socket.getsockname()[0])
            loop.stop()

        pool.open(opened)
        loop.run()
        assert sources == ["127.0.0.2"]
        pool.close_all()
        loop.close()


def test_samples_stay_small_and_true() -> None:
    """Quantiles of a million values from a few thousand."""
    sample = Sample(most=1000)
    assert sample.quantile(0.5) == 0
    for value in range(100_000):
        sample.add(value)
    assert len(sample.values) <= 1000
    assert sample.quantile(0.5) == pytest.approx(50_000, rel=0.02)
    assert sample.quantile(0.99) == pytest.approx(99_000, rel=0.02)


def test_the_processors_share_is_measured() -> None:
    """A busy process runs nearly all the time; what it waited is no less than nothing."""
    processor = Processor()
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    ran, waited = processor.shares()
    assert 0.0 < ran <= 1.05
    assert waited >= 0.0
