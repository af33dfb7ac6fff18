"""Every bad thing a server can do ends in the right record, from real sockets."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, get_args

import pytest

from servetune.errors import LoadFailed
from servetune.records import EVENT_CONTENT, ClientFacts, RequestErrorKind, RequestRecord
from tests.unit.loadgen.faulty import (
    BROKEN,
    HARMLESS,
    SOUND,
    STUCK,
    TOKENS,
    FaultyServer,
    ask,
    deaf,
    faulty,
    refusing,
    sized,
    timing,
    unreachable,
)
from tests.unit.loadgen.scripted import GOOD, Peer, Script, load, requests, serving

MS = 1_000_000
LONGEST_MESSAGE = 1024 + 200
"""A kilobyte of the body, and what is said before it."""


def send(
    names: Sequence[str], folder: Path, **changes: Any
) -> tuple[FaultyServer, list[RequestRecord], ClientFacts, float]:
    """Ask a server for these faults; returns it, the records in the order of the names, the facts, and the seconds."""
    padding = changes.pop("padding", 0)
    with faulty() as server:
        begin = time.monotonic()
        records, facts, _ = load(server.url, folder / "out", requests=ask(names, padding), **changes)
        took_s = time.monotonic() - begin
    assert [record.index for record in records] == list(range(len(names)))
    return server, records, facts, took_s


def says(*parts: bytes) -> Script:
    """A script that sends these parts and closes the connection."""

    def script(peer: Peer, body: bytes) -> None:
        peer.send(*parts)
        peer.close()

    return script


def kinds(records: Sequence[RequestRecord]) -> list[RequestErrorKind | None]:
    """The kind of each record's error."""
    return [record.error.kind if record.error else None for record in records]


def tokens_of(record: RequestRecord) -> int:
    """Events with visible text."""
    return sum(bool(flags & EVENT_CONTENT) for flags in record.event_flags)


def connections_tried() -> int:
    """How often any program on this machine tried to connect so far."""
    names, values = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if "Tcp:" in line]
    return int(values[names.index("ActiveOpens")])


def assert_measured(record: RequestRecord, server: FaultyServer, facts: ClientFacts) -> None:
    """A sound answer was received whole, each token within the times that its record states."""
    assert (record.error, record.status, tokens_of(record)) == (None, 200, TOKENS)
    assert (record.usage_prompt_tokens, record.usage_output_tokens) == (7, TOKENS)
    lags, holds = timing(record, server, facts)
    assert holds
    assert not lags or median(lags) < 3 * MS
    assert record.sent_ns is not None
    assert record.sent_ns <= record.reads_ns[0]
    assert record.closed_ns is not None
    assert record.closed_ns >= record.reads_ns[-1]


# --------------------------------------------------------------------------- faults by name


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RequestRecord]:
    """Each fault that ends by itself, all in one load, with the record of its request."""
    names = [*BROKEN, *HARMLESS]
    _, records, _, took_s = send(names, tmp_path_factory.mktemp("ended"), keep_text=True)
    assert took_s < 15
    return dict(zip(names, records, strict=True))


@pytest.mark.parametrize("name", BROKEN)
def test_broken_answers(ended: dict[str, RequestRecord], name: str) -> None:
    """Kind and reason of each; the message has what a user needs and no more."""
    record, fault = ended[name], BROKEN[name]
    assert record.error is not None
    assert (record.error.kind, fault.says in record.error.message) == (fault.kind, True), record.error
    assert record.error.message
    assert len(record.error.message) <= LONGEST_MESSAGE
    assert record.sent_ns is not None
    assert record.closed_ns is not None
    assert record.closed_ns >= record.sent_ns
    assert record.retries == 0


