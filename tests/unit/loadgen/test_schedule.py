"""How loads are sent: all at once, closed loop, by rate, and both together."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from servetune.loadgen.arrivals import offsets_ns
from servetune.records import Load, LoadProgress
from tests.unit.loadgen.scripted import DONE, GOOD, HEAD, LAST, Peer, good, load, requests, serving, token

MS = 1_000_000


class Gauge:
    """Counts how many requests are at the server at once, answering each after a while."""

    def __init__(self, pause_s: float = 0.1) -> None:
        self.pause_s = pause_s
        self.lock = threading.Lock()
        self.now = self.most = 0

    def script(self, peer: Peer, body: bytes) -> None:
        """Answer slowly."""
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(self.pause_s)
        with self.lock:
            self.now -= 1
        peer.send(GOOD)


def test_all_at_once(tmp_path: Path) -> None:
    """Connections are opened ahead, everything is sent at time 0, and nothing is reused."""
    gauge = Gauge(0.3)
    with serving(gauge.script) as server:
        records, facts, _ = load(server.url, tmp_path / "out", 30)
        assert len(server.peers) == 30
    assert gauge.most == facts.peak_open == 30
    assert {record.scheduled_ns for record in records} == {0}
    assert all(record.error is None and not record.reused_connection for record in records)
    assert max(record.sent_ns or 0 for record in records) < 200 * MS


def test_closed_loop_keeps_its_slots_full_on_few_connections(tmp_path: Path) -> None:
    """Never more than the limit; each slot's next request is due when the one before ended."""
    gauge = Gauge(0.05)
    with serving(gauge.script) as server:
        records, facts, _ = load(server.url, tmp_path / "out", 12, max_concurrency=3)
        assert len(server.peers) == 3
    assert gauge.most == facts.peak_open == 3
    assert [record.scheduled_ns for record in records[:3]] == [0, 0, 0]
    ends = sorted(record.closed_ns or 0 for record in records)
    assert sorted(record.scheduled_ns for record in records[3:]) == ends[:9]
    assert all((record.sent_ns or 0) >= record.scheduled_ns for record in records)
    assert sum(record.reused_connection for record in records) == 9


def test_a_connection_is_closed_when_nobody_waits_for_it(tmp_path: Path) -> None:
    """An idle connection would bind a thread of the server until the run ends."""
    closed = threading.Event()

    def script(peer: Peer, body: bytes) -> None:
        peer.send(GOOD)
        if b"hello 0" in body:
            peer.connection.settimeout(5)
            assert peer.connection.recv(1) == b""
            closed.set()
        else:
            assert closed.wait(5)

    with serving(script) as server:
        load(server.url, tmp_path / "out", 1)
    assert closed.is_set()


def test_rate_sends_on_an_absolute_schedule(tmp_path: Path) -> None:
    """Each request is sent at its due time, slow answers or not, on a connection opened before."""
    gauge = Gauge(0.2)
    with serving(gauge.script) as server:
        records, facts, _ = load(server.url, tmp_path / "out", 20, request_rate=50.0, arrival_seed=5)
    due = offsets_ns(20, Load(request_rate=50.0), 5)
    assert tuple(record.scheduled_ns for record in records) == due
    late = [(record.sent_ns or 0) - record.scheduled_ns for record in records]
    assert min(late) >= 0
    assert sorted(late)[10] < 5 * MS
    assert facts.late_sends == sum(delay > 5 * MS for delay in late)
    assert facts.duration_ns >= due[-1]


def test_rate_and_concurrency_together(tmp_path: Path) -> None:
    """The due time stays that of the schedule while a request waits for a slot, which is no lateness of the client."""
    gauge = Gauge(0.1)
    with serving(gauge.script) as server:
        records, facts, _ = load(server.url, tmp_path / "out", 8, request_rate=1000.0, max_concurrency=2)
    due = offsets_ns(8, Load(request_rate=1000.0), 0)
    assert tuple(record.scheduled_ns for record in records) == due
    assert gauge.most == facts.peak_open == 2
    assert (records[-1].sent_ns or 0) > 250 * MS
    assert facts.late_sends < 4


def test_a_slow_server_of_new_connections_is_not_flooded(tmp_path: Path) -> None:
    """More requests than may be on their way at once: all arrive."""
    with serving(good) as server:
        records, _, _ = load(server.url, tmp_path / "out", 300)
    assert [record.error for record in records] == [None] * 300


