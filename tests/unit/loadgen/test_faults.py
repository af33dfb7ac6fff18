"""Every bad thing a server can do ends in the right record, from real sockets."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from servetune.errors import LoadFailed
from servetune.records import EVENT_CONTENT, RequestErrorKind, RequestRecord
from tests.unit.loadgen.scripted import (
    DONE,
    GOOD,
    HEAD,
    LAST,
    Peer,
    Script,
    chunk,
    event,
    good,
    load,
    requests,
    serving,
    token,
    usage,
)


def one(script: Script, folder: Path, **changes: Any) -> RequestRecord:
    """The record of one request to a server with this script."""
    with serving(script) as server:
        (record,), _, _ = load(server.url, folder / "out", **changes)
    return record


def says(*parts: bytes) -> Script:
    """A script that sends these parts and closes the connection."""

    def script(peer: Peer, body: bytes) -> None:
        peer.send(*parts)
        peer.close()

    return script


def plain(status: str, body: bytes, *headers: str) -> bytes:
    """An answer with a length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


JSON = "Content-Type: application/json"
HELD = HEAD + token() + token()
TWO = token("a") + token("b")
ROLE = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})


BAD: list[tuple[bytes, RequestErrorKind, str]] = [
    (plain("500 Internal Server Error", b'{"error":"boom"}', JSON), "http-status", 'HTTP 500: {"error":"boom"}'),
    (plain("429 Too Many Requests", b"slow down", "Retry-After: 7"), "http-status", "HTTP 429 (Retry-After: 7)"),
    (plain("404 Not Found", b"z" * 5000), "http-status", "z" * 1024),
    (plain("302 Found", b"", "Location: /x"), "http-status", "HTTP 302"),
    (HEAD + token() + event({"error": {"message": "engine died"}}) + LAST, "stream-error", "engine died"),
    (HEAD + token() + event("{broken") + DONE + LAST, "protocol", "{broken"),
    (HEAD + chunk(b'data: {"choices":[{"text":"\xff"}]}\n\n') + DONE + LAST, "protocol", "Invalid UTF-8"),
    (HEAD + DONE + LAST, "no-output", "without any output"),
    (HEAD + ROLE + usage(0) + DONE + LAST, "no-output", "without any output"),
    (HEAD + LAST, "no-output", "without any output"),
    (plain("200 OK", b'{"choices": []}', JSON), "protocol", "not an event stream"),
    (plain("200 OK", b"\x1f\x8b", "Content-Encoding: gzip"), "protocol", "compressed (gzip)"),
    (HEAD + TWO + LAST, "truncated", "without a finish_reason"),
    (HELD, "truncated", "in the middle of the answer"),
    (HEAD + b"zz\r\n", "protocol", "not HTTP/1.1"),
    (b"SSH-2.0-OpenSSH_9\r\n", "protocol", "not HTTP/1.1"),
    (b"HTTP/1.1 200 OK\r\nConte", "truncated", "in the middle"),
    (b"", "reset", "before it answered"),
]
UNUSUAL = {
    "usual": GOOD,
    "until close": (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        b'data: {"choices":[{"text":"a"}]}\n\ndata: {"choices":[{"text":"b","finish_reason":"stop"}]}\n\n'
    ),
    "finish without DONE": HEAD + TWO + event({"choices": [{"delta": {}, "finish_reason": "length"}]}) + LAST,
    "no last chunk after DONE": HEAD + TWO + DONE,
    "interim answer": b"HTTP/1.1 100 Continue\r\n\r\n" + GOOD,
    "junk behind": GOOD + b"junk",
    "comments": HEAD + chunk(b": ping\r\n\r\n") + TWO + DONE + LAST,
    "no usage": HEAD + TWO + DONE + LAST,
}


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> dict[bytes, RequestRecord]:
    """Every answer above with the record of the request that got it, from one load."""
    answers = [answer for answer, _, _ in BAD] + list(UNUSUAL.values())

    def script(peer: Peer, body: bytes) -> None:
        number = int(json.loads(body)["messages"][0]["content"].split()[1])
        says(answers[number])(peer, body)

    with serving(script) as server:
        records, _, _ = load(server.url, tmp_path_factory.mktemp("faults") / "out", len(answers))
    return dict(zip(answers, records, strict=True))


@pytest.mark.parametrize(("answer", "kind", "message"), BAD)
def test_bad_answers(answered: dict[bytes, RequestRecord], answer: bytes, kind: RequestErrorKind, message: str) -> None:
    """Kind and reason of each."""
    record = answered[answer]
    assert record.error is not None
    assert (record.error.kind, message in record.error.message) == (kind, True), record.error
    assert record.sent_ns is not None
    assert record.closed_ns is not None
    assert record.closed_ns >= record.sent_ns


