"""The OpenAI API of the mock engine: request bodies in, response bodies and SSE messages out, as bytes.

Knows no socket and no clock; mock_core.py decides when a token comes.

Prompt tokens: the words of the prompt (parted by white space), at least 1; in a chat 4 more for each message; a list
of numbers counts as it is. Output tokens: max_completion_tokens or max_tokens (16; in a chat 128) with ignore_eos;
without it the answer ends earlier, at a length between a half and the whole that the prompt's text fixes, but not
before min_tokens.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import msgspec

from servetune.engines.mock_http import chunk
from servetune.records import Record

_WORDS = tuple(b" alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi".split())
_WIDE_WORDS = tuple(" \u00e9t\u00e9 \u6f22\u5b57 \u043c\u0438\u0440 \U0001f642".encode().split())
_MESSAGE_TOKENS = 4


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None


class _Body(msgspec.Struct):
    """The fields that the mock reads; others are accepted and ignored."""

    model: str = ""
    prompt: str | list[int | str] | None = None
    messages: list[_Message] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stream: bool = False
    stream_options: _StreamOptions | None = None
    n: int = 1


class Generation(Record, frozen=True, kw_only=True):
    """What one request asks for, in tokens and in the form of its answer."""

    is_chat: bool
    model: str
    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    stream: bool
    usage: bool
    usage_in_every_message: bool


def read_generation(body: bytes, *, is_chat: bool) -> Generation:
    """Read a request body; raises ValueError with what is wrong with it."""
    try:
        asked = msgspec.json.decode(body, type=_Body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the body is not valid: {error}") from error
    if asked.n != 1:
        raise ValueError("n must be 1")
    prompt_tokens, text = _prompt(asked, is_chat=is_chat)
    most = asked.max_completion_tokens or asked.max_tokens or (128 if is_chat else 16)
    if most < 1:
        raise ValueError("max_tokens must be at least 1")
    output_tokens = most if asked.ignore_eos else max(_natural_length(text, most), min(asked.min_tokens, most))
    options = asked.stream_options or _StreamOptions()
    return Generation(
        is_chat=is_chat,
        model=asked.model,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        finish_reason="length" if output_tokens == most else "stop",
        stream=asked.stream,
        usage=options.include_usage or not asked.stream,
        usage_in_every_message=options.continuous_usage_stats and options.include_usage,
    )


def _prompt(asked: _Body, *, is_chat: bool) -> tuple[int, str]:
    """Return the number of prompt tokens, and the text that fixes the natural length."""
    if is_chat:
        if not asked.messages:
            raise ValueError("messages is missing")
        texts = [_content_text(message.content) for message in asked.messages]
        return max(sum(map(_words, texts)), 1) + _MESSAGE_TOKENS * len(texts), "\n".join(texts)
    match asked.prompt:
        case str() as text:
            return max(_words(text), 1), text
        case [str() as text]:
            return max(_words(text), 1), text
        case [_, *_] as numbers if all(isinstance(number, int) for number in numbers):
            return len(numbers), repr(numbers)
        case _:
            raise ValueError("prompt must be one text or one list of tokens")


def _content_text(content: str | list[dict[str, Any]] | None) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content)
    return content or ""


def _words(text: str) -> int:
    return len(text.split())


def _natural_length(text: str, most: int) -> int:
    """Return where the answer would end by itself: a half to the whole of `most`, fixed by the text."""
    half = (most + 1) // 2
    return half + zlib.crc32(text.encode(errors="replace")) % (most - half + 1)


def usage(generation: Generation, output_tokens: int) -> dict[str, int]:
    """Return the usage object after `output_tokens`."""
    prompt = generation.prompt_tokens
    return {"prompt_tokens": prompt, "completion_tokens": output_tokens, "total_tokens": prompt + output_tokens}


class Answer:
    """The bytes of one answer, message by message."""

    def __init__(self, generation: Generation, number: int, created_s: int, *, wide: bool = False) -> None:
        """`wide`: words of multi-byte characters."""
        kind = ("chat.completion" if generation.is_chat else "text_completion") + (
            ".chunk" if generation.is_chat and generation.stream else ""
        )
        self.generation = generation
        self._words = _WIDE_WORDS if wide else _WORDS
        self._head = {"id": f"mock-{number}", "object": kind, "created": created_s, "model": generation.model}
        middle = b', "logprobs": null, "finish_reason": '
        opening, closing = (b'"delta": {"content": "', b'"}') if generation.is_chat else (b'"text": "', b'"')
        self._before = b"data: " + self._json(self._head)[:-1] + b', "choices": [{"index": 0, ' + opening
        self._after = closing + middle

    @staticmethod
    def _json(value: object) -> bytes:
        return json.dumps(value, ensure_ascii=False).encode()

    def word(self, index: int) -> bytes:
        """Return the text of token `index`, as UTF-8."""
        return b" " + self._words[index % len(self._words)]

    def role(self) -> bytes:
        """Return the message that names the role (chat) and holds no token."""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return self._message({**self._head, "choices": [choice]})

    def token(self, index: int) -> bytes:
        """Return the message with token `index` (from 0); the last one says why generation ends."""
        is_last = index + 1 == self.generation.output_tokens
        finish = b'"%b"}]' % self.generation.finish_reason.encode() if is_last else b"null}]"
        if self.generation.usage_in_every_message:
            finish += b', "usage": ' + self._json(usage(self.generation, index + 1))
        return chunk(self._before + self.word(index) + self._after + finish + b"}\n\n")

    def usage_message(self) -> bytes:
        """Return the message with the usage and no choices."""
        counts = usage(self.generation, self.generation.output_tokens)
        return self._message({**self._head, "choices": [], "usage": counts})

    def error_message(self) -> bytes:
        """Return an error object as a message of the stream."""
        return self._message({"error": {"message": "the mock engine was told to fail", "type": "server_error"}})

    def broken_message(self) -> bytes:
        """Return the first half of a message."""
        return chunk(self._before[: len(self._before) // 2])

    def whole(self, *, with_usage: bool) -> bytes:
        """Return the body of an answer that is not streamed."""
        generation = self.generation
        text = b"".join(map(self.word, range(generation.output_tokens))).decode()
        said: dict[str, object] = {"text": text}
        if generation.is_chat:
            said = {"message": {"role": "assistant", "content": text}}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": generation.finish_reason}
        counts = {"usage": usage(generation, generation.output_tokens)} if with_usage else {}
        return self._json({**self._head, "choices": [choice], **counts})

    def _message(self, value: object) -> bytes:
        return chunk(b"data: " + self._json(value) + b"\n\n")


DONE = chunk(b"data: [DONE]\n\n")


def error_body(message: str, kind: str = "invalid_request_error") -> bytes:
    """Return the body of an error response."""
    return json.dumps({"error": {"message": message, "type": kind}}).encode()
