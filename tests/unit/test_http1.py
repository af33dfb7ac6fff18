"""Addresses, request bytes, response framing, probes."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.errors import UserError
from servetune.http1 import NoAnswer, Response, ResponseFraming, get, get_json, parse_url, request_bytes


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("http://127.0.0.1:8000", ("127.0.0.1", 8000, "", "127.0.0.1:8000", False)),
        ("host", ("host", 80, "", "host:80", False)),
        ("host:8000/base/", ("host", 8000, "/base", "host:8000", False)),
        ("http://[::1]:9/v1", ("::1", 9, "/v1", "[::1]:9", False)),
        ("https://host", ("host", 443, "", "host:443", True)),
        ("HTTPS://Host:8443/a/b//", ("host", 8443, "/a/b", "host:8443", True)),
        ("https://[::1]", ("::1", 443, "", "[::1]:443", True)),
        ("http://[fe80::1%25eth0]:9", ("fe80::1%eth0", 9, "", "[fe80::1]:9", False)),
        ("http://h/a b/ü?x=1#y", ("h", 80, "/a%20b/%C3%BC", "h:80", False)),
        ("http://h/a%20b", ("h", 80, "/a%20b", "h:80", False)),
        ("http://bücher.example", ("xn--bcher-kva.example", 80, "", "xn--bcher-kva.example:80", False)),
    ],
)
def test_addresses(text: str, parts: tuple[str, int, str, str, bool]) -> None:
    """Host, port, path, Host header, TLS."""
    url = parse_url(text)
    assert (url.host, url.port, url.path, url.authority, url.tls) == parts


@pytest.mark.parametrize(
    "text",
    ["http://", "http://host:99999", "http://host:0", "http://host:x", "ftp://host", "http://[::1", "http://ü..x"],
)
def test_addresses_that_are_refused(text: str) -> None:
    """The message names the address."""
    with pytest.raises(UserError, match="URL"):
        parse_url(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://me:pw-1@host",
        "me:pw-1@host",
        "https://pw-1@host/v1",
        "http://me:pw-1/pw-2@host",
        "http://me:x@pw-1@host",
    ],
)
def test_a_login_in_an_address_is_refused_and_not_shown(text: str) -> None:
    """The user is told where it belongs."""
    with pytest.raises(UserError) as refused:
        parse_url(text)
    assert "pw-" not in str(refused.value)
    assert "***@" in str(refused.value)
    assert "login" not in str(refused.value) or "--header" in refused.value.fix


def test_request_bytes() -> None:
    """Head, blank line, body."""
    wire = request_bytes("POST", "/p", authority="h:1", headers={"A": "b"}, body=b"xy")
    assert wire == b"POST /p HTTP/1.1\r\nHost: h:1\r\nA: b\r\nContent-Length: 2\r\n\r\nxy"
    assert request_bytes("GET", "", authority="h:1") == b"GET / HTTP/1.1\r\nHost: h:1\r\n\r\n"


@pytest.mark.parametrize(("name", "value"), [("A\r\nB", "c"), ("A", "b\r\nC: d"), ("Ä", "b")])
def test_headers_cannot_break_the_framing(name: str, value: str) -> None:
    """A line end in a header would start a new one."""
    with pytest.raises(UserError, match="header"):
        request_bytes("GET", "/", authority="h", headers={name: value})


CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nTrailer: t\r\n\r\n"
)


@settings(deadline=None)
@given(st.lists(st.integers(1, len(CHUNKED) - 1), max_size=20))
def test_a_chunked_answer_in_any_pieces(places: list[int]) -> None:
    """Status, headers, body and end do not depend on how the bytes came."""
    framing = ResponseFraming()
    edges = [0, *sorted(set(places)), len(CHUNKED)]
    for begin, end in itertools.pairwise(edges):
        assert not framing.complete
        assert framing.feed(memoryview(CHUNKED)[begin:end]) is None
    assert (framing.status, b"".join(framing.parts), framing.complete) == (200, b"hello world", True)
    assert framing.headers["content-type"] == "text/event-stream"
    assert framing.keep_alive


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi", True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhijunk", False),
    ],
)
def test_which_connections_may_be_kept(head: bytes, kept: bool) -> None:
    """By version, header and what follows."""
    framing = ResponseFraming()
    assert framing.feed(head) is None
    assert (framing.complete, framing.keep_alive, b"".join(framing.parts)) == (True, kept, b"hi")


def test_a_body_without_length_ends_with_the_connection() -> None:
    """A body with a length or chunks that did not end is cut off."""
    framing = ResponseFraming()
    framing.feed(b"HTTP/1.1 200 OK\r\n\r\nsome")
    assert not framing.complete
    assert framing.end_of_file()
    for head in (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsome", b"HTTP/1.1 20", CHUNKED[:-9]):
        cut = ResponseFraming()
        cut.feed(head)
        assert not cut.end_of_file()


def test_bytes_that_are_no_http() -> None:
    """The problem is told, and nothing is complete."""
    framing = ResponseFraming()
    assert "not HTTP/1.1" in str(framing.feed(b"SSH-2.0-OpenSSH\r\n"))
    framing.release()
    assert framing.feed(b"more") is not None


@contextmanager
def server(answer: bytes, *, hold: bool = False) -> Iterator[str]:
    """A server that sends `answer` to one request and closes; `hold` keeps the connection open."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        release = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)
                if hold:
                    release.wait(10)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        release.set()
        thread.join(10)


def test_get_returns_the_whole_answer() -> None:
    """Status, headers, body."""
    with server(CHUNKED) as url:
        answer = get(f"{url}/path?x=1")
    assert isinstance(answer, Response)
    assert (answer.status, answer.body) == (200, b"hello world")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "closed the connection before"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi", "closed the connection before"),
        (b"nonsense\r\n\r\n", "not HTTP/1.1"),
    ],
)
def test_get_says_why_there_is_no_answer(answer: bytes, reason: str) -> None:
    """A failure is a value."""
    with server(answer) as url:
        result = get(url)
    assert isinstance(result, NoAnswer)
    assert reason in result.reason


def test_get_waits_no_longer_than_it_was_told() -> None:
    """In total, also when some bytes came."""
    with server(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi", hold=True) as url:
        result = get(url, timeout_s=0.2)
    assert result == NoAnswer(reason="no answer within 0.2 s")


def test_a_refused_connection_is_no_answer() -> None:
    """Nobody listens on a port that was just given back."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert get(f"http://127.0.0.1:{port}") == NoAnswer(reason="Connection refused")
    assert get_json(f"http://127.0.0.1:{port}") is None


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}', {"a": 1}),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{nop", None),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}", None),
    ],
)
def test_get_json(answer: bytes, value: object) -> None:
    """The value, or None for anything else."""
    with server(answer) as url:
        assert get_json(url) == value


def test_get_gives_up_on_an_endless_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe keeps no more than its limit."""
    monkeypatch.setattr("servetune.http1._LONGEST_PROBE_BYTES", 100)
    with server(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b"x" * 200) as url:
        result = get(url)
    assert result == NoAnswer(reason="the answer is longer than 100 bytes")