@pytest.mark.parametrize("name", HARMLESS)
def test_unusual_answers_that_are_whole(ended: dict[str, RequestRecord], name: str) -> None:
    """Nothing is missing, so nothing failed."""
    record = ended[name]
    assert (record.error, record.status, record.retries) == (None, 200, 0)
    assert record.text == f"<{record.index}>" + "".join(f" w{at}" for at in range(1, TOKENS))
    assert record.usage_output_tokens == (None if name == "no-usage" else TOKENS)


def test_a_status_other_than_200_is_recorded(ended: dict[str, RequestRecord]) -> None:
    """With the first kilobyte of the body."""
    expected = {f"status-{status}": status for status in (302, 307, 400, 401, 404, 429, 500, 503)}
    assert {name: ended[name].status for name in expected} == expected
    for name in ("status-400", "status-503", "status-500-flood"):
        error = ended[name].error
        assert error is not None
        assert len(error.message) > 1000


def test_what_came_before_the_fault_is_kept(ended: dict[str, RequestRecord]) -> None:
    """Two tokens, with their times."""
    names = (
        "reset-mid-stream", "close-mid-stream", "close-mid-chunk", "stops-short", "invalid-json", "invalid-utf8",
        "error-in-stream", "bad-chunk",
    )  # fmt: skip
    assert {name: tokens_of(ended[name]) for name in names} == dict.fromkeys(names, 2)


def test_an_endless_answer_is_cut_at_the_declared_multiple(tmp_path: Path) -> None:
    """Never before 64 events; a firehose is cut a little later, since events are counted now and then."""
    names = ["endless-tokens"]
    few = send(names, tmp_path, overrun_factor=2.0)[1][0]
    many = send(names, tmp_path, overrun_factor=20.0)[1][0]
    assert kinds([few, many]) == ["overrun", "overrun"]
    assert 64 < tokens_of(few) < 160
    assert 20 * TOKENS < tokens_of(many) < 320


def test_sound_requests_beside_broken_ones_are_measured_as_ever(tmp_path: Path) -> None:
    """Floods, endless lines and resets on other connections change none of their times."""
    names = [name for pair in zip(BROKEN, [SOUND] * len(BROKEN), strict=True) for name in pair]
    server, records, facts, took_s = send(names, tmp_path, max_concurrency=16)
    assert took_s < 15
    assert kinds(records[::2]) == [fault.kind for fault in BROKEN.values()]
    for record in records[1::2]:
        assert_measured(record, server, facts)


# --------------------------------------------------------------------------- limits of time


def test_silent_streams_are_cut(tmp_path: Path) -> None:
    """The idle time-out ends each, wherever it fell silent; no other limit is set."""
    names = ["silent", *[name for name, fault in STUCK.items() if fault.kind == "idle-timeout"], SOUND]
    server, records, facts, took_s = send(names, tmp_path, idle_timeout_s=0.4)
    assert took_s < 5
    assert kinds(records) == ["idle-timeout"] * (len(names) - 1) + [None]
    assert all(record.error is None or "0.4 s" in record.error.message for record in records)
    assert all(0.4e9 < (record.closed_ns or 0) < 3e9 for record in records[:-1])
    assert [tokens_of(record) for record in records[3:5]] == [3, 2]
    assert_measured(records[-1], server, facts)


def test_streams_that_never_end_are_cut(tmp_path: Path) -> None:
    """The total time-out ends each, however much it talks; an answer that does not begin has a limit of its own."""
    names = ["silent", *[name for name, fault in STUCK.items() if fault.kind == "total-timeout"], SOUND]
    limits = {"first_byte_timeout_s": 0.3, "idle_timeout_s": 5.0, "total_timeout_s": 0.8}
    server, records, facts, took_s = send(names, tmp_path, **limits)
    assert took_s < 5
    assert kinds(records) == ["first-byte-timeout", *["total-timeout"] * (len(names) - 2), None]
    assert records[0].error is not None
    assert "0.3 s" in records[0].error.message
    assert 0.3e9 < (records[0].closed_ns or 0) < 0.7e9
    assert all(0.8e9 < (record.closed_ns or 0) < 3e9 for record in records[1:-1])
    assert_measured(records[-1], server, facts)


