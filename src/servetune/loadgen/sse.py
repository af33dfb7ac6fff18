"""From the body of a streamed answer to its events. Pure: bytes in, values out, however the bytes were cut.

Knows the stream format of the OpenAI API (server-sent events with JSON) and its dialects; knows no socket and no clock.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from servetune.records import (
    EVENT_CHOICES,
    EVENT_CONTENT,
    EVENT_DONE,
    EVENT_EMPTY,
    EVENT_ERROR,
    EVENT_FINISH,
    EVENT_INVALID,
    EVENT_OUTPUT,
    EVENT_REASONING,
    EVENT_ROLE,
    EVENT_TOOL,
    EVENT_USAGE,
    Record,
)

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LONGEST_QUOTE = 1024


class Stream(Record, frozen=True, kw_only=True):
    """What one streamed answer held."""

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

    @property
    def seen(self) -> int:
        """All EVENT_* bits that occurred."""
        bits = 0
        for flag in set(self.flags):
            bits |= flag
        return bits


class _Delta(msgspec.Struct):
    role: str | None = None
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Message(msgspec.Struct):
    choices: list[_Choice] | msgspec.UnsetType | None = msgspec.UNSET
    usage: _Usage | None = None
    error: Any = None
    object: Any = None
    message: Any = None


_decode_message = msgspec.json.Decoder(_Message).decode


def split_events(body: bytes) -> list[tuple[int, bytes]]:
    """Return (offset right after the event, its data) of each event with data.

    Follows the WHATWG rules for event streams: lines end with LF, CRLF or CR, a blank line ends an event, comments and
    other fields are skipped. Beyond them, data that the end of the body cuts off is an event too, and a field named
    `error` (llama.cpp's older servers) is one with an error object.
    """
    return [(end, data) for end, block in _blocks(body) if (data := _data(block))]


def decode(parts: Sequence[bytes], read_ends: Sequence[int], *, keep_text: bool = False) -> Stream:
    """Decode a whole body that came in `parts`; `read_ends[i]` parts had arrived after read i."""
    events = split_events(b"".join(parts))
    arrived = list(accumulate((len(part) for part in parts), initial=0))
    bytes_after_read = [arrived[end] for end in read_ends]
    counts: dict[int, int] = {}
    for end, _ in events:
        read = bisect_left(bytes_after_read, end)
        counts[read] = counts.get(read, 0) + 1
    reader = _Reader()
    for _, data in events:
        reader.take(data)
    return reader.stream(counts, keep_text=keep_text)


def _blocks(body: bytes) -> Iterator[tuple[int, bytes]]:
    at = len(_BYTE_ORDER_MARK) if body.startswith(_BYTE_ORDER_MARK) else 0
    if b"\r" in body:
        for gap in _BLANK_LINE.finditer(body, at):
            yield gap.end(), body[at : gap.start()]
            at = gap.end()
        yield len(body), body[at:]
        return
    blocks = body[at:].split(b"\n\n")
    for block in blocks[:-1]:
        at += len(block) + 2
        yield at, block
    yield len(body), blocks[-1]


def _data(block: bytes) -> bytes:
    if block.startswith(b"data: ") and b"\n" not in block and b"\r" not in block:
        return block[6:]
    lines = [line.partition(b":") for line in block.splitlines()]
    data = b"\n".join(value.removeprefix(b" ") for name, _, value in lines if name == b"data")
    errors = [value.strip() for name, _, value in lines if name == b"error" and value.strip()]
    return b'{"error":' + errors[0] + b"}" if errors and not data else data


class _Reader:
    """Sums up the events of one stream."""

    def __init__(self) -> None:
        self.flags: list[int] = []
        self.tokens: list[int | None] = []
        self.text: list[str] = []
        self.usage = _Usage()
        self.cached_tokens: int | None = None
        self.problem = ""

    def take(self, data: bytes) -> None:
        """Read the data of the next event."""
        if data.strip() == b"[DONE]":
            self._keep(EVENT_DONE, None)
            return
        try:
            message = _decode_message(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as bad:
            self._complain(f"{bad}: {_quote(data)}")
            self._keep(EVENT_INVALID, None)
            return
        if message.error is not None or message.object == "error":
            self._complain(_quote(data))
            self._keep(EVENT_ERROR, None)
            return
        if message.choices is msgspec.UNSET and message.usage is None:
            self._complain(f"neither choices nor usage: {_quote(data)}")
            self._keep(EVENT_INVALID, None)
            return
        self._take_message(message)

    def stream(self, counts: dict[int, int], *, keep_text: bool) -> Stream:
        """Return what the stream held; `counts` are the events of each read."""
        return Stream(
            reads=tuple(counts),
            read_events=tuple(counts.values()),
            flags=tuple(self.flags),
            tokens=self._cumulative(),
            prompt_tokens=self.usage.prompt_tokens,
            output_tokens=self.usage.completion_tokens,
            cached_tokens=self.cached_tokens,
            text="".join(self.text) if keep_text else "",
            problem=self.problem,
        )

    def _keep(self, flags: int, tokens: int | None) -> None:
        self.flags.append(flags)
        self.tokens.append(tokens)

    def _complain(self, problem: str) -> None:
        self.problem = self.problem or problem

    def _take_message(self, message: _Message) -> None:
        flags = 0
        for choice in message.choices or ():
            flags |= EVENT_CHOICES | self._choice_flags(choice)
        if message.usage is None:
            self._keep(flags, None)
            return
        self.usage = message.usage
        if message.usage.prompt_tokens_details is not None:
            self.cached_tokens = message.usage.prompt_tokens_details.cached_tokens
        self._keep(flags | EVENT_USAGE, message.usage.completion_tokens)

    def _choice_flags(self, choice: _Choice) -> int:
        flags = EVENT_FINISH if choice.finish_reason else 0
        if choice.delta is not None:
            return flags | self._delta_flags(choice.delta)
        if choice.text:
            self.text.append(choice.text)
            return flags | EVENT_CONTENT
        # An empty text that ends the answer announces the end; one in the middle is a token that decodes to nothing.
        return flags | (EVENT_EMPTY if choice.text == "" and not flags else 0)

    def _delta_flags(self, delta: _Delta) -> int:
        flags = EVENT_ROLE if delta.role else 0
        if delta.content and isinstance(delta.content, str):
            self.text.append(delta.content)
            flags |= EVENT_CONTENT
        elif delta.content == "" and not delta.role:
            flags |= EVENT_EMPTY
        if delta.reasoning or delta.reasoning_content:
            flags |= EVENT_REASONING
        if delta.tool_calls or delta.function_call:
            flags |= EVENT_TOOL
        return flags

    def _cumulative(self) -> tuple[int, ...] | None:
        known = 0
        cumulative = []
        for flags, tokens in zip(self.flags, self.tokens, strict=True):
            if tokens is None and flags & EVENT_OUTPUT:
                return None
            known = max(known, tokens or 0)
            cumulative.append(known)
        return tuple(cumulative) if known else None


def _quote(data: bytes) -> str:
    return data[:_LONGEST_QUOTE].decode("utf-8", "replace")
