"""The mock's API: request bodies to generations, and the bytes of its answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servetune.engines.mock_api import DONE, Answer, Generation, error_body, read_generation
from servetune.engines.mock_failures import MODES, Failure, parse_failure


def generation(body: dict[str, Any], *, is_chat: bool = False) -> Generation:
    """Read a body."""
    return read_generation(json.dumps(body).encode(), is_chat=is_chat)


def chat(*texts: object) -> dict[str, Any]:
    """A chat body with these user messages."""
    return {"messages": [{"role": "user", "content": text} for text in texts]}


def payload(message: bytes) -> Any:
    """The JSON of one SSE message inside one HTTP chunk, checking both frames."""
    size, _, rest = message.partition(b"\r\n")
    assert len(rest) == int(size, 16) + 2
    assert rest.startswith(b"data: ")
    assert rest.endswith(b"\n\n\r\n")
    return json.loads(rest[6:-4])


@pytest.mark.parametrize(
    ("body", "is_chat", "tokens"),
    [
        ({"prompt": "one two  three\nfour"}, False, 4),
        ({"prompt": ""}, False, 1),
        ({"prompt": ["one two"]}, False, 2),
        ({"prompt": [5, 6, 7]}, False, 3),
        (chat("one two"), True, 6),
        (chat("one", "two three"), True, 11),
        (chat([{"type": "text", "text": "one two"}]), True, 6),
        (chat(None), True, 5),
    ],
)
def test_prompt_tokens_are_words(body: dict[str, Any], is_chat: bool, tokens: int) -> None:
    """With 4 more for each message of a chat; lists of numbers count as they are."""
    assert generation(body, is_chat=is_chat).prompt_tokens == tokens


def test_output_length_follows_the_request() -> None:
    """Exactly the maximum with ignore_eos; else between a half and the whole, the same for the same prompt."""
    assert generation({"prompt": "a", "max_tokens": 9, "ignore_eos": True}).output_tokens == 9
    assert (
        generation({"prompt": "a", "max_completion_tokens": 5, "max_tokens": 9, "ignore_eos": True}).output_tokens == 5
    )
    assert generation({"prompt": "a", "ignore_eos": True}).output_tokens == 16
    assert generation({**chat("a"), "ignore_eos": True}, is_chat=True).output_tokens == 128
    lengths = [generation({"prompt": f"prompt {number}", "max_tokens": 20}) for number in range(100)]
    assert lengths[7] == generation({"prompt": "prompt 7", "max_tokens": 20})
    assert {found.output_tokens for found in lengths} == set(range(10, 21))
    assert {(found.output_tokens == 20, found.finish_reason) for found in lengths} == {
        (True, "length"),
        (False, "stop"),
    }
    at_least = [generation({"prompt": f"{number}", "max_tokens": 20, "min_tokens": 15}) for number in range(50)]
    assert min(found.output_tokens for found in at_least) == 15


@pytest.mark.parametrize(
    ("body", "is_chat", "problem"),
    [
        ({"prompt": "a", "n": 2}, False, "n must be 1"),
        ({"prompt": "a", "max_tokens": -1}, False, "at least 1"),
        ({}, False, "prompt must be"),
        ({"prompt": ["a", "b"]}, False, "prompt must be"),
        ({}, True, "messages is missing"),
        ({"prompt": "a", "max_tokens": "x"}, False, "not valid"),
    ],
)
def test_bad_bodies_are_refused(body: dict[str, Any], is_chat: bool, problem: str) -> None:
    """With what is wrong."""
    with pytest.raises(ValueError, match=problem):
        generation(body, is_chat=is_chat)


def test_bytes_that_are_no_json_are_refused() -> None:
    """Not with a traceback."""
    with pytest.raises(ValueError, match="not valid"):
        read_generation(b"{", is_chat=False)


def test_a_chat_stream_has_the_form_of_real_engines() -> None:
    """A role without a token, one message a token, the reason with the last, usage without choices, [DONE]."""
    body = {**chat("hi"), "max_tokens": 2, "ignore_eos": True, "stream": True, "model": "m"}
    asked = generation({**body, "stream_options": {"include_usage": True}}, is_chat=True)
    answer = Answer(asked, 7, 1000)
    role, first, last, counts = map(payload, (answer.role(), answer.token(0), answer.token(1), answer.usage_message()))

    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["choices"][0] == {"index": 0, "delta": {"content": " alpha"}, "logprobs": None, "finish_reason": None}
    assert last["choices"][0]["finish_reason"] == "length"
    assert "usage" not in last
    assert counts["choices"] == []
    assert counts["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    assert {(part["id"], part["object"], part["model"], part["created"]) for part in (role, first, last, counts)} == {
        ("mock-7", "chat.completion.chunk", "m", 1000)
    }
    assert DONE == b"e\r\ndata: [DONE]\n\n\r\n"


def test_usage_is_sent_as_asked() -> None:
    """Not at all, at the end, or in every message."""
    body = {"prompt": "a b", "max_tokens": 2, "ignore_eos": True, "stream": True}
    both = {"include_usage": True, "continuous_usage_stats": True}

    assert not generation(body).usage
    asked = generation({**body, "stream_options": both})
    assert asked.usage
    assert payload(Answer(asked, 1, 0).token(0))["usage"]["completion_tokens"] == 1
    assert payload(Answer(asked, 1, 0).token(0))["choices"][0]["text"] == " alpha"


@pytest.mark.parametrize("is_chat", [False, True])
def test_a_whole_answer_has_its_text_and_usage(is_chat: bool) -> None:
    """Without streaming; usage only where it may be sent."""
    body = {**chat("hi"), "prompt": "hi", "max_tokens": 3, "ignore_eos": True}
    answer = Answer(generation(body, is_chat=is_chat), 1, 0)
    value = json.loads(answer.whole(with_usage=True))
    choice = value["choices"][0]

    assert (choice["message"]["content"] if is_chat else choice["text"]) == " alpha beta gamma"
    assert value["usage"]["completion_tokens"] == 3
    assert value["object"] == ("chat.completion" if is_chat else "text_completion")
    assert "usage" not in json.loads(answer.whole(with_usage=False))


def test_failing_answers_are_what_their_names_say() -> None:
    """Wide words are UTF-8 of several bytes; a broken message is no JSON; errors are objects."""
    answer = Answer(generation({"prompt": "a", "stream": True}), 1, 0, wide=True)

    assert payload(answer.token(0))["choices"][0]["text"] == " \u00e9t\u00e9"
    assert all(any(byte >= 0x80 for byte in answer.word(index)) for index in range(8))
    assert b"\n" not in answer.broken_message().partition(b"\r\n")[2].rstrip(b"\r\n")
    assert "error" in payload(answer.error_message())
    assert json.loads(error_body("no"))["error"]["message"] == "no"


def test_failures_are_read_with_their_argument() -> None:
    """A mode has its own default argument; an unknown one names the known ones."""
    assert parse_failure("") == Failure()
    assert parse_failure("slow-start") == Failure(mode="slow-start", argument=10)
    assert parse_failure("oom-load:7") == Failure(mode="oom-load", argument=7)
    with pytest.raises(ValueError, match="hang-start"):
        parse_failure("explode")
    assert all(parse_failure(mode).mode == mode for mode in MODES)


def test_failures_strike_when_they_should() -> None:
    """Every nth request; or from the nth request on, at its second token."""
    assert [Failure(mode="http-500", argument=2).hits_stream(number) for number in (1, 2, 3, 4)] == [
        False, True, False, True
    ]  # fmt: skip
    assert not Failure(mode="oom-load", argument=2).ends_at(1, 9)
    assert not Failure(mode="oom-load", argument=2).ends_at(2, 1)
    assert Failure(mode="oom-load", argument=2).ends_at(3, 2)
