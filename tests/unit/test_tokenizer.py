"""Tokenizers from GGUF files, JSON files and folders; what is said about those that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from servetune import cache, tokenizer
from servetune.errors import HostProblem, UserError
from tests.unit import tiny_gguf


def test_a_gguf_tokenizer_merges_as_its_file_says(tmp_path: Path) -> None:
    """Merges are applied in order, and decoding gives the text back, also outside ASCII."""
    ours = tokenizer.load(str(tiny_gguf.write(tmp_path / "m.gguf")))
    tokens = tiny_gguf.MERGES
    assert ours.encode("hello world") == [256 + tokens.index("hell o"), 256 + tokens.index("\u0120worl d")]
    text = "naïve 漢字 🙂 12 \n\t."
    assert ours.decode(ours.encode(text)) == text
    assert ours.decode(ours.encode("a<end>b")) == "a<end>b"


def test_base_vocabulary_ends_with_the_last_ordinary_token(tmp_path: Path) -> None:
    """Added tokens behind the vocabulary are no part of it; the control token is special, the padding is not."""
    ours = tokenizer.load(str(tiny_gguf.write(tmp_path / "m.gguf")))
    count = 256 + len(tiny_gguf.MERGES)
    assert (ours.base_vocab_size, ours.special_ids, ours.special_added) == (count, frozenset({count}), 0)
    assert ours.encode("<end>") == [count]


def test_special_tokens_inside_the_vocabulary_are_counted_in_it(tmp_path: Path) -> None:
    """A control token with a low id stays in the base vocabulary, as for SmolLM2."""
    types = [3] + [1] * (255 + len(tiny_gguf.MERGES)) + [3, 5]
    ours = tokenizer.load(str(tiny_gguf.write(tmp_path / "m.gguf", tokenizer__ggml__token_type=types)))
    assert ours.base_vocab_size == 256 + len(tiny_gguf.MERGES)
    assert 0 in ours.special_ids


@pytest.mark.parametrize(
    ("pre", "entries", "before", "after"),
    [
        ("smollm", {}, [], []),
        ("smollm", {"tokenizer__ggml__add_bos_token": True}, [65], []),
        ("llama-bpe", {}, [65], []),
        ("llama-bpe", {"tokenizer__ggml__add_bos_token": False}, [], []),
        ("qwen2", {"tokenizer__ggml__add_bos_token": True, "tokenizer__ggml__add_eos_token": True}, [65], [66]),
    ],
)
def test_begin_and_end_tokens_follow_the_file(
    pre: str, entries: dict[str, Any], before: list[int], after: list[int], tmp_path: Path
) -> None:
    """They are added only on request, and counted in special_added."""
    ends = {"tokenizer__ggml__bos_token_id": 65, "tokenizer__ggml__eos_token_id": 66}
    ours = tokenizer.load(str(tiny_gguf.write(tmp_path / "m.gguf", pre=pre, **entries, **ends)))
    plain = ours.encode("hi")
    assert ours.encode("hi", add_special=True) == [*before, *plain, *after]
    assert ours.special_added == len(before) + len(after)


@pytest.mark.parametrize(
    ("pre", "digits"), [("smollm", 1), ("qwen2", 1), ("llama-bpe", 3), ("gpt-2", 6), ("default", 3), (None, 3)]
)
def test_digits_are_cut_as_the_pre_tokenizer_does(pre: str | None, digits: int, tmp_path: Path) -> None:
    """A merge across six digits applies only where the text is not cut between them."""
    merges = ["1 2", "12 3", "4 5", "45 6", "123 456"]
    tokens = [*tiny_gguf.byte_tokens(), *(merge.replace(" ", "") for merge in merges)]
    entries: dict[str, Any] = {
        "tokenizer__ggml__tokens": tokens,
        "tokenizer__ggml__merges": merges,
        "tokenizer__ggml__token_type": None,
    }
    ours = tokenizer.load(str(tiny_gguf.write(tmp_path / "m.gguf", pre=pre, **entries)))
    assert len(ours.encode("123456")) == 6 // digits


def test_the_rebuilt_tokenizer_is_kept(tmp_path: Path) -> None:
    """A second load reads the kept tokenizer.json instead of building it again."""
    file = tiny_gguf.write(tmp_path / "m.gguf")
    tokenizer.load(str(file))
    (kept,) = (cache.cache_dir() / "tokenizers").iterdir()
    stamp = kept.stat().st_mtime_ns
    tokenizer.load(str(file))
    assert kept.stat().st_mtime_ns == stamp
    kept.write_text("{}")
    with pytest.raises(UserError, match="holds a tokenizer that cannot be used"):
        tokenizer.load(str(file))


@pytest.mark.parametrize(
    ("pre", "entries", "said"),
    [
        ("tekken", {}, 'pre-tokenizer "tekken" is not known'),
        ("smollm", {"tokenizer__ggml__model": "llama"}, 'of the kind "llama"'),
        ("smollm", {"tokenizer__ggml__model": None}, "holds no tokenizer"),
        ("smollm", {"tokenizer__ggml__tokens": None}, "holds no tokenizer"),
    ],
)
def test_a_tokenizer_that_cannot_be_rebuilt_is_named(
    pre: str, entries: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """The reason and the remedy are in the message."""
    file = tiny_gguf.write(tmp_path / "m.gguf", pre=pre, **entries)
    with pytest.raises(UserError, match=said) as caught:
        tokenizer.load(str(file))
    assert "--tokenizer" in caught.value.fix


def json_text(tmp_path: Path) -> str:
    """The tokenizer.json that is made from a tiny GGUF file."""
    tokenizer.load(str(tiny_gguf.write(tmp_path / "source.gguf")))
    (kept,) = (cache.cache_dir() / "tokenizers").iterdir()
    return kept.read_text()


def test_folders_and_json_files(tmp_path: Path) -> None:
    """A folder's tokenizer.json and the file itself give the same tokenizer; truncation is switched off."""
    described = json.loads(json_text(tmp_path))
    described["truncation"] = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(described))
    by_folder, by_file = tokenizer.load(str(tmp_path)), tokenizer.load(str(file))
    assert by_folder.encode("hello world") == by_file.encode("hello world")
    assert len(by_file.encode("hello world")) == 2


def test_sources_that_hold_no_tokenizer_are_the_users_mistake(tmp_path: Path) -> None:
    """An empty folder, a file of something else, and a name of nothing are told apart."""
    with pytest.raises(UserError, match=r"has no tokenizer\.json"):
        tokenizer.load(str(tmp_path))
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UserError, match="is not a usable tokenizer"):
        tokenizer.load(str(tmp_path / "bad.json"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is not a usable tokenizer"):
        tokenizer.load(str(tmp_path / "binary"))
    with pytest.raises(UserError, match="no such tokenizer"):
        tokenizer.load("nonsense")
    with pytest.raises(UserError, match="No such file"):
        tokenizer.load(str(tmp_path / "none.gguf"))


def test_a_hub_name_without_a_network_is_a_host_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Offline, the remedy is to connect or to give a folder."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(HostProblem, match="hub cannot be reached"):
        tokenizer.load("nobody/nothing")
