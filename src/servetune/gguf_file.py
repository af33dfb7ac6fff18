"""Reads the head of a GGUF file: metadata and the list of tensors, never the weights.

Written from the published description of the format (versions 2 and 3, little-endian); needs no other package, so that
model facts and tokenizers do not depend on the extra that makes variants.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servetune.errors import UserError

_MAGIC = b"GGUF"
_SCALARS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING, _ARRAY = 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]
_MOST_ENTRIES = 1 << 24
"""More metadata entries, tensors or array items than this mean a damaged file."""

TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
"""Type number -> name, values in a block, bytes of a block."""

FILE_TYPES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    25: "IQ4_NL",
    30: "IQ4_XS",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
}
"""`general.file_type` -> its usual name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """One tensor of the file's list."""

    name: str
    shape: tuple[int, ...]
    """Fastest dimension first, as in the file."""
    type_number: int
    offset: int
    """From the beginning of the data."""

    @property
    def elements(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int | None:
        """Bytes in the file; None for a type that this reader does not know."""
        if self.type_number not in TENSOR_TYPES:
            return None
        _, block, block_bytes = TENSOR_TYPES[self.type_number]
        return self.elements // block * block_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufHead:
    """What a GGUF file says before its weights begin."""

    path: Path
    size_bytes: int
    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]
    value_at: dict[str, int]
    """Byte at which the value of each metadata entry begins."""
    metadata_end: int
    data_start: int

    @property
    def architecture(self) -> str:
        """Name of the architecture, which begins the names of its own metadata."""
        return str(self.metadata.get("general.architecture", ""))

    def of_architecture(self, key: str) -> Any:
        """Return the architecture's own metadata `key`, or None."""
        return self.metadata.get(f"{self.architecture}.{key}")


class _Cursor:
    """A position in the mapped file; reading beyond its end raises struct.error or IndexError."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def scalar(self, kind: struct.Struct) -> Any:
        (value,) = kind.unpack_from(self.data, self.at)
        self.at += kind.size
        return value

    def count(self) -> int:
        value = int(self.scalar(_U64))
        if value > _MOST_ENTRIES:
            raise ValueError(f"a count of {value} at byte {self.at - 8}")
        return value

    def text(self) -> str:
        length = self.count()
        raw = self.data[self.at : self.at + length]
        if len(raw) < length:
            raise IndexError("text beyond the end")
        self.at += length
        return raw.decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            item_kind, length = int(self.scalar(_U32)), self.count()
            return self.array(item_kind, length)
        if kind not in _SCALARS:
            raise ValueError(f"an unknown value type {kind} at byte {self.at}")
        return self.scalar(_SCALARS[kind])

    def array(self, kind: int, length: int) -> list[Any]:
        if kind not in _SCALARS:
            return [self.value(kind) for _ in range(length)]
        whole = struct.Struct(f"<{length}{_SCALARS[kind].format[1:]}")
        values = whole.unpack_from(self.data, self.at)
        self.at += whole.size
        return list(values)


def read_head(path: Path) -> GgufHead:
    """Read metadata and tensor list of the GGUF file `path`.

    Raises UserError, which names the file and what is wrong, if it is missing, unreadable, not GGUF, damaged, or
    shorter than its own tensor list says.
    """
    try:
        with path.open("rb") as stream:
            size = path.stat().st_size
            if size < len(_MAGIC) or stream.read(len(_MAGIC)) != _MAGIC:
                raise UserError(str(path), "is not a GGUF file", "its first four bytes should be GGUF")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parsed(path, size, data)
    except OSError as error:
        raise UserError(str(path), f"cannot be read: {error.strerror}") from error


def _parsed(path: Path, size: int, data: mmap.mmap) -> GgufHead:
    cursor = _Cursor(data)
    cursor.at = len(_MAGIC)
    try:
        version = int(cursor.scalar(_U32))
        if version not in (2, 3):
            raise UserError(str(path), f"is GGUF version {version}", "versions 2 and 3 can be read")
        tensor_count, entry_count = cursor.count(), cursor.count()
        metadata, value_at = _metadata(cursor, entry_count)
        metadata_end = cursor.at
        tensors = tuple(_tensor(cursor) for _ in range(tensor_count))
    except (struct.error, IndexError) as error:
        raise UserError(str(path), f"ends inside its header, after {size} bytes", _FETCH_AGAIN) from error
    except ValueError as error:
        raise UserError(str(path), f"is a damaged GGUF file: {error}", _FETCH_AGAIN) from error
    head = GgufHead(
        path=path,
        size_bytes=size,
        metadata=metadata,
        tensors=tensors,
        value_at=value_at,
        metadata_end=metadata_end,
        data_start=aligned(cursor.at, alignment_of(metadata)),
    )
    _check_length(head)
    return head


_FETCH_AGAIN = "fetch it again"
_MOST_DIMENSIONS = 4


def _metadata(cursor: _Cursor, count: int) -> tuple[dict[str, Any], dict[str, int]]:
    values: dict[str, Any] = {}
    value_at: dict[str, int] = {}
    for _ in range(count):
        key, kind = cursor.text(), int(cursor.scalar(_U32))
        value_at[key] = cursor.at
        values[key] = cursor.value(kind)
    return values, value_at


def _tensor(cursor: _Cursor) -> Tensor:
    name = cursor.text()
    dimensions = int(cursor.scalar(_U32))
    if dimensions > _MOST_DIMENSIONS:
        raise ValueError(f"a tensor of {dimensions} dimensions at byte {cursor.at - 4}")
    shape = tuple(int(cursor.scalar(_U64)) for _ in range(dimensions))
    return Tensor(name=name, shape=shape, type_number=int(cursor.scalar(_U32)), offset=int(cursor.scalar(_U64)))


def alignment_of(metadata: dict[str, Any]) -> int:
    """Return the alignment in bytes of the tensors' data."""
    return max(1, int(metadata.get("general.alignment", 32)))


def aligned(position: int, alignment: int) -> int:
    """Return the first multiple of `alignment` that is not before `position`."""
    return -(-position // alignment) * alignment


def _check_length(head: GgufHead) -> None:
    for tensor in head.tensors:
        end = head.data_start + tensor.offset + (tensor.size_bytes or 0)
        if end > head.size_bytes:
            raise UserError(
                str(head.path),
                f"is cut short: tensor {tensor.name} ends at byte {end}, the file at byte {head.size_bytes}",
                _FETCH_AGAIN,
            )
    if not head.tensors:
        raise UserError(str(head.path), "holds no tensors", "choose a file with weights")