def test_ipv6(tmp_path: Path) -> None:
    """An address in brackets."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6 loopback")
    with serving(good, family=socket.AF_INET6) as server:
        records, _, _ = load(server.url, tmp_path / "out", 1)
        assert b"Host: [::1]:" in server.heads[0]
    assert records[0].error is None


def test_a_name_with_two_addresses_uses_the_one_that_listens(tmp_path: Path) -> None:
    """Localhost is often both ::1 and 127.0.0.1."""
    with serving(good) as server:
        records, _, _ = load(f"http://localhost:{server.port}", tmp_path / "out", 1)
    assert records[0].error is None


def test_headers_path_and_body_reach_the_server(tmp_path: Path) -> None:
    """Extra headers are added; the base path is kept."""
    with serving(good) as server:
        load(f"{server.url}/base", tmp_path / "out", 1, headers={"Authorization": "Bearer k"})
        head = server.heads[0]
    assert head.startswith(b"POST /base/v1/chat/completions HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer k" in head
    assert b"\r\nAccept: text/event-stream" in head


def test_facts_and_progress(tmp_path: Path) -> None:
    """What the client says about itself, and what it says while it runs."""

    def script(peer: Peer, body: bytes) -> None:
        peer.send(HEAD, *[token() for _ in range(30)], gap_s=0.03)
        peer.send(DONE + LAST)

    with serving(script) as server:
        records, facts, events = load(server.url, tmp_path / "out", 2)
    assert (facts.workers, facts.api, facts.stamps) == (1, "chat", "kernel")
    assert 0 < facts.cpu_share < 2
    assert abs(facts.clock_step_ns) < 5 * MS
    assert abs(facts.epoch_ns - time.time_ns()) < 60_000 * MS
    assert facts.max_loop_lag_ms >= 0
    assert facts.duration_ns == max(record.closed_ns or 0 for record in records)
    progress = [found for found in events if isinstance(found, LoadProgress)]
    assert len(progress) >= 3
    assert all(found.total == 2 for found in progress)
    assert any(found.chunks_per_s > 10 for found in progress)


def test_merged_events_are_counted(tmp_path: Path) -> None:
    """Three tokens in one packet: the first token's time is not known exactly."""

    def script(peer: Peer, body: bytes) -> None:
        peer.send(HEAD)
        time.sleep(0.15)
        peer.send(token() + token() + token())
        time.sleep(0.15)
        peer.send(token(), DONE + LAST)

    with serving(script) as server:
        records, facts, _ = load(server.url, tmp_path / "out", 1)
    assert (facts.multi_event_reads, facts.unresolved_ttft) == (0.5, 1.0)
    assert records[0].read_events[0] == 3


def test_the_usual_end_of_a_stream_is_no_merged_read(tmp_path: Path) -> None:
    """Usage and DONE come in one packet behind the last token: nothing is uncertain."""

    def script(peer: Peer, body: bytes) -> None:
        peer.send(HEAD, token(), gap_s=0.15)
        peer.send(token(), DONE + LAST, gap_s=0.15)

    with serving(script) as server:
        _, facts, _ = load(server.url, tmp_path / "out", 1)
    assert (facts.multi_event_reads, facts.unresolved_ttft) == (0.0, 0.0)


def test_kernel_stamps_are_the_time_of_arrival(tmp_path: Path) -> None:
    """Send times of the server and receive times of the records lie within a millisecond."""
    sent: list[int] = []

    def script(peer: Peer, body: bytes) -> None:
        peer.send(HEAD)
        for _ in range(10):
            time.sleep(0.02)
            sent.append(time.time_ns())
            peer.send(token())
        time.sleep(0.02)
        peer.send(DONE + LAST)

    with serving(script) as server:
        (record,), facts, _ = load(server.url, tmp_path / "out", 1)
    errors = [facts.epoch_ns + got - gone for got, gone in zip(record.reads_ns, sent, strict=False)]
    assert sorted(errors)[5] < 1 * MS
    assert min(errors) > -1 * MS


def test_requests_keep_their_own_facts(tmp_path: Path) -> None:
    """Index, lengths and text of each."""
    with serving(good) as server:
        records, _, _ = load(server.url, tmp_path / "out", requests=requests(2, first=5), keep_text=True)
    assert [(record.index, record.requested_tokens, record.local_prompt_tokens) for record in records] == [
        (5, 2, 2),
        (6, 2, 2),
    ]
    assert records[0].text == "ab"
