"""The JSON body of one request under one set of definitions. Pure: values in, bytes out."""

from __future__ import annotations

from typing import Any

import msgspec

from servetune.records import BodyRules, Request

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "generate": "/generate"}
"""Path of each API below the server's root."""

_SERVER_TEMPERATURE = "vllm-0.33"


def body_bytes(request: Request, rules: BodyRules) -> bytes:
    """Return the body that asks for `request`.

    `strict` sends one user message with plain text, temperature 0 and `max_tokens`. The vllm profiles send what their
    client sends: a list with one text part and `max_completion_tokens` for chat,
    repetition_penalty 1.0 for completions; 0.11 sets temperature 0, 0.33 sets none and so takes the server's.
    `rules.extra` is added last and wins; an object in it is merged into the object of the same name.
    """
    body = _generate_body(request, rules) if rules.api == "generate" else _openai_body(request, rules)
    return msgspec.json.encode(_merged(body, rules.extra))


def _openai_body(request: Request, rules: BodyRules) -> dict[str, Any]:
    vllm = rules.definitions.startswith("vllm-")
    body: dict[str, Any] = {"model": rules.model}
    if rules.api == "chat":
        content: Any = [{"type": "text", "text": request.prompt}] if vllm else request.prompt
        body["messages"] = [{"role": "user", "content": content}]
    else:
        body["prompt"] = request.prompt
    if rules.definitions != _SERVER_TEMPERATURE:
        body["temperature"] = 0.0
    if vllm and rules.api == "completions":
        body["repetition_penalty"] = 1.0
    body["max_completion_tokens" if vllm and rules.api == "chat" else "max_tokens"] = request.output_tokens
    body["stream"] = rules.stream
    if rules.include_usage and rules.stream:
        body["stream_options"] = {"include_usage": True}
    if rules.ignore_eos:
        body["ignore_eos"] = True
    return body


def _generate_body(request: Request, rules: BodyRules) -> dict[str, Any]:
    """SGLang's native form names no model, and reports its token counts always."""
    sampling: dict[str, Any] = {"max_new_tokens": request.output_tokens}
    if rules.definitions != _SERVER_TEMPERATURE:
        sampling["temperature"] = 0.0
    if rules.ignore_eos:
        sampling["ignore_eos"] = True
    return {"text": request.prompt, "sampling_params": sampling, "stream": rules.stream}


def _merged(fields: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    merged = dict(fields)
    for name, value in extra.items():
        known = merged.get(name)
        merged[name] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def endpoint_path(base_path: str, rules: BodyRules, endpoint: str | None) -> str:
    """Join the path of the base URL with the API's path, or with `endpoint` where the user names one.

    A base that already ends with `/v1` is not given a second one; SGLang's native path stands beside it, not below.
    """
    path = endpoint or PATHS[rules.api]
    if rules.api == "generate" and endpoint is None:
        return base_path.removesuffix("/v1") + path
    if base_path.endswith("/v1") and path.startswith("/v1/"):
        return base_path + path.removeprefix("/v1")
    return base_path + (path if path.startswith("/") else f"/{path}")
