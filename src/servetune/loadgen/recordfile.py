"""The file of raw request records: a short mark, then each record as its length and its msgpack form.

Records are added as requests finish, so a reader must accept that the last one is cut off.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import BinaryIO

import msgspec

from servetune.errors import StoreError
from servetune.records import RequestRecord

_MARK = b"STRECS01"
_LENGTH = struct.Struct("<I")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RequestRecord).decode


def begin_records(path: Path) -> BinaryIO:
    """Make a new, empty file of records; each writer appends whole records to it. Raises OSError."""
    path.write_bytes(_MARK)
    return path.open("ab", buffering=0)


class RecordWriter:
    """Appends records to an open file; `flush` hands what was added to the system, `close` puts it on the disk.

    Several processes may append to one file: each flush is one write of whole records.
    """

    def __init__(self, fileno: int) -> None:
        self._fileno = fileno
        self._pending = bytearray()

    def add(self, record: RequestRecord) -> None:
        """Add one record to what waits for the next flush."""
        data = _encode(record)
        self._pending += _LENGTH.pack(len(data))
        self._pending += data

    def flush(self) -> None:
        """Write what was added; raises OSError when the disk is full."""
        while self._pending:
            del self._pending[: os.write(self._fileno, self._pending)]

    def close(self) -> None:
        """Write the rest and wait until it is on the disk."""
        self.flush()
        os.fsync(self._fileno)


def read_records(path: Path) -> list[RequestRecord]:
    """Return all whole records of a file, in the order in which the requests ended.

    A record that is cut off at the end is left out. Raises StoreError if the file cannot be read or holds no records
    of this kind.
    """
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise StoreError(f"{path}: {problem.strerror}") from problem
    if not data.startswith(_MARK):
        raise StoreError(f"{path}: not a file of request records")
    records = []
    at = len(_MARK)
    while at + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            break
        records.append(_decoded(path, data[at : at + length]))
        at += length
    return sorted(records, key=lambda record: math.inf if record.closed_ns is None else record.closed_ns)


def _decoded(path: Path, data: bytes) -> RequestRecord:
    try:
        return _decode(data)
    except msgspec.MsgspecError as problem:
        raise StoreError(f"{path}: damaged record: {problem}") from problem
