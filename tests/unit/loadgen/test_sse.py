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
    """The next event is read all the same; also where the bytes stand in a field that nobody reads."""
    for field in ("text", "other"):
        data = b'data: {"choices":[{"%s":"\xff"}]}\n\ndata: [DONE]\n\n' % field.encode()
        stream = decode([data], [1])
        assert stream.flags == (EVENT_INVALID, EVENT_DONE)
        assert stream.fault == "invalid-utf8"
        assert stream.problem


@pytest.mark.parametrize(
    ("data", "fault", "words"),
    [
        ('{"error":"boom"}', "stream-error", "boom"),
        ('{"choices":[{"text":"","finish_reason":"abort"}]}', "stream-error", "abort"),
        ("{broken", "invalid-json", "malformed"),
        ('{"id":1}', "invalid-json", "neither choices nor usage"),
        ('{"choices":[{"text":5}]}', "invalid-json", "Expected"),
        ('{"id":' + "[" * 100_000, "invalid-json", "recursion"),
        ('{"choices":[{"text":"' + "x" * (1 << 20) + '"}]}', "oversize", "more than 1 MiB"),
    ],
)
def test_each_fault_has_its_kind(data: str, fault: str, words: str) -> None:
    """The first fault counts; what follows is read all the same, and its problem is short."""
    stream = decode([f"data: {data}\n\ndata: {{broken\n\ndata: [DONE]\n\n".encode()], [1])
    assert stream.fault == fault
    assert words in stream.problem
    assert len(stream.problem) < 2000
    assert stream.flags[1:] == (EVENT_INVALID, EVENT_DONE)


def test_a_sound_stream_has_no_fault() -> None:
    """Not even one that is longer than the longest event."""
    stream = decode([lines(chat(content="x" * 1000)) * 1100], [1])
    assert (stream.fault, stream.problem) == (None, "")
    assert stream.seen == EVENT_CHOICES | EVENT_CONTENT


def test_half_a_surrogate_pair_is_one_unknown_sign() -> None:
    """Some servers cut an escaped pair between two events; a pair, and a backslash before `ud`, stay what they are."""
    body = b"".join(
        b'data: {"choices":[{"text":"%s"}]}\n\n' % text for text in (rb"\ud83d", rb"\ude00", rb"\ud83d\ude00\\ud83d")
    )
    stream = decode([body], [1], keep_text=True)
    assert stream.fault is None
    assert stream.text == "\ufffd\ufffd\U0001f600\\ud83d"


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


@pytest.mark.parametrize(
    ("before", "end"),
    [
        (b"data: ", b"\n\n"),
        (b"data:", b"\r\n\r\n"),
        (b"data: ", b"\r\r"),
        (b"event: message\ndata: ", b"\n\n"),
        (b": ping\n\ndata: ", b"\n\n"),
        (b"\ndata: ", b"\n\n"),
    ],
)
@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf"])
def test_one_event_a_part_in_any_dress(begin: bytes, before: bytes, end: bytes) -> None:
    """Each event belongs to its read, whatever stands around it; the last one may lack its end."""
    parts = [
        before + json.dumps({"choices": [{"text": f"é{at}"}]}, ensure_ascii=False).encode() + end for at in range(10)
    ]
    parts[0] = begin + parts[0]
    for last in (parts[-1], parts[-1].rstrip(b"\r\n"), parts[-1] + b": cut"):
        stream = decode([*parts[:-1], last], list(range(1, 11)), keep_text=True)
        assert stream.flags == (EVENT_CHOICES | EVENT_CONTENT,) * 10
        assert (stream.reads, stream.read_events) == (tuple(range(10)), (1,) * 10)
        assert stream.text == "".join(f"é{at}" for at in range(10))
        assert stream.fault is None


def test_parts_without_an_event_belong_to_no_read() -> None:
    """Comments that keep a connection alive."""
    event = lines({"choices": [{"text": "a"}]})
    stream = decode([event, b": ping\n\n", event, event, b": ping\n\n", b": ping\n\n"], [1, 2, 4, 5, 6])
    assert (stream.reads, stream.read_events) == ((0, 2), (1, 2))