@pytest.mark.parametrize("name", UNUSUAL)
def test_answers_that_are_whole(answered: dict[bytes, RequestRecord], name: str) -> None:
    """Unusual, but nothing is missing."""
    record = answered[UNUSUAL[name]]
    assert record.error is None
    assert sum(bool(flags & EVENT_CONTENT) for flags in record.event_flags) == 2


def test_missing_usage_is_no_failure(answered: dict[bytes, RequestRecord]) -> None:
    """The counts are then unknown, not 0."""
    silent, counted = answered[UNUSUAL["no usage"]], answered[GOOD]
    assert (silent.error, silent.usage_output_tokens, silent.usage_prompt_tokens) == (None, None, None)
    assert (counted.usage_output_tokens, counted.usage_prompt_tokens) == (2, 7)


def test_bytes_that_come_one_by_one(tmp_path: Path) -> None:
    """A letter of three bytes is cut too."""
    answer = HEAD + token("€") + token("b") + usage(2) + DONE + LAST

    def drip(peer: Peer, body: bytes) -> None:
        peer.send(*[answer[at : at + 1] for at in range(len(answer))], gap_s=0.0002)

    record = one(drip, tmp_path, keep_text=True)
    assert (record.error, record.text, record.usage_output_tokens) == (None, "€b", 2)
    assert sum(record.read_events) == len(record.event_flags) == 4


def test_a_reset_in_the_middle(tmp_path: Path) -> None:
    """What had come is kept."""

    def script(peer: Peer, body: bytes) -> None:
        peer.send(HELD)
        time.sleep(0.1)
        peer.reset()

    record = one(script, tmp_path, warmup_requests=0)
    assert record.error is not None
    assert record.error.kind == "reset"
    assert len(record.event_flags) == 2


def test_a_refused_connection(tmp_path: Path) -> None:
    """Nobody listens: each request says so."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    records, facts, _ = load(f"http://127.0.0.1:{port}", tmp_path / "out", 5, max_concurrency=2)
    assert [(record.error.kind, record.error.message) for record in records if record.error] == [
        ("connect", "Connection refused")
    ] * 5
    assert (facts.peak_open, records[0].sent_ns) == (0, None)


def test_a_stream_that_falls_silent_is_cut(tmp_path: Path) -> None:
    """The idle time-out ends it; a stream that keeps talking lives longer than that."""
    release = threading.Event()

    def script(peer: Peer, body: bytes) -> None:
        if b"hello 0" in body:
            peer.send(HEAD, token(), token(), gap_s=0.02)
            release.wait(10)
        else:
            peer.send(HEAD, *[token() for _ in range(12)], gap_s=0.1)
            peer.send(DONE + LAST)
            release.set()

    with serving(script) as server:
        records, _, _ = load(server.url, tmp_path / "out", 2, idle_timeout_s=0.5, warmup_requests=0)
    first, second = records
    assert first.error is not None
    assert (first.error.kind, second.error) == ("idle-timeout", None)
    assert first.closed_ns is not None
    assert 0.5e9 < first.closed_ns < 5e9


def test_a_request_in_the_queue_waits_while_others_are_served(tmp_path: Path) -> None:
    """No first token for longer than the idle time-out is no silence of the server."""

    def script(peer: Peer, body: bytes) -> None:
        if b"hello 0" in body:
            peer.send(HEAD, *[token() for _ in range(10)], gap_s=0.1)
            peer.send(DONE + LAST)
        else:
            time.sleep(0.9)
            peer.send(GOOD)

    with serving(script) as server:
        records, _, _ = load(server.url, tmp_path / "out", 2, idle_timeout_s=0.5)
    assert [record.error for record in records] == [None, None]


def test_a_server_that_never_answers_is_cut(tmp_path: Path) -> None:
    """Then the whole server is silent."""
    record = one(lambda peer, _: time.sleep(1.0), tmp_path, idle_timeout_s=0.3)
    assert record.error is not None
    assert record.error.kind == "idle-timeout"


def test_an_endless_stream_is_cut(tmp_path: Path) -> None:
    """The total time-out ends it however much it talks."""

    def script(peer: Peer, body: bytes) -> None:
        while True:
            peer.send(token() if peer.requests else HEAD, gap_s=0.02)
            peer.requests += 1

    record = one(script, tmp_path, total_timeout_s=0.4)
    assert record.error is not None
    assert record.error.kind == "total-timeout"
    assert len(record.event_flags) > 3


def test_a_kept_connection_that_was_closed_is_tried_again(tmp_path: Path) -> None:
    """The server closes after each answer without saying so: one retry on a fresh connection, from the first start."""

    def script(peer: Peer, body: bytes) -> None:
        if peer.requests:
            time.sleep(0.05)
            peer.reset()
        else:
            peer.send(GOOD)

    with serving(script) as server:
        records, _, _ = load(server.url, tmp_path / "out", 6, max_concurrency=1)
    assert [record.error for record in records] == [None] * 6
    assert [record.retries for record in records] == [0, 1, 1, 1, 1, 1]
    retried = records[1]
    assert not retried.reused_connection
    assert retried.sent_ns is not None
    assert retried.reads_ns[0] - retried.sent_ns > 0.05e9


def test_a_request_is_tried_again_only_once(tmp_path: Path) -> None:
    """A fresh connection that breaks is the server's failure."""
    seen: list[int] = []

    def script(peer: Peer, body: bytes) -> None:
        seen.append(peer.number)
        if len(seen) == 1:
            peer.send(GOOD)
        else:
            peer.reset()

    with serving(script) as server:
        records, _, _ = load(server.url, tmp_path / "out", 2, max_concurrency=1)
    assert records[1].error is not None
    assert (records[1].error.kind, records[1].retries, len(seen)) == ("reset", 1, 3)


