"""The name that was probably meant."""

from __future__ import annotations

import pytest

from servetune.cli.did_you_mean import nearest

NAMES = ["--seed", "--num-prompts", "--max-concurrency", "--random-prefix-len"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--sed", "--seed"),
        ("--prefix", "--random-prefix-len"),
        ("--parallel", "--max-concurrency"),
        ("--elsewhere", None),
        ("--zz", None),
    ],
)
def test_nearest(word: str, expected: str | None) -> None:
    """Alike, a part of a name, or the word of another program for it."""
    assert nearest(word, NAMES, same={"--parallel": "--max-concurrency", "--elsewhere": "--unknown"}) == expected