def test_a_server_that_reads_nothing(tmp_path: Path) -> None:
    """Its system accepts connections for it, and of a large request only a part."""
    with deaf() as url:
        asked = (*ask(["small"]), *requests(1, prompt="x" * 8_000_000, first=1))
        records, _, _ = load(url, tmp_path / "out", requests=asked, first_byte_timeout_s=0.3)
    assert kinds(records) == ["first-byte-timeout"] * 2
    assert all(record.sent_ns is not None for record in records)
    assert records[0].sent_done_ns is not None
    assert records[1].sent_done_ns is None


def test_a_request_in_the_queue_waits_while_others_are_served(tmp_path: Path) -> None:
    """No first token for longer than the idle time-out is no silence of the server."""

    def script(peer: Peer, body: bytes) -> None:
        if b"hello 0" in body:
            peer.send(GOOD[:-5], *[b"1\r\n:\r\n"] * 9, gap_s=0.1)
            peer.send(b"0\r\n\r\n")
        else:
            time.sleep(0.9)
            peer.send(GOOD)

    with serving(script) as server:
        records, _, _ = load(server.url, tmp_path / "out", 2, idle_timeout_s=0.5)
    assert kinds(records) == [None, None]


# --------------------------------------------------------------------------- connections


def test_a_refused_connection(tmp_path: Path) -> None:
    """Nobody listens: each request says so, at once."""
    with refusing() as url:
        records, facts, _ = load(url, tmp_path / "out", 5, max_concurrency=2)
    assert [(record.error.kind, record.error.message) for record in records if record.error] == [
        ("connect-refused", "Connection refused")
    ] * 5
    assert (facts.peak_open, records[0].sent_ns, records[0].retries) == (0, None, 0)


def test_a_server_that_is_away_is_not_flooded(tmp_path: Path) -> None:
    """Connections that are opened ahead of a schedule are not asked for again and again."""
    before = connections_tried()
    with refusing() as url:
        records, _, _ = load(url, tmp_path / "out", 20, request_rate=40.0, burstiness=float("inf"))
    assert kinds(records) == ["connect-refused"] * 20
    assert all(abs((record.closed_ns or 0) - record.scheduled_ns) < 200 * MS for record in records)
    assert connections_tried() - before < 1000


def test_a_connection_that_is_never_made(tmp_path: Path) -> None:
    """The server's queue is full: no more than the total time-out is spent on it."""
    begin = time.monotonic()
    with unreachable() as url:
        records, _, _ = load(url, tmp_path / "out", 3, total_timeout_s=0.5)
    assert kinds(records) == ["connect-timeout"] * 3
    assert all(record.sent_ns is None for record in records)
    assert time.monotonic() - begin < 5


def test_a_name_that_does_not_resolve(tmp_path: Path) -> None:
    """Each request says so."""
    records, facts, _ = load("http://nosuch.invalid:80", tmp_path / "out", 3)
    assert kinds(records) == ["dns"] * 3
    assert all(record.error is not None and "nosuch.invalid" in record.error.message for record in records)
    assert (facts.peak_open, records[0].sent_ns) == (0, None)


@pytest.mark.parametrize("name", ["reset-when-kept", "close-when-kept"])
def test_a_kept_connection_that_broke_is_tried_again(tmp_path: Path, name: str) -> None:
    """The server gives up each connection after one answer without saying so: one retry, on a fresh one, counted."""
    server, records, facts, _ = send([name] * 6, tmp_path, max_concurrency=1)
    assert kinds(records) == [None] * 6
    assert [record.retries for record in records] == [0, 1, 1, 1, 1, 1]
    assert (facts.retried, server.connections, len(server.seen)) == (5, 6, 11)
    assert not any(record.reused_connection for record in records)
    for record in records:
        assert_measured(record, server, facts)


