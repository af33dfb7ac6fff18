"""From the body of an answer to its events. Pure: bytes in, values out, however the bytes were cut.

Knows the format of event streams; what a message means is known by `dialects`. Knows no socket and no clock.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Literal

from servetune.loadgen.dialects import AnswerReader, ChunkReader, GeneratedReader, Reader, is_utf8
from servetune.loadgen.runs import RunFinder
from servetune.records import Api, Record, RequestErrorKind

LONGEST_EVENT_BYTES = 1024 * 1024
"""The data of a longer event is not read."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")


class Stream(Record, frozen=True, kw_only=True):
    """What one answer held."""

    reads: tuple[int, ...] = ()
    """Number (from 0) of each read that completed at least one event."""
    read_events: tuple[int, ...] = ()
    """Events completed by each of these reads."""
    flags: tuple[int, ...] = ()
    """EVENT_* bits of each event."""
    tokens: tuple[int, ...] | None = None
    """Cumulative completion tokens at each event, where every event with output reports them."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    text: str = ""
    """Visible text."""
    problem: str = ""
    """The first error object, or the first event that could not be read."""
    fault: RequestErrorKind | None = None
    """Kind of this problem: stream-error, invalid-json, invalid-utf8 or oversize."""

    @property
    def seen(self) -> int:
        """All EVENT_* bits that occurred."""
        bits = 0
        for flag in set(self.flags):
            bits |= flag
        return bits


def split_events(body: bytes) -> list[tuple[int, bytes]]:
    """Return (offset right after the event, its data) of each event with data.

    Follows the WHATWG rules for event streams: lines end with LF, CRLF or CR, a blank line ends an event, comments and
    other fields are skipped. Beyond them, data that the end of the body cuts off is an event too, and a field named
    `error` (llama.cpp's older servers) is one with an error object.
    """
    return [(end, data) for end, block in _blocks(body) if (data := _data(block))]


def decode(
    parts: Sequence[bytes],
    read_ends: Sequence[int],
    *,
    keep_text: bool = False,
    form: Literal["events", "json"] = "events",
    api: Api = "chat",
) -> Stream:
    """Decode a whole body that came in `parts`; `read_ends[i]` parts had arrived after read i.

    It is fastest where each part is one event, as most servers send them, and takes any other cut.
    """
    body = b"".join(parts)
    if form == "json":
        return _decode_answer(body, len(read_ends), api, keep_text=keep_text)
    if len(parts) > 1:
        reader = GeneratedReader() if api == "generate" else ChunkReader()
        ends = _take_parts(reader, body, parts)
        if ends is not None:
            return _stream(reader, *_reads(ends, list(read_ends)), keep_text=keep_text)
    reader = GeneratedReader() if api == "generate" else ChunkReader()
    ends = _take_body(reader, body, at_once=len(read_ends) == 1)
    arrived = list(accumulate(map(len, parts), initial=0))
    return _stream(reader, *_reads(ends, [arrived[end] for end in read_ends]), keep_text=keep_text)


def _decode_answer(body: bytes, reads: int, api: Api, *, keep_text: bool) -> Stream:
    """Decode an answer that is one JSON value: an event of the last read."""
    data = body.removeprefix(_BYTE_ORDER_MARK).strip()
    if not data:
        return Stream()
    reader = GeneratedReader() if api == "generate" else AnswerReader()
    if is_utf8(data):
        reader.take(data)
    else:
        reader.refuse(data, "invalid-utf8", "not UTF-8")
    return _stream(reader, (reads - 1,), (1,), keep_text=keep_text)


def _stream(reader: Reader, reads: tuple[int, ...], read_events: tuple[int, ...], *, keep_text: bool) -> Stream:
    if isinstance(reader, GeneratedReader):
        reader.finish()
    return Stream(
        reads=reads,
        read_events=read_events,
        flags=tuple(reader.flags),
        tokens=reader.cumulative_tokens(),
        prompt_tokens=reader.prompt_tokens,
        output_tokens=reader.output_tokens,
        cached_tokens=reader.cached_tokens,
        text=reader.text() if keep_text else "",
        problem=reader.problem,
        fault=reader.fault,
    )


# --------------------------------------------------------------------------- events to reads


def _reads(ends: list[int], arrived: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the reads that completed events, and how many; both arguments count the same unit, bytes or parts."""
    # Most streams bring one event a read, and the last few of them together.
    alike = max(0, len(arrived) - 1)
    if ends[:alike] != arrived[:alike]:
        alike = 0
    reads = list(range(alike))
    counts = [1] * alike
    before = alike
    for read, size in enumerate(arrived[alike:], alike):
        done = bisect_right(ends, size, before)
        if done > before:
            reads.append(read)
            counts.append(done - before)
            before = done
    return tuple(reads), tuple(counts)


# --------------------------------------------------------------------------- bytes to messages


def _take_parts(reader: Reader, body: bytes, parts: Sequence[bytes]) -> list[int] | None:
    """Read a body whose parts are one event each; returns the number of parts up to each event.

    None: a part is something else.
    """
    tail = _event_end(body)
    if tail is None or not (parts[0].endswith(tail) and parts[-1].endswith(tail)) or body[:1] == b"\xef":
        return None
    silent = _take_pieces(reader, body, parts, tail, b"")
    if silent is None:
        return None
    return _without(list(range(1, len(parts) + 1)), silent)


def _take_body(reader: Reader, body: bytes, *, at_once: bool) -> list[int]:
    """Read any body; returns the offset right after each event, or that of the end for all that came in one read."""
    begin = len(_BYTE_ORDER_MARK) if body.startswith(_BYTE_ORDER_MARK) else 0
    text = body[begin:] if begin else body
    glue = _event_end(text)
    if glue is None:
        events = split_events(text)
        for _, data in events:
            _take_with_care(reader, data)
        return [begin + end for end, _ in events]
    pieces = _pieces(text, glue)
    silent = _take_pieces(reader, text, pieces, b"", glue)
    assert silent is not None
    if at_once:
        return [len(body)] * (len(pieces) - len(silent))
    ends = list(accumulate([len(piece) + len(glue) for piece in pieces], initial=begin))[1:]
    ends[-1] = len(body)
    return _without(ends, silent)


def _without(ends: list[int], silent: list[int]) -> list[int]:
    """Return `ends` without the ones at these places."""
    if len(silent) == 1:
        del ends[silent[0]]
    if len(silent) < 2:
        return ends
    gone = set(silent)
    return [end for place, end in enumerate(ends) if place not in gone]


def _event_end(body: bytes) -> bytes | None:
    """Return the one blank line that can end an event of `body`; None: its lines end in more than one way."""
    if b"\r" not in body:
        return b"\n\n"
    lines = body.count(b"\r\n")
    return b"\r\n\r\n" if lines == body.count(b"\r") == body.count(b"\n") else None


def _pieces(body: bytes, glue: bytes) -> list[bytes]:
    """Split at the blank lines; the last piece has none behind it."""
    if glue == b"\n\n":
        # Most streams are one line and one empty line by turns, and one byte is found faster than two.
        lines = body.split(b"\n")
        if not any(lines[1::2]):
            return lines[0::2]
    return body.split(glue)


def _take_pieces(reader: Reader, body: bytes, pieces: Sequence[bytes], tail: bytes, glue: bytes) -> list[int] | None:
    """Read pieces of `body` that end with `tail` and are joined by `glue`; returns the numbers of those without data.

    None: a piece is not one line and `tail`, where there is a tail.
    """
    is_sound = is_utf8(body)
    is_short = len(body) <= LONGEST_EVENT_BYTES or max(map(len, pieces)) <= LONGEST_EVENT_BYTES
    is_easy = is_sound and is_short
    finder = RunFinder(reader, body, pieces, tail, glue) if is_easy and isinstance(reader, ChunkReader) else None
    take = reader.take if is_easy else partial(_take_with_care, reader)
    silent: list[int] = []
    at, stop = 0, len(pieces)
    while at < len(pieces):
        if finder is not None:
            at, stop = finder.take_runs(at)
        singles = pieces[at:stop]
        if tail and not _are_lines(singles, tail):
            return None
        cut = -len(tail) or None
        for number, piece in enumerate(singles, at):
            is_plain = piece.startswith(b"data: ") and (tail or b"\n" not in piece)
            data = piece[6:cut] if is_plain else _data(piece[:cut])
            if data:
                take(data)
            else:
                silent.append(number)
        at = stop
    return silent


def _are_lines(pieces: Sequence[bytes], tail: bytes) -> bool:
    """Tell whether each piece is one line and `tail`."""
    first = len(tail) - tail.index(b"\n")
    return all(piece.find(b"\n") == len(piece) - first and piece.endswith(tail) for piece in pieces)


def _take_with_care(reader: Reader, data: bytes) -> None:
    if len(data) > LONGEST_EVENT_BYTES:
        reader.refuse(data, "oversize", f"an event of more than {LONGEST_EVENT_BYTES >> 20} MiB")
    elif is_utf8(data):
        reader.take(data)
    else:
        reader.refuse(data, "invalid-utf8", "not UTF-8")


def _blocks(body: bytes) -> Iterator[tuple[int, bytes]]:
    at = len(_BYTE_ORDER_MARK) if body.startswith(_BYTE_ORDER_MARK) else 0
    for gap in _BLANK_LINE.finditer(body, at):
        yield gap.end(), body[at : gap.start()]
        at = gap.end()
    yield len(body), body[at:]


def _data(block: bytes) -> bytes:
    if not block:
        return b""
    lines = [line.partition(b":") for line in _LINE_END.split(block)]
    data = b"\n".join(value.removeprefix(b" ") for name, _, value in lines if name == b"data")
    errors = [value.strip() for name, _, value in lines if name == b"error" and value.strip()]
    return b'{"error":' + errors[0] + b"}" if errors and not data else data
