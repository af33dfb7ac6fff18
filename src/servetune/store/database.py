"""The index of one study folder.

One writer at a time (study.py holds the host-wide lock). It stores values and hands them back; it decides nothing.
Raw record files are published (store.files) before the row that names them is written, so that an index row never
points to a file that is not there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from servetune.errors import StoreError
from servetune.records import Command, Completed, Failed, Measurement, Record, Run, Trial
from servetune.store import files

T = TypeVar("T")


class LostServer(Record, frozen=True, kw_only=True):
    """A server whose trial has no outcome: servetune was killed while it ran."""

    trial: int
    keeper_pid: int
    keeper_start: int
    engine_pid: int | None
    engine_start: int | None


class StoredTrial(Record, frozen=True, kw_only=True):
    """A trial with the digests that say what it is comparable with."""

    trial: Trial
    fits: str
    run_fits: tuple[str, ...]
    """One for each of trial.runs."""


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _decode(text: str, kind: type[T]) -> T:
    return msgspec.json.decode(text, type=kind)


class Store:
    """The store of one study folder. Use as a context manager, or call close()."""

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        self.folder = folder
        self._connection = connection

    @classmethod
    def open(cls, folder: Path) -> Store:
        """Open the store in `folder`, creating both as needed.

        Raises:
            StoreError: no permission, disk full, not a database, or written by a newer servetune.
        """
        try:
            for part in (folder, folder / "runs", folder / "logs"):
                part.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise files.explain_os_error(error, folder) from error
        path = folder / "study.sqlite"
        try:
            connection = sqlite3.connect(path, isolation_level=None, timeout=10)
            mode = "DELETE" if files.is_on_network(folder) else "WAL"
            connection.execute(f"PRAGMA journal_mode={mode}")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA foreign_keys=ON")
            _migrate(connection, path)
        except sqlite3.Error as error:
            raise _explain(error, path) from error
        return cls(folder, connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database; the store cannot be used afterwards."""
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise _explain(error, self.folder / "study.sqlite") from error

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise _explain(error, self.folder / "study.sqlite") from error

    def journal_mode(self) -> str:
        """SQLite's journal mode in use: "wal", or "delete" on a network file system."""
        return str(self._rows("PRAGMA journal_mode")[0][0])

    # ----------------------------------------------------------------------- facts of the study

    def set_meta(self, key: str, value: object) -> None:
        """Store one record of the study as a whole (host facts, engines found)."""
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, _encode(value)))

    def meta(self, key: str, kind: type[T]) -> T | None:
        """The record stored under `key`, or None."""
        rows = self._rows("SELECT value FROM meta WHERE key = ?", (key,))
        return _decode(rows[0][0], kind) if rows else None

    # ----------------------------------------------------------------------- trials

    def next_number(self) -> int:
        """The number of the next trial, from 1."""
        return int(self._rows("SELECT coalesce(max(number), 0) + 1 FROM trial")[0][0])

    def begin_trial(self, trial: Trial, fits: str) -> None:
        """Note that `trial` begins; its outcome is not stored yet."""
        row = (
            trial.number,
            fits,
            _encode(trial.measurement),
            _encode(trial.command),
            trial.engine_version,
            trial.started_at,
            0.0,
            trial.log_file,
        )
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO trial (number, fits, measurement, command, engine_version, started_at, wall_s, log_file)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )

    def set_server(self, server: LostServer) -> None:
        """Store who must be stopped if servetune is killed now."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE trial SET keeper_pid = ?, keeper_start = ?, engine_pid = ?, engine_start = ? WHERE number = ?",
                (server.keeper_pid, server.keeper_start, server.engine_pid, server.engine_start, server.trial),
            )

    def set_command(self, number: int, command: Command) -> None:
        """Store the exact command of a trial that has begun (its port is known only then)."""
        with self._transaction() as connection:
            connection.execute("UPDATE trial SET command = ? WHERE number = ?", (_encode(command), number))

    def add_run(self, number: int, run: Run, fits: str, wall_s: float) -> None:
        """Store a finished run. Its raw records must have been published before."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO run SELECT ?, coalesce(max(position), -1) + 1, ?, ? FROM run WHERE trial = ?",
                (number, fits, _encode(run), number),
            )
            connection.execute("UPDATE trial SET wall_s = ? WHERE number = ?", (wall_s, number))

    def finish_trial(self, trial: Trial) -> None:
        """Store the outcome of a trial; its runs are stored already."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE trial SET outcome = ?, start_s = ?, wall_s = ?, peak_rss_mib = ?,"
                " keeper_pid = NULL, engine_pid = NULL WHERE number = ?",
                (_encode(trial.outcome), trial.start_s, trial.wall_s, trial.peak_rss_mib, trial.number),
            )

    def lost_servers(self) -> list[LostServer]:
        """Servers of trials that have no outcome and whose pids were stored."""
        rows = self._rows(
            "SELECT number, keeper_pid, keeper_start, engine_pid, engine_start FROM trial"
            " WHERE outcome IS NULL AND keeper_pid IS NOT NULL"
        )
        return [
            LostServer(trial=row[0], keeper_pid=row[1], keeper_start=row[2], engine_pid=row[3], engine_start=row[4])
            for row in rows
        ]

    def recover(self) -> None:
        """Settle trials that were lost when servetune was killed.

        A lost trial with finished runs counts as completed for these runs; one without is forgotten. Record files
        that no row names are removed, since their run never ended.
        """
        with self._transaction() as connection:
            connection.execute(
                "DELETE FROM trial WHERE outcome IS NULL AND number NOT IN (SELECT trial FROM run)",
            )
            connection.execute(
                "UPDATE trial SET outcome = ?, keeper_pid = NULL, engine_pid = NULL WHERE outcome IS NULL",
                (_encode(Completed()),),
            )
        known = {_decode(row[0], Run).records_file for row in self._rows("SELECT record FROM run")}
        for path in (self.folder / "runs").iterdir():
            if f"runs/{path.name}" not in known:
                path.unlink(missing_ok=True)

    def trials(self) -> list[StoredTrial]:
        """All trials that have an outcome, by number, with their runs."""
        runs: dict[int, list[tuple[Run, str]]] = {}
        for number, record, fits in self._rows("SELECT trial, record, fits FROM run ORDER BY trial, position"):
            runs.setdefault(number, []).append((_decode(record, Run), fits))
        rows = self._rows(
            "SELECT number, fits, measurement, command, engine_version, started_at, outcome, start_s, wall_s,"
            " peak_rss_mib, log_file FROM trial WHERE outcome IS NOT NULL ORDER BY number"
        )
        return [_stored_trial(row, runs.get(row[0], [])) for row in rows]

    def forget_failures(self) -> None:
        """Forget failed trials so that they are tried again; one with finished runs counts as completed for these."""
        with self._transaction() as connection:
            connection.execute(
                "DELETE FROM trial WHERE json_extract(outcome, '$.type') = 'failed'"
                " AND number NOT IN (SELECT trial FROM run)"
            )
            connection.execute(
                "UPDATE trial SET outcome = ? WHERE json_extract(outcome, '$.type') = 'failed'",
                (_encode(Completed()),),
            )

    def drop_running(self, number: int) -> None:
        """Forget an interrupted trial that finished no run, and settle one that did."""
        with self._transaction() as connection:
            connection.execute(
                "DELETE FROM trial WHERE number = ? AND number NOT IN (SELECT trial FROM run)", (number,)
            )
            connection.execute(
                "UPDATE trial SET outcome = ?, keeper_pid = NULL, engine_pid = NULL WHERE number = ?",
                (_encode(Completed()), number),
            )


def _stored_trial(row: tuple[Any, ...], runs: list[tuple[Run, str]]) -> StoredTrial:
    outcome: Completed | Failed = msgspec.json.decode(row[6], type=Completed | Failed)
    trial = Trial(
        number=row[0],
        measurement=_decode(row[2], Measurement),
        outcome=outcome,
        runs=tuple(run for run, _ in runs),
        command=_decode(row[3], Command),
        engine_version=row[4],
        started_at=row[5],
        start_s=row[7],
        wall_s=row[8],
        peak_rss_mib=row[9],
        log_file=row[10],
    )
    return StoredTrial(trial=trial, fits=row[1], run_fits=tuple(fits for _, fits in runs))


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the database to the newest schema; PRAGMA user_version counts the migrations that were applied."""
    folder = resources.files("servetune.store") / "migrations"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(names):
        raise StoreError(f"{path}: written by a newer servetune (schema {version}); update servetune to read it")
    for number, name in enumerate(names[version:], version + 1):
        script = (folder / name).read_text(encoding="utf-8")
        connection.executescript(f"BEGIN IMMEDIATE;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;")


def _explain(error: sqlite3.Error, path: Path) -> StoreError:
    text = str(error)
    if "full" in text:
        return StoreError(f"{path}: {text} (free some space and start the same command again, finished runs are kept)")
    if "I/O" in text:
        return StoreError(f"{path}: {text} (the disk may be full or damaged: free some space and try again)")
    if "locked" in text:
        return StoreError(f"{path}: {text} (another servetune is writing this study; wait for it or stop it)")
    if "not a database" in text or "malformed" in text:
        return StoreError(f"{path}: {text} (the file is damaged; move the study folder away and start again)")
    return StoreError(f"{path}: {text} (check that you may write this folder, or choose another with --out DIR)")
