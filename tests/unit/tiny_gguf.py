"""Small real GGUF files, written by the independent `gguf` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]
"""Bytes that byte-level BPE writes as themselves; the others follow from U+0100."""


def byte_tokens() -> list[str]:
    """The 256 base tokens of byte-level BPE, in the order of their bytes."""
    others = [byte for byte in range(256) if byte not in BYTES]
    shown = {byte: chr(byte) for byte in BYTES} | {byte: chr(256 + place) for place, byte in enumerate(others)}
    return [shown[byte] for byte in range(256)]


MERGES = ["h e", "l l", "he ll", "hell o", "\u0120 w", "o r", "\u0120w or", "\u0120wor l", "\u0120worl d"]


def write(path: Path, *, pre: str | None = "smollm", width: int = 64, **metadata: Any) -> Path:
    """Write a llama-like model of two layers in F32 with a byte-level BPE tokenizer of 265 tokens and two special ones.

    `metadata` adds entries by name with dots as double underscores; None leaves one out.
    """
    writer = gguf.GGUFWriter(path, "llama")
    entries: dict[str, Any] = {
        "general.name": "Tiny",
        "general.file_type": 0,
        "llama.block_count": 2,
        "llama.context_length": 256,
        "llama.embedding_length": width,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*byte_tokens(), *(merge.replace(" ", "") for merge in MERGES), "<end>", "<pad>"],
        "tokenizer.ggml.token_type": [1] * (256 + len(MERGES)) + [3, 5],
        "tokenizer.ggml.merges": MERGES,
        **{name.replace("__", "."): value for name, value in metadata.items()},
    }
    for name, value in entries.items():
        _add(writer, name, value)
    draw = np.random.default_rng(1)
    writer.add_tensor("token_embd.weight", draw.normal(size=(40, width)).astype(np.float32))
    writer.add_tensor("blk.0.ffn_up.weight", draw.normal(size=(96, width)).astype(np.float32))
    writer.add_tensor("blk.0.odd.weight", draw.normal(size=(8, 20)).astype(np.float32))
    writer.add_tensor("blk.0.attn_norm.weight", draw.normal(size=(width,)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: Any, name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)