def test_a_kept_connection_closed_while_the_server_is_gone(tmp_path: Path) -> None:
    """The retry finds nobody: a connect error that says what came before."""

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
    assert records[1].error.kind == "connect"
    assert "after the server closed" in records[1].error.message


@pytest.mark.parametrize("head", [b"Connection: close\r\n", b""], ids=["says so", "HTTP/1.0"])
def test_connections_that_are_not_kept(tmp_path: Path, head: bytes) -> None:
    """Each request has a connection of its own, without a retry."""
    version = b"HTTP/1.1" if head else b"HTTP/1.0"
    answer = version + b" 200 OK\r\n" + head + b"\r\n" + b'data: {"choices":[{"text":"a"}]}\n\ndata: [DONE]\n\n'
    with serving(says(answer)) as server:
        records, _, _ = load(server.url, tmp_path / "out", 4, max_concurrency=2)
        assert len(server.peers) == 4
    assert [(record.error, record.retries) for record in records] == [(None, 0)] * 4


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
            connection.sendall(plain("413 Content Too Large", b"too long"))
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
        serving(says(plain("400 Bad Request", b"unknown field ignore_eos"))) as server,
        pytest.raises(LoadFailed, match="unknown field ignore_eos") as failed,
    ):
        load(server.url, tmp_path / "out", 3, warmup=requests(2, "warm"))
    assert failed.value.cause == "warmup-failed"
    assert len(server.bodies) == 2


def test_a_warmup_that_works_is_not_recorded(tmp_path: Path) -> None:
    """Its prompts are sent first; one failure among them is accepted."""

    def script(peer: Peer, body: bytes) -> None:
        peer.send(plain("500 Oh", b"") if b"warm 0" in body else GOOD)

    with serving(script) as server:
        records, _, _ = load(server.url, tmp_path / "out", 2, warmup=requests(2, "warm"))
        assert all(b"warm" in body for body in server.bodies[:2])
        assert not any(b"warm" in body for body in server.bodies[2:])
    assert len(records) == 2


def test_mixed_faults_leave_sound_requests_alone(tmp_path: Path) -> None:
    """One in four requests is broken in some way; the others are whole."""
    faults: list[Script] = [
        says(b""),
        says(HELD),
        says(plain("500 Oh", b"no")),
        says(HEAD + event("{broken") + LAST),
        lambda peer, _: peer.reset(),
    ]

    def script(peer: Peer, body: bytes) -> None:
        number = int(json.loads(body)["messages"][0]["content"].split()[1])
        if number % 4 == 0:
            faults[number // 4 % len(faults)](peer, body)
        else:
            good(peer, body)

    with serving(script) as server:
        records, _, _ = load(server.url, tmp_path / "out", 200, max_concurrency=16)
    assert [record.index for record in records] == list(range(200))
    assert {record.index for record in records if record.error is None} >= {n for n in range(200) if n % 4}
    assert {record.error.kind for record in records if record.error} == {
        "reset", "truncated", "http-status", "protocol",
    }  # fmt: skip
