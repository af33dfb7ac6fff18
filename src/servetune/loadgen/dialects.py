"""What the messages of an answer mean: the OpenAI API with its dialects, and SGLang's native form.

Values in, values out. Knows JSON messages; knows nothing of event streams, sockets and clocks.
"""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from itertools import accumulate, pairwise
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
    RequestErrorKind,
)

_LONGEST_QUOTE_BYTES = 1024
_CHECKED_BYTES = 8192
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ESCAPE = re.compile(
    rb"\\(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)", re.DOTALL
)
_FAILED_ENDS = ("abort", "error")
"""Values of finish_reason that a server gives to an answer that it gave up."""


class _Delta(msgspec.Struct, gc=False):
    role: str | None = None
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct, gc=False):
    """One message of a streamed answer."""

    choices: list[_Choice] | msgspec.UnsetType | None = msgspec.UNSET
    usage: _Usage | None = None
    error: Any = None
    object: Any = None


class _WholeChoice(msgspec.Struct, gc=False):
    message: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Answer(msgspec.Struct, gc=False):
    """An answer that came at once."""

    choices: list[_WholeChoice] | msgspec.UnsetType | None = msgspec.UNSET
    usage: _Usage | None = None
    error: Any = None
    object: Any = None


class _MetaInfo(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: Any = None


class _Generated(msgspec.Struct, gc=False):
    """One message of SGLang's native stream; also its whole answer."""

    text: str | None = None
    output_ids: msgspec.Raw = msgspec.Raw()
    meta_info: _MetaInfo | None = None
    error: Any = None
    object: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_generated = msgspec.json.Decoder(_Generated).decode


class Reader(ABC):
    """Sums up the messages of one answer, all valid UTF-8; each gives one entry of `flags`."""

    def __init__(self) -> None:
        self.flags: list[int] = []
        self.tokens: list[int | None] = []
        """Completion tokens that each message reports."""
        self.texts: list[str] = []
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.problem = ""
        self.fault: RequestErrorKind | None = None

    @abstractmethod
    def take(self, data: bytes) -> None:
        """Read the next message."""

    def refuse(self, data: bytes, fault: RequestErrorKind, why: str) -> None:
        """Note a message that cannot be read."""
        self._complain(fault, f"{why}: {_quote(data)}")
        self._keep(EVENT_INVALID, None)

    def text(self) -> str:
        """Return all visible text."""
        return "".join(self.texts)

    def cumulative_tokens(self) -> tuple[int, ...] | None:
        """Return completion tokens up to each message; None unless every message with output reports them."""
        for flags, tokens in zip(self.flags, self.tokens, strict=True) if None in self.tokens else ():
            if tokens is None and flags & EVENT_OUTPUT:
                return None
        cumulative = tuple(accumulate([tokens or 0 for tokens in self.tokens], max))
        return cumulative if cumulative and cumulative[-1] else None

    def _keep(self, flags: int, tokens: int | None) -> None:
        self.flags.append(flags)
        self.tokens.append(tokens)

    def _complain(self, fault: RequestErrorKind, problem: str) -> None:
        if self.fault is None:
            self.fault = fault
            self.problem = problem

    def _take_error(self, data: bytes) -> None:
        self._complain("stream-error", _quote(data))
        self._keep(EVENT_ERROR, None)

    def _take_unreadable(self, data: bytes, bad: Exception) -> None:
        """Take what is no message in JSON: the end mark, or something broken."""
        if data.strip() == b"[DONE]":
            self._keep(EVENT_DONE, None)
        elif (mended := _without_lone_surrogates(data)) != data:
            self.take(mended)
        else:
            self.refuse(data, "invalid-json", str(bad))


class ChunkReader(Reader):
    """Reads a streamed answer of the OpenAI API."""

    def take(self, data: bytes) -> None:
        """Read the next message."""
        try:
            message = _decode_chunk(data)
        except _UNREADABLE as bad:
            self._take_unreadable(data, bad)
            return
        if message.error is not None or message.object == "error":
            self._take_error(data)
            return
        flags = 0
        for choice in message.choices or ():
            flags |= EVENT_CHOICES | self._choice_flags(choice, data)
        usage = message.usage
        if usage is not None:
            self._take_usage(usage)
            self.flags.append(flags | EVENT_USAGE)
            self.tokens.append(usage.completion_tokens)
        elif message.choices is msgspec.UNSET:
            self.refuse(data, "invalid-json", "neither choices nor usage")
        else:
            self.flags.append(flags)
            self.tokens.append(None)

    def take_alike(self, flags: list[int], texts: list[str]) -> None:
        """Take messages without usage whose meaning is known; `texts` are their visible texts."""
        self.flags += flags
        self.tokens += [None] * len(flags)
        self.texts += texts

    def _take_usage(self, usage: _Usage) -> None:
        self.prompt_tokens = usage.prompt_tokens
        self.output_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens

    def _choice_flags(self, choice: _Choice, data: bytes) -> int:
        flags = self._ending_flags(choice.finish_reason, data) if choice.finish_reason else 0
        if choice.delta is not None:
            return flags | self._delta_flags(choice.delta)
        if choice.text:
            self.texts.append(choice.text)
            return flags | EVENT_CONTENT
        # An empty text that ends the answer announces the end; one in the middle is a token that decodes to nothing.
        return flags | (EVENT_EMPTY if choice.text == "" and not flags else 0)

    def _ending_flags(self, reason: str, data: bytes) -> int:
        if reason not in _FAILED_ENDS:
            return EVENT_FINISH
        self._complain("stream-error", f"the server ended the answer with {reason}: {_quote(data)}")
        return EVENT_FINISH | EVENT_ERROR

    def _delta_flags(self, delta: _Delta) -> int:
        content = delta.content
        flags = EVENT_ROLE if delta.role else 0
        if content and content.__class__ is str:
            self.texts.append(content)
            flags |= EVENT_CONTENT
        elif content == "" and not flags:
            flags = EVENT_EMPTY
        if delta.reasoning or delta.reasoning_content:
            flags |= EVENT_REASONING
        if delta.tool_calls or delta.function_call:
            flags |= EVENT_TOOL
        return flags


class AnswerReader(ChunkReader):
    """Reads an answer of the OpenAI API that came at once."""

    def take(self, data: bytes) -> None:
        """Read the answer."""
        try:
            answer = _decode_answer(data)
        except _UNREADABLE as bad:
            self._take_unreadable(data, bad)
            return
        if answer.error is not None or answer.object == "error":
            self._take_error(data)
            return
        if answer.choices is msgspec.UNSET:
            self.refuse(data, "invalid-json", "no choices")
            return
        flags = EVENT_USAGE if answer.usage is not None else 0
        for choice in answer.choices or ():
            flags |= EVENT_CHOICES | self._whole_flags(choice, data)
        tokens = answer.usage.completion_tokens if answer.usage is not None else None
        if tokens and not flags & EVENT_OUTPUT:
            flags |= EVENT_EMPTY
        self._keep(flags, tokens)
        if answer.usage is not None:
            self._take_usage(answer.usage)

    def _whole_flags(self, choice: _WholeChoice, data: bytes) -> int:
        flags = self._ending_flags(choice.finish_reason, data) if choice.finish_reason else 0
        message = choice.message if choice.message is not None else _Delta(content=choice.text)
        return flags | self._delta_flags(message) & ~(EVENT_ROLE | EVENT_EMPTY)


class GeneratedReader(Reader):
    """Reads SGLang's native answers, streamed or whole.

    A stream repeats the whole text in each message, or brings only what is new where the server was started so.
    """

    def __init__(self) -> None:
        super().__init__()
        self._texts_at: list[int] = []
        """Number of the message of each text."""
        self._last_ids = b""

    def take(self, data: bytes) -> None:
        """Read the next message."""
        try:
            message = _decode_generated(data)
        except _UNREADABLE as bad:
            self._take_unreadable(data, bad)
            return
        if message.error is not None or message.object == "error":
            self._take_error(data)
            return
        meta = message.meta_info
        if meta is None and message.text is None:
            self.refuse(data, "invalid-json", "neither text nor meta_info")
            return
        flags = EVENT_CHOICES
        if meta is not None and meta.finish_reason:
            flags |= self._ending_flags(meta.finish_reason, data)
        ids = bytes(message.output_ids)
        if message.text is not None or ids.startswith(b"["):
            self._texts_at.append(len(self.flags))
            # A server without a tokenizer sends ids only.
            self.texts.append(message.text or "")
            self._last_ids = ids
        if meta is None or meta.completion_tokens is None:
            self._keep(flags, None)
            return
        self._keep(flags | EVENT_USAGE, meta.completion_tokens)
        self.prompt_tokens = meta.prompt_tokens
        self.output_tokens = meta.completion_tokens
        self.cached_tokens = meta.cached_tokens if meta.cached_tokens is not None else self.cached_tokens

    def finish(self) -> None:
        """Tell, now that all came, which messages brought text."""
        cumulative = self._is_cumulative()
        before = ""
        known = 0
        for at, text in zip(self._texts_at, self.texts, strict=True):
            tokens = self.tokens[at]
            is_new = tokens is None or tokens > known
            known = max(known, tokens or 0)
            if len(text) > (len(before) if cumulative else 0):
                self.flags[at] |= EVENT_CONTENT
            elif is_new and (not self.flags[at] & EVENT_FINISH or (tokens and len(self.texts) == 1)):
                # An empty text that ends the answer announces the end, unless it is all of the answer.
                self.flags[at] |= EVENT_EMPTY
            before = text
        if cumulative:
            del self.texts[:-1]

    def _ending_flags(self, reason: Any, data: bytes) -> int:
        kind = reason.get("type") if isinstance(reason, dict) else reason
        if kind not in _FAILED_ENDS:
            return EVENT_FINISH
        self._complain("stream-error", f"the server ended the answer with {kind}: {_quote(data)}")
        return EVENT_FINISH | EVENT_ERROR

    def _is_cumulative(self) -> bool:
        texts = self.texts
        if len(texts) < 2:
            return False
        if self._last_ids.startswith(b"[") and self.output_tokens:
            ids = self._last_ids.strip(b"[] ")
            return bool(ids) and ids.count(b",") + 1 >= self.output_tokens
        grows = [later.startswith(earlier) for earlier, later in pairwise(texts)]
        if len(texts) > 2:
            # The last text may lack a stop string that the one before still had.
            grows[-1] |= texts[-2].startswith(texts[-1]) and texts[-1] != ""
        # A text that never changes is one token again and again.
        return all(grows) and len(set(texts)) > 1


def is_utf8(data: bytes) -> bool:
    """Tell whether `data` is valid UTF-8."""
    if data.isascii():
        return True
    view = memoryview(data)
    at = 0
    try:
        # Piece by piece, since a string takes up to four times as much memory as its bytes.
        while at < len(data):
            is_last = at + _CHECKED_BYTES >= len(data)
            at += codecs.utf_8_decode(view[at : at + _CHECKED_BYTES], "strict", is_last)[1]
    except UnicodeDecodeError:
        return False
    return True


def _without_lone_surrogates(data: bytes) -> bytes:
    """Replace each escaped half of a surrogate pair by U+FFFD: some servers cut a pair between two messages."""
    if b"\\ud" not in data and b"\\uD" not in data:
        return data

    def mend(escape: re.Match[bytes]) -> bytes:
        code = escape[1]
        return rb"\ufffd" if code[:1] == b"u" and len(code) == 5 else escape[0]

    return _ESCAPE.sub(mend, data)


def _quote(data: bytes) -> str:
    return data[:_LONGEST_QUOTE_BYTES].decode("utf-8", "replace")