def test_an_empty_stream() -> None:
    """No event, no token, nothing seen."""
    stream = decode([], [])
    assert (stream.flags, stream.tokens, stream.seen) == ((), None, 0)


def usage(**counts: int) -> dict[str, Any]:
    """A usage object."""
    return {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}, **counts}


@pytest.mark.parametrize(
    ("answer", "flags", "text"),
    [
        (
            {"message": {"role": "assistant", "content": "Hi", "reasoning_content": "hm"}, "finish_reason": "stop"},
            EVENT_CHOICES | EVENT_CONTENT | EVENT_REASONING | EVENT_FINISH | EVENT_USAGE,
            "Hi",
        ),
        (
            {"message": {"content": None, "tool_calls": [{"id": 1}]}, "finish_reason": "tool_calls"},
            EVENT_CHOICES | EVENT_TOOL | EVENT_FINISH | EVENT_USAGE,
            "",
        ),
        ({"text": "Hi", "finish_reason": None}, EVENT_CHOICES | EVENT_CONTENT | EVENT_USAGE, "Hi"),
        ({"text": "", "finish_reason": "length"}, EVENT_CHOICES | EVENT_EMPTY | EVENT_FINISH | EVENT_USAGE, ""),
    ],
)
def test_a_whole_answer_is_one_event_of_the_last_read(answer: Any, flags: int, text: str) -> None:
    """Its counts stand for all of its tokens."""
    body = json.dumps({"choices": [answer], "usage": usage(completion_tokens=3)}).encode()
    stream = decode([body[:10], body[10:30], body[30:]], [1, 3], form="json", keep_text=True)
    assert (stream.reads, stream.read_events, stream.flags) == ((1,), (1,), (flags,))
    assert (stream.text, stream.tokens) == (text, (3,))
    assert (stream.prompt_tokens, stream.output_tokens, stream.cached_tokens) == (7, 3, 5)


@pytest.mark.parametrize(
    ("body", "flags", "fault"),
    [
        (b"", (), None),
        (b"  \n", (), None),
        (b'{"choices":[]}', (0,), None),
        (b'{"error":{"message":"boom"}}', (EVENT_ERROR,), "stream-error"),
        (b'{"object":"error"}', (EVENT_ERROR,), "stream-error"),
        (b'{"id":1}', (EVENT_INVALID,), "invalid-json"),
        (b'{"choices":[{"text":"cut', (EVENT_INVALID,), "invalid-json"),
        (b'{"choices":[{"text":"\xff"}]}', (EVENT_INVALID,), "invalid-utf8"),
    ],
)
def test_whole_answers_that_are_none(body: bytes, flags: tuple[int, ...], fault: str | None) -> None:
    """Errors and broken JSON keep their kind; no body is no event."""
    stream = decode([body], [1], form="json")
    assert (stream.flags, stream.fault) == (flags, fault)


def generated(text: str | None, count: int | None = None, finish: Any = None, **fields: Any) -> dict[str, Any]:
    """A message of SGLang's native form."""
    meta = {"prompt_tokens": 7, "completion_tokens": count, "cached_tokens": 2, "finish_reason": finish}
    return {"text": text, "meta_info": meta, **fields}


OUTPUT = EVENT_CHOICES | EVENT_USAGE | EVENT_CONTENT
NOTHING = EVENT_CHOICES | EVENT_USAGE | EVENT_EMPTY


