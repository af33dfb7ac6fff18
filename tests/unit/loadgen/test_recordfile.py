"""The file of raw records."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.errors import StoreError
from servetune.loadgen.recordfile import RecordWriter, begin_records, read_records
from servetune.records import RequestError, RequestRecord

RECORDS = [
    RequestRecord(index=1, scheduled_ns=0, sent_ns=5, reads_ns=(9, 12), read_events=(1, 2), event_flags=(4, 4, 256)),
    RequestRecord(index=0, scheduled_ns=3, error=RequestError(kind="connect", message="Connection refused")),
]


def written(path: Path, records: list[RequestRecord] = RECORDS) -> Path:
    """A closed file with these records."""
    with begin_records(path) as file:
        append(file.fileno(), records)
    return path


def append(fileno: int, records: list[RequestRecord]) -> None:
    """Add records and close the writer."""
    writer = RecordWriter(fileno)
    for record in records:
        writer.add(record)
    writer.close()


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    """In the order in which they were added."""
    assert read_records(written(tmp_path / "r")) == RECORDS


def test_an_empty_run_is_an_empty_list(tmp_path: Path) -> None:
    """The mark alone is a whole file."""
    assert read_records(written(tmp_path / "r", [])) == []


def test_records_can_be_read_after_a_flush(tmp_path: Path) -> None:
    """What a killed run leaves behind."""
    with begin_records(tmp_path / "r") as file:
        writer = RecordWriter(file.fileno())
        writer.add(RECORDS[0])
        writer.flush()
        writer.add(RECORDS[1])
        assert read_records(tmp_path / "r") == RECORDS[:1]
        writer.close()


def test_records_of_several_writers_are_merged_by_time(tmp_path: Path) -> None:
    """Each appends whole records; a reader gets them in the order in which the requests ended."""
    ended = [RequestRecord(index=at, scheduled_ns=0, closed_ns=at) for at in range(6)]
    with begin_records(tmp_path / "r") as file:
        append(file.fileno(), ended[1::2])
        append(file.fileno(), ended[::2])
    assert read_records(tmp_path / "r") == ended


def test_a_record_that_is_cut_off_is_left_out(tmp_path: Path) -> None:
    """At every length of the file, the whole records come back."""
    data = written(tmp_path / "r").read_bytes()
    first = len(written(tmp_path / "one", RECORDS[:1]).read_bytes())
    for size in range(8, len(data)):
        (tmp_path / "cut").write_bytes(data[:size])
        assert read_records(tmp_path / "cut") == (RECORDS[:1] if size >= first else [])


@pytest.mark.parametrize("data", [b"", b"STRE", b"something else", b"STRECS01\x01\0\0\0\xc1"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, data: bytes) -> None:
    """Also a damaged record."""
    (tmp_path / "r").write_bytes(data)
    with pytest.raises(StoreError, match="r: "):
        read_records(tmp_path / "r")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The message names it."""
    with pytest.raises(StoreError, match="gone: No such file"):
        read_records(tmp_path / "gone")


@settings(deadline=None)
@given(indexes=st.lists(st.integers(0, 2**40), max_size=5), text=st.text(max_size=20))
def test_any_values_come_back(tmp_path_factory: pytest.TempPathFactory, indexes: list[int], text: str) -> None:
    """Numbers of any size and text of any kind."""
    records = [RequestRecord(index=index, scheduled_ns=-index, text=text) for index in indexes]
    assert read_records(written(tmp_path_factory.mktemp("r") / "r", records)) == records
