"""Secrets are masked by name and by place."""

from __future__ import annotations

import pytest

from servetune.masking import is_secret_name, mask_argv, mask_command, mask_env, mask_headers, mask_proxy, mask_text
from servetune.records import Command


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "OPENAI_API_KEY", "api-key", "X-Api-Key", "DB_PASSWORD", "client_secret", "Authorization"),
        *("Proxy-Authorization", "X-Auth-Token", "Cookie", "Set-Cookie", "Ocp-Apim-Subscription-Key"),
    ],
)
def test_names_of_secrets_are_known(name: str) -> None:
    """Variables and flags that hold secrets are recognised."""
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["max-num-batched-tokens", "max_tokens", "kv_tokens", "tokenizer", "author", "keep-alive", "client-key", "ca-file"],
)
def test_token_counts_are_no_secrets(name: str) -> None:
    """Options that count tokens stay readable."""
    assert not is_secret_name(name)


def test_a_command_is_masked_in_both_flag_forms_and_in_its_environment() -> None:
    """`--api-key x`, `--api-key=x`, URL logins and secret variables are replaced, all else is kept."""
    command = Command(
        argv=("serve", "--api-key", "s1", "--hf-token=s2", "--max-tokens", "5", "http://me:s3@host/v1?api_key=s4&a=1"),
        env={"HF_TOKEN": "s5", "THREADS": "2"},
    )

    masked = mask_command(command)

    shown = " ".join((*masked.argv, *masked.env.values()))
    assert not any(f"s{number}" in shown.replace("serve", "") for number in range(1, 6))
    assert masked.argv[4:6] == ("--max-tokens", "5")
    assert masked.argv[6] == "http://***@host/v1?api_key=***&a=1"
    assert masked.env["THREADS"] == "2"


def test_a_flag_without_a_value_does_not_swallow_the_next_flag() -> None:
    """A secret flag that is followed by another flag masks nothing else."""
    masked = mask_command(Command(argv=("--token", "--verbose", "x")))

    assert masked.argv == ("--token", "--verbose", "x")


def test_bearer_tokens_are_masked_anywhere() -> None:
    """An authorisation header in a log line is masked."""
    assert mask_text("Authorization: Bearer abc.def x") == "Authorization: Bearer *** x"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Authorization: Basic c2VjcmV0 x", "Authorization: Basic *** x"),
        ('{"Authorization": "Bearer s-1", "a": 1}', '{"Authorization": "Bearer ***", "a": 1}'),
        ("proxy-authorization=s-1", "proxy-authorization=***"),
        ("x-api-key: s-1, next", "x-api-key: ***, next"),
        ("{'api-key': 's-1', 'a': 1}", "{'api-key': '***', 'a': 1}"),
        ("Namespace(api_key='s-1', port=1)", "Namespace(api_key='***', port=1)"),
        ("vllm serve --api-key s-1 --port 1", "vllm serve --api-key *** --port 1"),
        ("vllm serve --api-key --port 1", "vllm serve --api-key --port 1"),
        ("OPENAI_API_KEY=s-1 vllm", "OPENAI_API_KEY=*** vllm"),
        ("the API key is wrong", "the API key is wrong"),
        ("via http://me:s@1@proxy:3128/x now", "via http://***@proxy:3128/x now"),
        ("via http://me:s/1@proxy:3128 now", "via http://***@proxy:3128 now"),
        ("http://host:8000/models/a@b", "http://host:8000/models/a@b"),
        ("http://[::1]:8000/a@b", "http://[::1]:8000/a@b"),
    ],
)
def test_texts(text: str, masked: str) -> None:
    """Secrets in log lines, headers, command lines and addresses go, the rest stays."""
    assert mask_text(text) == masked
    assert mask_text(masked) == masked


@pytest.mark.parametrize(
    ("argv", "masked"),
    [
        (("--proxy", "http://me:s@h:1"), ("--proxy", "http://***@h:1")),
        (("--proxy", "me:s@h:1", "x"), ("--proxy", "***@h:1", "x")),
        (("--proxy=me:s@h:1",), ("--proxy=***@h:1",)),
        (("--proxy", "h:1"), ("--proxy", "h:1")),
        (("--header", "Authorization=Basic c2Vj"), ("--header", "Authorization=***")),
        (("-H", "api-key: s"), ("-H", "api-key: ***")),
        (("--header=x-api-key=s",), ("--header=x-api-key=***",)),
        (("--header", "a=b", "api-key=s", "--port", "1"), ("--header", "a=b", "api-key=***", "--port", "1")),
        (("--header", "Accept: text/plain"), ("--header", "Accept: text/plain")),
        (("--openai-api-key", "s"), ("--openai-api-key", "***")),
        (("--api-key", "-s"), ("--api-key", "***")),
        (("--api-key", "a=b"), ("--api-key", "***")),
        (("-e", "HF_TOKEN=s", "run", "-e", "A=1"), ("-e", "HF_TOKEN=***", "run", "-e", "A=1")),
    ],
)
def test_arguments(argv: tuple[str, ...], masked: tuple[str, ...]) -> None:
    """Proxies, headers and variables, in every form of flag and value."""
    assert mask_argv(argv) == masked


def test_headers() -> None:
    """By name, and logins in the values of others."""
    headers = {
        "Authorization": "Bearer s",
        "api-key": "s",
        "X-API-Key": "s",
        "Accept": "a/b",
        "Referer": "http://m:s@h",
    }
    assert mask_headers(headers) == {
        **dict.fromkeys(("Authorization", "api-key", "X-API-Key"), "***"),
        "Accept": "a/b",
        "Referer": "http://***@h",
    }


def test_proxies() -> None:
    """With and without scheme and login, and as variables."""
    assert mask_proxy("http://me:s@h:1") == "http://***@h:1"
    assert mask_proxy("me:s@h:1") == "***@h:1"
    assert mask_proxy("h:1") == "h:1"
    assert mask_env({"https_proxy": "me:s@h:1", "NO_PROXY": "a,b"}) == {"https_proxy": "***@h:1", "NO_PROXY": "a,b"}
