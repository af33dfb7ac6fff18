"""From raw bytes to events, and what must be the same however they were cut."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal

from servetune.http1 import ResponseFraming
from servetune.loadgen.sse import Stream, decode, split_events
from servetune.records import Api

Form = Literal["events", "json"]


def facts(pieces: Sequence[bytes], form: Form, api: Api) -> tuple[Any, ...]:
    """Return all that the answer says, except by which read it came; raises AssertionError where a read is wrong."""
    framing = ResponseFraming()
    read_ends = []
    problem = None
    for piece in pieces:
        before = len(framing.parts)
        problem = framing.feed(piece)
        if len(framing.parts) > before:
            read_ends.append(len(framing.parts))
        if problem:
            break
    is_complete = framing.complete or (not problem and framing.end_of_file())
    framing.release()
    parts = framing.parts
    body = b"".join(parts)
    stream = decode(parts, read_ends, keep_text=True, form=form, api=api)
    if form == "events":
        _check_reads(stream, parts, read_ends, body)
    told = (stream.flags, stream.tokens, stream.text, stream.problem, stream.fault)
    counts = (stream.prompt_tokens, stream.output_tokens, stream.cached_tokens)
    head = (framing.status, framing.headers) if framing.head_complete else (None, {})
    return (*head, is_complete, problem is None, body, *told, *counts)


def check_alone(body: bytes) -> None:
    """Each event of `body` means what it means as a stream of its own."""
    whole = decode([body], [1], keep_text=True)
    singles = [
        decode([b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"], [1], keep_text=True)
        for _, data in split_events(body)
    ]
    assert whole.flags == tuple(flags for single in singles for flags in single.flags)
    assert whole.text == "".join([single.text for single in singles])
    assert whole.fault == next((single.fault for single in singles if single.fault), None)


def _check_reads(stream: Stream, parts: Sequence[bytes], read_ends: Sequence[int], body: bytes) -> None:
    arrived = list(accumulate(map(len, parts), initial=0))
    bytes_after_read = [arrived[end] for end in read_ends]
    expected = [bisect_left(bytes_after_read, end) for end, _ in split_events(body)]
    assert [
        read for read, count in zip(stream.reads, stream.read_events, strict=True) for _ in range(count)
    ] == expected
