"""However a stream is cut into parts and reads, it holds the same events."""

from __future__ import annotations

import json
from itertools import accumulate, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.loadgen.sse import decode, split_events

_TEXTS = st.text(min_size=0, max_size=8)
_MESSAGES = st.one_of(
    _TEXTS.map(lambda text: json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False)),
    st.just("[DONE]"),
    st.just('{"choices":[],"usage":{"completion_tokens":4,"prompt_tokens":2}}'),
    st.just('{"error":"boom"}'),
    st.just("{broken"),
)
_LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r"])


@st.composite
def _streams(draw: st.DrawFn) -> bytes:
    end = draw(_LINE_ENDS)
    events = [f"data: {message}{end}{end}" for message in draw(st.lists(_MESSAGES, max_size=6))]
    noise = draw(st.sampled_from(["", f": ping{end}{end}", end]))
    return (noise.join(events) + noise).encode()


def _cut(body: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(body) + 1) for place in places}), len(body)]
    return [body[begin:end] for begin, end in pairwise(edges)]


@settings(deadline=None)
@given(body=_streams(), places=st.lists(st.integers(0, 10_000), max_size=12))
def test_any_cut_gives_the_same_events(body: bytes, places: list[int]) -> None:
    """Flags, tokens, text and the number of events do not depend on the cuts."""
    whole = decode([body], [1], keep_text=True)
    parts = _cut(body, places)
    cut = decode(parts, list(range(1, len(parts) + 1)), keep_text=True)
    assert (cut.flags, cut.tokens, cut.text, cut.problem) == (whole.flags, whole.tokens, whole.text, whole.problem)
    assert sum(cut.read_events) == len(cut.flags)


@settings(deadline=None)
@given(body=_streams(), places=st.lists(st.integers(0, 10_000), max_size=12))
def test_each_event_belongs_to_the_read_with_its_last_byte(body: bytes, places: list[int]) -> None:
    """The read that completed an event is the first one by whose end all of its bytes had come."""
    parts = _cut(body, places)
    cut = decode(parts, list(range(1, len(parts) + 1)))
    arrived = list(accumulate(map(len, parts)))
    expected = [next(read for read, size in enumerate(arrived) if size >= end) for end, _ in split_events(body)]
    assert [read for read, count in zip(cut.reads, cut.read_events, strict=True) for _ in range(count)] == expected


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_survived(body: bytes) -> None:
    """Garbage gives events or none, never an exception; ends are in order and inside."""
    ends = [end for end, _ in split_events(body)]
    assert ends == sorted(ends)
    assert all(0 < end <= len(body) for end in ends)
    decode([body], [1])