def test_a_retry_keeps_the_first_start(tmp_path: Path) -> None:
    """The time until the connection turned out to be broken is part of the request's."""

    def script(peer: Peer, body: bytes) -> None:
        if peer.requests:
            time.sleep(0.05)
            peer.reset()
        else:
            peer.send(GOOD)

    with serving(script) as server:
        records, _, _ = load(server.url, tmp_path / "out", 2, max_concurrency=1)
    retried = records[1]
    assert (retried.error, retried.retries) == (None, 1)
    assert retried.sent_ns is not None
    assert retried.reads_ns[0] - retried.sent_ns > 0.05e9


def test_a_request_is_tried_again_only_once(tmp_path: Path) -> None:
    """A fresh connection that breaks too is the server's failure."""
    server, records, facts, _ = send(["no-usage", "reset-before-answer", "no-usage"], tmp_path, max_concurrency=1)
    assert kinds(records) == [None, "reset-before-answer", None]
    assert [record.retries for record in records] == [0, 1, 0]
    assert facts.retried == 1
    assert [name for _, name in server.seen].count("reset-before-answer") == 2


def test_a_fresh_connection_that_breaks_is_not_tried_again(tmp_path: Path) -> None:
    """And an answer that began is never asked for twice, on a kept connection either."""
    names = ["reset-before-answer", "close-before-answer", "no-usage", "reset-mid-stream", "no-usage", "close-in-head"]
    server, records, facts, _ = send(names, tmp_path, max_concurrency=1)
    assert kinds(records) == [BROKEN[name].kind if name in BROKEN else None for name in names]
    assert [record.retries for record in records] == [0] * 6
    assert [record.reused_connection for record in records] == [False, False, False, True, False, True]
    assert (facts.retried, len(server.seen)) == (0, 6)


def test_a_kept_connection_that_broke_while_the_server_is_gone(tmp_path: Path) -> None:
    """The retry finds nobody: a refused connection that says what came before."""

    def script(peer: Peer, body: bytes) -> None:
        if peer.requests:
            server.listener.shutdown(socket.SHUT_RDWR)
            server.listener.close()
            peer.reset()
        else:
            peer.send(GOOD)

    with serving(script) as server:
        records, _, _ = load(server.url, tmp_path / "out", 2, max_concurrency=1)
        server.listener = socket.create_server(("127.0.0.1", 0))
    assert records[1].error is not None
    assert records[1].error.kind == "connect-refused"
    assert "after the server closed" in records[1].error.message


def test_a_new_connection_for_each_request(tmp_path: Path) -> None:
    """On demand nothing is kept, so nothing is tried again."""
    names = ["reset-when-kept", "no-usage", "reset-before-answer", "no-usage", "with-length"]
    server, records, facts, _ = send(names, tmp_path, max_concurrency=1, connections="new")
    assert kinds(records) == [None, None, "reset-before-answer", None, None]
    assert not any(record.reused_connection or record.retries for record in records)
    assert (server.connections, facts.retried) == (5, 0)


def test_bytes_that_nobody_asked_for_are_no_answer(tmp_path: Path) -> None:
    """Neither right behind an answer nor later, on a connection that waits: each request gets its own answer."""
    names = ["junk-behind", "with-length", "junk-behind", "no-usage", "with-length", "junk-behind", "with-length"]
    server, records, _, _ = send(names, tmp_path, max_concurrency=1, keep_text=True)
    assert kinds(records) == [None] * 7
    assert [record.text.split(">")[0] for record in records] == [f"<{index}" for index in range(7)]
    assert [record.reused_connection for record in records] == [False, False, True, False, True, True, False]
    assert server.connections == 4


