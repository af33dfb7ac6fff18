"""What follows an answer, and answers that are none, in the framing of responses."""

from __future__ import annotations

import pytest

from servetune.http1 import ResponseFraming

WHOLE = b"HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 2\r\n\r\nhi"


@pytest.mark.parametrize(
    "more", [b"x", b"HTTP/1.1 500 No\r\nX-C: d\r\nContent-Length: 3\r\n\r\nbad", b"HTTP/1.1 200 OK\r\n"]
)
@pytest.mark.parametrize("at_once", [True, False])
def test_bytes_behind_an_answer_change_nothing(more: bytes, at_once: bool) -> None:
    """Not even where they are another answer; but the connection is not used again."""
    framing = ResponseFraming()
    for data in [WHOLE + more] if at_once else [WHOLE, more]:
        assert framing.feed(data) is None
    assert (framing.status, framing.headers, framing.parts) == (200, {"x-a": "b", "content-length": "2"}, [b"hi"])
    assert (framing.complete, framing.keep_alive) == (True, False)


def test_a_connection_may_be_used_again_after_a_whole_answer() -> None:
    """When nothing came behind it."""
    framing = ResponseFraming()
    assert framing.feed(WHOLE) is None
    assert framing.keep_alive


def test_a_switched_protocol_is_no_answer() -> None:
    """It is told, not raised."""
    framing = ResponseFraming()
    problem = framing.feed(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
    assert problem == "the server switched to another protocol"
    assert not framing.complete


def test_headers_behind_the_body_are_not_those_of_the_answer() -> None:
    """Trailers of a chunked body."""
    framing = ResponseFraming()
    head = b"HTTP/1.1 200 OK\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert framing.feed(head + b"2\r\nhi\r\n0\r\nX-A: c\r\n\r\n") is None
    assert (framing.headers["x-a"], framing.complete, framing.parts) == ("b", True, [b"hi"])
