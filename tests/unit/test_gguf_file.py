"""GGUF heads: what is read, and what is said about files that are broken."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from servetune.errors import UserError
from servetune.gguf_file import read_head
from tests.unit import tiny_gguf


def test_metadata_and_tensors_are_read(tmp_path: Path) -> None:
    """Every value and every tensor of an independent writer's file is found."""
    head = read_head(tiny_gguf.write(tmp_path / "m.gguf"))
    assert head.architecture == "llama"
    assert head.of_architecture("block_count") == 2
    assert head.metadata["tokenizer.ggml.merges"] == tiny_gguf.MERGES
    by_name = {tensor.name: tensor for tensor in head.tensors}
    assert by_name["token_embd.weight"].shape == (64, 40)
    assert by_name["token_embd.weight"].size_bytes == 64 * 40 * 4
    assert by_name["blk.0.attn_norm.weight"].elements == 64


def test_every_truncation_is_a_user_error(tmp_path: Path) -> None:
    """However short the file is cut, the error names it and no other exception gets out."""
    whole = tiny_gguf.write(tmp_path / "m.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in (0, 3, 4, 7, 12, 24, 30, 100, 1000, 5000, len(whole) // 2, len(whole) - 1000):
        cut.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"cut\.gguf"):
            read_head(cut)


def test_a_cut_in_the_weights_names_the_tensor(tmp_path: Path) -> None:
    """A file that ends inside its weights says which tensor and by how much."""
    file = tiny_gguf.write(tmp_path / "m.gguf")
    file.write_bytes(file.read_bytes()[:-400])
    with pytest.raises(UserError, match=r"is cut short: tensor blk\.0\.odd\.weight ends at byte \d+, the file at"):
        read_head(file)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"PK\x03\x04 a zip file", "is not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(16), "is GGUF version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 1), "damaged GGUF file: a count"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 77), "value type 77"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 1) + b"t" + struct.pack("<I", 9), "9 dimensions"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "holds no tensors"),
    ],
)
def test_damage_is_named(data: bytes, said: str, tmp_path: Path) -> None:
    """Each kind of damage has its own words."""
    file = tmp_path / "bad.gguf"
    file.write_bytes(data)
    with pytest.raises(UserError, match=said):
        read_head(file)


def test_a_missing_file_is_a_user_error(tmp_path: Path) -> None:
    """A path without a file is the user's mistake, with the system's reason."""
    with pytest.raises(UserError, match="No such file"):
        read_head(tmp_path / "none.gguf")


def test_a_tensor_of_an_unknown_type_has_no_size(tmp_path: Path) -> None:
    """Types that the reader does not know do not break it."""
    file = tiny_gguf.write(tmp_path / "m.gguf")
    head = read_head(file)
    raw = file.read_bytes()
    name = b"token_embd.weight"
    at = raw.index(name) + len(name) + 4 + 16
    file.write_bytes(raw[:at] + struct.pack("<I", 99) + raw[at + 4 :])
    assert read_head(file).tensors[0].size_bytes is None
    assert head.tensors[0].size_bytes
