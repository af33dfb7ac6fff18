"""Event streams: splitting, and what each message means."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servetune.loadgen.sse import decode, split_events
from servetune.records import (
    EVENT_CHOICES,
    EVENT_CONTENT,
    EVENT_DONE,
    EVENT_EMPTY,
    EVENT_ERROR,
    EVENT_FINISH,
    EVENT_INVALID,
    EVENT_REASONING,
    EVENT_ROLE,
    EVENT_TOOL,
    EVENT_USAGE,
)


def chat(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """A chat message with this delta."""
    return {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def flags_of(message: Any) -> int:
    """Flags of a stream that holds only this message."""
    data = message if isinstance(message, str) else json.dumps(message)
    (flags,) = decode([f"data: {data}\n\n".encode()], [1]).flags
    return flags


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [(9, b"a"), (18, b"b")]),
        (b"data: a\r\n\r\ndata:b\r\n\r\n", [(11, b"a"), (21, b"b")]),
        (b"data: a\r\rdata: b\r\r", [(9, b"a"), (18, b"b")]),
        (b"data: a\n\r\ndata: b\n\n", [(10, b"a"), (19, b"b")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(12, b"a")]),
        (b": ping\n\ndata: a\n\n\n\n", [(17, b"a")]),
        (b"data: one\ndata: two\nid: 7\n\n", [(27, b"one\ntwo")]),
        (b"data: cut off", [(13, b"cut off")]),
        (b"data:\n\nevent: ping\n\n", []),
        (b"data:  two spaces\n\n", [(19, b" two spaces")]),
        (b'error: {"code":1}\n\n', [(19, b'{"error":{"code":1}}')]),
        (b"error:\n\n", []),
        (b"", []),
    ],
)
def test_events_and_their_ends(body: bytes, events: list[tuple[int, bytes]]) -> None:
    """Each event ends right behind its blank line, whatever the line ends."""
    assert split_events(body) == events


@pytest.mark.parametrize(
    ("message", "flags"),
    [
        (chat(role="assistant", content=""), EVENT_CHOICES | EVENT_ROLE),
        (chat(role="assistant", content="Hi"), EVENT_CHOICES | EVENT_ROLE | EVENT_CONTENT),
        (chat(content="Hi"), EVENT_CHOICES | EVENT_CONTENT),
        (chat(content=""), EVENT_CHOICES | EVENT_EMPTY),
        (chat(content=None), EVENT_CHOICES),
        (chat(content=["part"]), EVENT_CHOICES),
        (chat(reasoning="hm"), EVENT_CHOICES | EVENT_REASONING),
        (chat(reasoning_content="hm", content=None), EVENT_CHOICES | EVENT_REASONING),
        (chat(tool_calls=[{"index": 0}]), EVENT_CHOICES | EVENT_TOOL),
        (chat(tool_calls=[]), EVENT_CHOICES),
        (chat(function_call={"name": "f"}), EVENT_CHOICES | EVENT_TOOL),
        (chat("stop"), EVENT_CHOICES | EVENT_FINISH),
        (chat("length", content="x"), EVENT_CHOICES | EVENT_CONTENT | EVENT_FINISH),
        ({"choices": [{"text": "Hi"}]}, EVENT_CHOICES | EVENT_CONTENT),
        ({"choices": [{"text": ""}]}, EVENT_CHOICES | EVENT_EMPTY),
        ({"choices": [{"text": "", "finish_reason": "length"}]}, EVENT_CHOICES | EVENT_FINISH),
        ({"choices": [{"index": 0}]}, EVENT_CHOICES),
        ({"choices": [], "usage": {"completion_tokens": 3}}, EVENT_USAGE),
        ({"choices": []}, 0),
        ({"choices": None}, 0),
        ({"usage": {"completion_tokens": 3}}, EVENT_USAGE),
        ({"error": {"message": "boom"}}, EVENT_ERROR),
        ({"object": "error", "message": "boom", "code": 400}, EVENT_ERROR),
        ({"id": 1}, EVENT_INVALID),
        ({"choices": "no list"}, EVENT_INVALID),
        ("[DONE]", EVENT_DONE),
        (" [DONE] ", EVENT_DONE),
        ("{broken", EVENT_INVALID),
        ("[1]", EVENT_INVALID),
    ],
)
def test_what_each_message_is(message: Any, flags: int) -> None:
    """The EVENT_* bits of one message."""
    assert flags_of(message) == flags


def test_invalid_utf8_is_an_invalid_event() -> None:
    """The next event is read all the same."""
    stream = decode([b'data: {"choices":[{"text":"\xff"}]}\n\ndata: [DONE]\n\n'], [1])
    assert stream.flags == (EVENT_INVALID, EVENT_DONE)
    assert stream.problem


def lines(*messages: Any) -> bytes:
    """A stream of messages."""
    return b"".join(b"data: " + json.dumps(message).encode() + b"\n\n" for message in messages)


def test_usage_comes_from_the_last_message_that_has_it() -> None:
    """Also the tokens that came from a cache."""
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 5}}
    stream = decode([lines(chat(content="a"), chat(content="b"), {"choices": [], "usage": usage})], [1])
    assert (stream.prompt_tokens, stream.output_tokens, stream.cached_tokens) == (7, 2, 5)
    assert stream.tokens is None


def test_usage_in_each_message_gives_cumulative_tokens() -> None:
    """Messages without output take the count before them."""
    counted = [{**chat(content="x"), "usage": {"completion_tokens": count}} for count in (2, 5)]
    first = chat(role="assistant", content="")
    stream = decode([lines(first, *counted, chat("stop"))], [1])
    assert stream.tokens == (0, 2, 5, 5)
    assert stream.output_tokens == 5


def test_usage_that_stays_zero_is_no_count() -> None:
    """Some servers send zeros until the end."""
    assert decode([lines({**chat(content="x"), "usage": {"completion_tokens": 0}})], [1]).tokens is None


def test_text_is_kept_when_asked_for() -> None:
    """Visible text only, of chat and completions."""
    body = lines(chat(reasoning="hm"), chat(content="Hä"), {"choices": [{"text": "llo"}]})
    assert decode([body], [1], keep_text=True).text == "Hällo"
    assert decode([body], [1]).text == ""


def test_problem_quotes_the_first_error() -> None:
    """What went wrong first is the reason."""
    stream = decode([lines({"error": "first"}, {"error": "second"})], [1])
    assert "first" in stream.problem
    assert stream.seen == EVENT_ERROR


def test_events_belong_to_the_read_that_completed_them() -> None:
    """Read 0 brings half an event, read 1 one and a half, read 3 the rest; read 2 completes nothing."""
    parts = [b"data: [DO", b"NE]\n\ndata: [D", b"O", b"NE]\n", b"\n", b"data: [DONE]\n\n"]
    stream = decode(parts, [1, 2, 3, 6])
    assert stream.reads == (1, 3)
    assert stream.read_events == (1, 2)


def test_an_empty_stream() -> None:
    """No event, no token, nothing seen."""
    stream = decode([], [])
    assert (stream.flags, stream.tokens, stream.seen) == ((), None, 0)