@pytest.mark.parametrize(
    ("messages", "flags", "text"),
    [
        (["", "H", "H", "Hi", "Hi"], (NOTHING, OUTPUT, NOTHING, OUTPUT, 0), "Hi"),
        (["H", "", "i", "H", ""], (OUTPUT, NOTHING, OUTPUT, OUTPUT, 0), "HiH"),
        (["H", "", "i", "H", "!"], (OUTPUT, NOTHING, OUTPUT, OUTPUT, EVENT_CONTENT), "HiH!"),
        ([" x", " x", " x", " x", " x"], (OUTPUT, OUTPUT, OUTPUT, OUTPUT, EVENT_CONTENT), " x x x x x"),
        (["a", "ab", "abc", "abcEND", "abc"], (OUTPUT, OUTPUT, OUTPUT, OUTPUT, 0), "abc"),
    ],
)
def test_native_text_is_given_once(messages: list[str], flags: tuple[int, ...], text: str) -> None:
    """Whether each message repeats the whole text or brings only what is new."""
    *earlier, last = [generated(part, count) for count, part in enumerate(messages, start=1)]
    last["meta_info"].update(completion_tokens=4, finish_reason={"type": "length", "length": 4})
    stream = decode([lines(*earlier, last)], [1], api="generate", keep_text=True)
    assert stream.flags == (*flags[:4], flags[4] | EVENT_CHOICES | EVENT_USAGE | EVENT_FINISH)
    assert stream.text == text
    assert stream.tokens == (1, 2, 3, 4, 4)
    assert (stream.prompt_tokens, stream.output_tokens, stream.cached_tokens, stream.fault) == (7, 4, 2, None)


def test_native_ids_tell_whether_text_is_repeated() -> None:
    """Equal texts with all ids so far are an answer that did not grow; with new ids only they are new."""
    same = decode(
        [lines(*(generated("x", n, output_ids=[1] * n) for n in (1, 2)))], [1], api="generate", keep_text=True
    )
    assert (same.text, same.flags) == ("x", (OUTPUT, NOTHING))
    new = decode([lines(*(generated("x", n, output_ids=[1]) for n in (1, 2)))], [1], api="generate", keep_text=True)
    assert (new.text, new.flags) == ("xx", (OUTPUT, OUTPUT))
    ends = [generated("x", 1, output_ids=[1]), generated("", 1, {"type": "stop"}, output_ids=[])]
    assert decode([lines(*ends)], [1], api="generate", keep_text=True).text == "x"
    bare = {"output_ids": [5], "meta_info": {"completion_tokens": 1}}
    assert decode([lines(bare)], [1], api="generate").flags == (NOTHING,)
    counts = {"meta_info": {"completion_tokens": 1}}
    assert decode([lines(counts)], [1], api="generate").flags == (EVENT_CHOICES | EVENT_USAGE,)


def test_two_native_texts() -> None:
    """The second may be the first and more, or only what is new."""
    for second, text in (("ab", "ab"), ("b", "ab"), ("", "a")):
        body = lines(generated("a", 1), generated(second, 2))
        assert decode([body], [1], api="generate", keep_text=True).text == text


@pytest.mark.parametrize(
    ("message", "flags", "fault"),
    [
        ({"error": {"message": "too long"}}, EVENT_ERROR, "stream-error"),
        (
            generated("a", 1, {"type": "abort", "message": "gone"}),
            OUTPUT | EVENT_FINISH | EVENT_ERROR,
            "stream-error",
        ),
        ({"id": 1}, EVENT_INVALID, "invalid-json"),
        ({"text": "a"}, EVENT_CHOICES | EVENT_CONTENT, None),
        ("{broken", EVENT_INVALID, "invalid-json"),
    ],
)
def test_native_errors(message: Any, flags: int, fault: str | None) -> None:
    """An answer that the server gave up is an error, whatever came before; counts may be missing."""
    body = lines(message) if isinstance(message, dict) else f"data: {message}\n\n".encode()
    stream = decode([body + b"data: [DONE]\n\n"], [1], api="generate")
    assert (stream.flags, stream.fault) == ((flags, EVENT_DONE), fault)


def test_a_whole_native_answer() -> None:
    """The same object, once."""
    body = json.dumps(generated("Hi", 2, {"type": "stop"})).encode()
    stream = decode([body], [1], api="generate", form="json", keep_text=True)
    assert (stream.flags, stream.tokens, stream.text) == ((OUTPUT | EVENT_FINISH,), (2,), "Hi")
    for count, flags in ((1, NOTHING | EVENT_FINISH), (0, EVENT_CHOICES | EVENT_USAGE | EVENT_FINISH)):
        body = json.dumps(generated("", count, {"type": "stop"})).encode()
        assert decode([body], [1], api="generate", form="json").flags == (flags,)
