"""The file of raw request records: a short mark, then each record as its length and its msgpack form.

Records are added as requests finish, so a reader must accept that the last one is cut off.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec

from servetune.errors import StoreError
from servetune.records import RequestRecord

_MARK = b"STRECS01"
_LENGTH = struct.Struct("<I")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RequestRecord).decode


class RecordWriter:
    """Appends records to a new file; `flush` hands what was added to the system, `close` puts it on the disk."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._pending = bytearray(_MARK)
        self.flush()

    def add(self, record: RequestRecord) -> None:
        """Add one record to what waits for the next flush."""
        data = _encode(record)
        self._pending += _LENGTH.pack(len(data))
        self._pending += data

    def flush(self) -> None:
        """Write what was added; raises OSError when the disk is full."""
        while self._pending:
            del self._pending[: self._file.write(self._pending)]

    def close(self) -> None:
        """Write the rest and wait until it is on the disk."""
        self.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def read_records(path: Path) -> list[RequestRecord]:
    """Return all whole records of a file, in the order in which the requests finished.

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
    return records


def _decoded(path: Path, data: bytes) -> RequestRecord:
    try:
        return _decode(data)
    except msgspec.MsgspecError as problem:
        raise StoreError(f"{path}: damaged record: {problem}") from problem
