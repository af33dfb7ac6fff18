"""Secrets are masked by name and by place."""

from __future__ import annotations

import pytest

from servetune.masking import is_secret_name, mask_command, mask_text
from servetune.records import Command


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "OPENAI_API_KEY", "api-key", "DB_PASSWORD", "client_secret", "Authorization"]
)
def test_names_of_secrets_are_known(name: str) -> None:
    """Variables and flags that hold secrets are recognised."""
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["max-num-batched-tokens", "max_tokens", "kv_tokens", "tokenizer", "author", "keep-alive"]
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