def test_bytes_that_come_while_a_connection_waits(tmp_path: Path) -> None:
    """It is given up before the next request is sent on it."""
    names = ["junk-later"] * 8
    rate = {"request_rate": 25.0, "burstiness": float("inf")}
    _, records, _, _ = send(names, tmp_path, keep_text=True, **rate)
    assert kinds(records) == [None] * 8
    assert [record.text.split(">")[0] for record in records] == [f"<{index}" for index in range(8)]
    assert not any(record.reused_connection or record.retries for record in records)


@pytest.mark.parametrize("head", [b"Connection: close\r\n", b""], ids=["says so", "HTTP/1.0"])
def test_connections_that_are_not_kept(tmp_path: Path, head: bytes) -> None:
    """Each request has a connection of its own, without a retry."""
    version = b"HTTP/1.1" if head else b"HTTP/1.0"
    answer = version + b" 200 OK\r\n" + head + b"\r\n" + b'data: {"choices":[{"text":"a"}]}\n\ndata: [DONE]\n\n'
    with serving(says(answer)) as server:
        records, _, _ = load(server.url, tmp_path / "out", 4, max_concurrency=2)
        assert len(server.peers) == 4
    assert [(record.error, record.retries) for record in records] == [(None, 0)] * 4


# --------------------------------------------------------------------------- requests and warm-up


def test_a_large_body_is_sent_whole_to_a_slow_reader(tmp_path: Path) -> None:
    """Partial sends go on when the socket takes more; the end of the send has its own time."""
    big = requests(2, prompt="x" * 8_000_000)

    def script(peer: Peer, body: bytes) -> None:
        assert len(json.loads(body)["messages"][0]["content"]) > 8_000_000
        peer.send(GOOD)

    with serving(script) as server:
        records, _, _ = load(server.url, tmp_path / "out", requests=big)
    assert [record.error for record in records] == [None, None]
    for record in records:
        assert record.sent_ns is not None
        assert record.sent_done_ns is not None
        assert record.sent_done_ns > record.sent_ns


def test_an_answer_that_comes_before_the_request_was_read(tmp_path: Path) -> None:
    """A server that refuses a large body and closes: its answer counts, not the broken send."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            connection, _ = listener.accept()
            connection.recv(1000)
            connection.sendall(sized("413 Content Too Large", b"too long"))
            connection.shutdown(socket.SHUT_WR)
            time.sleep(0.3)
            connection.close()

        thread = threading.Thread(target=refuse)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        (record,), _, _ = load(url, tmp_path / "out", requests=requests(1, prompt="x" * 8_000_000))
        thread.join()
    assert record.error is not None
    assert record.error.message == "HTTP 413: too long"


def test_a_warmup_that_fails_altogether_stops_the_load(tmp_path: Path) -> None:
    """The evidence holds the server's words."""
    with (
        serving(says(sized("400 Bad Request", b"unknown field ignore_eos"))) as server,
        pytest.raises(LoadFailed, match="unknown field ignore_eos") as failed,
    ):
        load(server.url, tmp_path / "out", 3, warmup=requests(2, "warm"))
    assert failed.value.cause == "warmup-failed"
    assert len(server.bodies) == 2


def test_a_warmup_that_works_is_not_recorded(tmp_path: Path) -> None:
    """Its prompts are sent first; one failure among them is accepted."""

    def script(peer: Peer, body: bytes) -> None:
        peer.send(sized("500 Oh", b"") if b"warm 0" in body else GOOD)

    with serving(script) as server:
        records, _, _ = load(server.url, tmp_path / "out", 2, warmup=requests(2, "warm"))
        assert all(b"warm" in body for body in server.bodies[:2])
        assert not any(b"warm" in body for body in server.bodies[2:])
    assert len(records) == 2


def test_every_kind_of_failure_is_explained() -> None:
    """The table of the documents has a line for each, and none for others."""
    page = Path(__file__).parents[3] / "docs" / "load-client.md"
    table = page.read_text().split("## Requests that fail")[1].split("What is no failure")[0]
    assert set(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)) == set(get_args(RequestErrorKind))
