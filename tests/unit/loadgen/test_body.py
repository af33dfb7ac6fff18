"""Request bodies by definitions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from servetune.loadgen.body import body_bytes, endpoint_path
from servetune.records import BodyRules, Request

REQUEST = Request(index=0, prompt='Say "hä"', prompt_tokens=3, output_tokens=16)


def body(**rules: Any) -> dict[str, Any]:
    """The decoded body."""
    decoded: dict[str, Any] = json.loads(body_bytes(REQUEST, BodyRules(**rules)))
    return decoded


def test_strict_chat_is_plain() -> None:
    """Everything that is sent, and nothing else."""
    assert body() == {
        "model": "model",
        "messages": [{"role": "user", "content": 'Say "hä"'}],
        "temperature": 0.0,
        "max_tokens": 16,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def test_vllm_chat_sends_a_list_and_max_completion_tokens() -> None:
    """0.11 with temperature 0, 0.33 without any."""
    old = body(definitions="vllm-0.11", ignore_eos=False)
    assert old["messages"][0]["content"] == [{"type": "text", "text": 'Say "hä"'}]
    assert (old["max_completion_tokens"], old["temperature"]) == (16, 0.0)
    assert not {"max_tokens", "ignore_eos"} & old.keys()
    assert "temperature" not in body(definitions="vllm-0.33")


@pytest.mark.parametrize("definitions", ["strict", "vllm-0.11", "vllm-0.33"])
def test_completions_send_the_prompt(definitions: str) -> None:
    """The vllm profiles add their repetition penalty."""
    sent = body(api="completions", definitions=definitions)
    assert (sent["prompt"], sent["max_tokens"]) == ('Say "hä"', 16)
    assert ("repetition_penalty" in sent) == (definitions != "strict")


def test_options_are_left_out_or_added() -> None:
    """Usage can be left out, extra fields win."""
    sent = body(include_usage=False, extra={"temperature": 0.7, "min_p": 0.1})
    assert "stream_options" not in sent
    assert (sent["temperature"], sent["min_p"]) == (0.7, 0.1)


def test_generate_is_sglangs_native_form() -> None:
    """The prompt as text, the lengths among the sampling parameters, no model and no stream options."""
    assert body(api="generate") == {
        "text": 'Say "hä"',
        "sampling_params": {"max_new_tokens": 16, "temperature": 0.0, "ignore_eos": True},
        "stream": True,
    }
    assert body(api="generate", definitions="vllm-0.33", ignore_eos=False)["sampling_params"] == {"max_new_tokens": 16}


@pytest.mark.parametrize("api", ["chat", "completions", "generate"])
def test_an_answer_at_once_needs_no_stream_options(api: str) -> None:
    """They are refused by servers when nothing is streamed."""
    sent = body(api=api, stream=False)
    assert sent["stream"] is False
    assert "stream_options" not in sent


def test_objects_among_the_extra_fields_are_merged() -> None:
    """Fields beside them stay; any other value replaces what was there."""
    sent = body(api="generate", extra={"sampling_params": {"top_k": 5, "temperature": 1}, "stream": False})
    assert sent["sampling_params"] == {"max_new_tokens": 16, "temperature": 1, "ignore_eos": True, "top_k": 5}
    assert sent["stream"] is False
    options = body(extra={"stream_options": {"continuous_usage_stats": True}})["stream_options"]
    assert options == {"include_usage": True, "continuous_usage_stats": True}
    assert body(extra={"stream_options": None})["stream_options"] is None


@pytest.mark.parametrize(
    ("base", "api", "endpoint", "path"),
    [
        ("", "chat", None, "/v1/chat/completions"),
        ("", "completions", None, "/v1/completions"),
        ("/v1", "chat", None, "/v1/chat/completions"),
        ("/serve/a", "chat", None, "/serve/a/v1/chat/completions"),
        ("/v1", "chat", "/v1/completions", "/v1/completions"),
        ("", "chat", "generate", "/generate"),
        ("/serve", "generate", None, "/serve/generate"),
        ("/v1", "generate", None, "/generate"),
    ],
)
def test_the_path_is_joined_once(base: str, api: Any, endpoint: str | None, path: str) -> None:
    """A base that ends with /v1 is not given a second one."""
    assert endpoint_path(base, BodyRules(api=api), endpoint) == path
