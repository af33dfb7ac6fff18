"""Reading a run of like events at once gives what reading each of its events alone gives."""

from __future__ import annotations

import json
from bisect import bisect_left
from itertools import accumulate, pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.loadgen.sse import Stream, decode, split_events

_TEXT = st.one_of(
    st.sampled_from(
        [" the", "", " a", "x", '"', "\\", "\n", "é", "\U0001f600", "data: ", "\\n", "\u2028", '","', "}]"]
    ),
    st.text(max_size=4),
)
_HOSTILE = st.sampled_from(
    [b'"', b"\\", b"\xff", b"\xc3", b"\x01", b"\\u12", b"\\ud83d", b'a","b', b"\\x", b"\n", b"\r"]
)
_EXTRAS = st.sampled_from(
    [
        b"[DONE]",
        b'{"choices":[],"usage":{"completion_tokens":4,"prompt_tokens":2}}',
        b'{"choices":[{"text":"","finish_reason":"length"}]}',
        b'{"choices":[{"delta":{"role":"assistant","content":""}}]}',
        b'{"error":"boom"}',
        b'{"id":1}',
        b"{broken",
    ]
)


def _skeleton(kind: str, at: int, mark: str) -> Any:
    """A message of one kind of server around the text `mark`."""
    return {
        "completions": {"id": "c", "choices": [{"index": 0, "text": mark, "finish_reason": None}], "usage": None},
        "chat": {"choices": [{"delta": {"content": mark}, "finish_reason": None}], "object": "chunk"},
        "role": {"choices": [{"delta": {"role": "assistant", "content": mark}}]},
        "reasoning": {"choices": [{"delta": {"content": None, "reasoning_content": mark}}]},
        "both": {"choices": [{"delta": {"reasoning": mark, "reasoning_content": mark}}]},
        "created": {"choices": [{"delta": {"content": mark}}], "created": 1700000000 + at // 5},
        "usage": {"choices": [{"text": mark}], "usage": {"completion_tokens": at, "prompt_tokens": 3}},
        "two": {"choices": [{"text": "q"}, {"text": mark}]},
        "elsewhere": {"choices": [{"text": "q"}], "note": {"text": mark}},
        "nowhere": {"content": mark},
        "key": {"choices": [], "note": {"text": "x", mark: 1}},
        "tool": {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": mark}}]}}]},
    }[kind]


_KINDS = [
    "completions",
    "chat",
    "role",
    "reasoning",
    "both",
    "created",
    "usage",
    "two",
    "elsewhere",
    "nowhere",
    "key",
    "tool",
]


@st.composite
def _run(draw: st.DrawFn) -> list[bytes]:
    kind = draw(st.sampled_from(_KINDS))
    spaced = draw(st.booleans())
    separators = (", ", ": ") if spaced else (",", ":")
    is_ascii = draw(st.booleans())
    texts = draw(st.lists(_TEXT, min_size=1, max_size=14))
    events = [
        json.dumps(_skeleton(kind, at, text), separators=separators, ensure_ascii=is_ascii).encode()
        for at, text in enumerate(texts)
    ]
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(events) - 1))
        events[at] = json.dumps(_skeleton(kind, at, "MARK"), separators=separators).encode()
        events[at] = events[at].replace(b"MARK", draw(_HOSTILE))
    return events


@st.composite
def _bodies(draw: st.DrawFn) -> tuple[list[bytes], bytes]:
    """Events of a stream, each with its end, and all of it."""
    runs = draw(st.lists(st.one_of(_run(), _EXTRAS.map(lambda event: [event])), min_size=1, max_size=4))
    end = draw(st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r"]))
    before = draw(st.sampled_from([b"data: ", b"data: ", b"data:", b"event: x" + end + b"data: ", b"data:  "]))
    events = [before + event + end + end for run in runs for event in run]
    if draw(st.integers(0, 5)) == 0:
        events.insert(
            draw(st.integers(0, len(events))), draw(st.sampled_from([b": ping" + end + end, end, b"\xef\xbb\xbf"]))
        )
    if draw(st.integers(0, 5)) == 0:
        events[-1] = events[-1][: -draw(st.integers(0, 3)) or None]
    return events, b"".join(events)


def _one_by_one(body: bytes) -> Stream:
    """What the events hold when each is a stream of its own."""
    singles = [
        decode([b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"], [1], keep_text=True)
        for _, data in split_events(body)
    ]
    usages = [single for single in singles if single.prompt_tokens is not None or single.output_tokens is not None]
    faults = [single for single in singles if single.fault]
    return Stream(
        flags=tuple(flags for single in singles for flags in single.flags),
        text="".join(single.text for single in singles),
        prompt_tokens=usages[-1].prompt_tokens if usages else None,
        output_tokens=usages[-1].output_tokens if usages else None,
        problem=faults[0].problem if faults else "",
        fault=faults[0].fault if faults else None,
    )


def _facts(stream: Stream) -> tuple[Any, ...]:
    return (stream.flags, stream.text, stream.prompt_tokens, stream.output_tokens, stream.problem, stream.fault)


def _cut(body: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(body) + 1) for place in places}), len(body)]
    return [body[begin:end] for begin, end in pairwise(edges)]


@settings(deadline=None, max_examples=400)
@given(made=_bodies(), places=st.lists(st.integers(0, 10_000), max_size=5))
def test_runs_change_nothing(made: tuple[list[bytes], bytes], places: list[int]) -> None:
    """Flags, text, usage and the first fault; each event a part, any cut, and all in one part."""
    events, body = made
    expected = _facts(_one_by_one(body))
    for parts in (events, _cut(body, places), [body]):
        assert _facts(decode(parts, list(range(1, len(parts) + 1)), keep_text=True)) == expected
        assert decode(parts, [len(parts)]).flags == expected[0]


@settings(deadline=None, max_examples=200)
@given(made=_bodies(), places=st.lists(st.integers(0, 10_000), max_size=5), more=st.booleans())
def test_events_of_parts_belong_to_their_reads(made: tuple[list[bytes], bytes], places: list[int], more: bool) -> None:
    """Whether a read brings one part, several or none."""
    events, body = made
    parts = events if more else _cut(body, places)
    read_ends = sorted({place % (len(parts) + 1) for place in places} | {len(parts)})
    stream = decode(parts, read_ends)
    arrived = list(accumulate(map(len, parts), initial=0))
    bytes_after_read = [arrived[end] for end in read_ends]
    expected = [bisect_left(bytes_after_read, end) for end, _ in split_events(body)]
    assert [
        read for read, count in zip(stream.reads, stream.read_events, strict=True) for _ in range(count)
    ] == expected
