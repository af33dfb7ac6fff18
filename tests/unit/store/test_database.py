"""The index keeps every finished run, whatever happens to the process that wrote it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from servetune.errors import StoreError
from servetune.records import Command, Completed, Failed, HostFacts
from servetune.store import LostServer, Store
from servetune.store import files as store_files
from tests.unit.store.sample import run, trial


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store.open(tmp_path / "study")


def test_a_trial_comes_back_as_it_was_stored(store: Store) -> None:
    """Runs, outcome, command and figures of a trial survive a close and a new open."""
    done = trial(1, runs=(run("chat", 0), run("long", 0)))
    store.begin_trial(msgspec.structs.replace(done, runs=()), fits="f1")
    for made in done.runs:
        store.add_run(1, made, fits="r1", wall_s=1.5)
    store.finish_trial(done)
    store.close()

    with Store.open(store.folder) as again:
        (stored,) = again.trials()

    assert stored.trial == done
    assert stored.fits == "f1"
    assert stored.run_fits == ("r1", "r1")


def test_numbers_go_on_after_the_last_trial(store: Store) -> None:
    """The next number follows the largest one."""
    store.begin_trial(trial(1), fits="f")

    assert store.next_number() == 2


def test_a_failed_trial_keeps_its_cause(store: Store) -> None:
    """A failure is stored like any outcome."""
    failed = trial(1, outcome=Failed(stage="launch", cause="crashed", evidence="boom"))
    store.begin_trial(failed, fits="f")

    store.finish_trial(failed)

    assert store.trials()[0].trial.outcome == failed.outcome


def test_a_lost_trial_keeps_its_finished_runs_and_an_empty_one_is_forgotten(store: Store) -> None:
    """After a kill, trial 1 counts as completed for its run, trial 2 had none and goes; stray files go too."""
    store.begin_trial(trial(1), fits="f")
    store.add_run(1, run("chat", 0), fits="r", wall_s=2.0)
    store.begin_trial(trial(2), fits="f")
    kept = store.folder / run("chat", 0).records_file
    kept.write_bytes(b"x")
    (store.folder / "runs" / "0002-0.part").write_bytes(b"x")

    store.recover()

    (stored,) = store.trials()
    assert stored.trial.outcome == Completed()
    assert stored.trial.wall_s == 2.0
    assert [path.name for path in (store.folder / "runs").iterdir()] == [kept.name]


def test_servers_of_lost_trials_are_known(store: Store) -> None:
    """Pids with start times are kept until the trial has an outcome."""
    lost = LostServer(trial=1, keeper_pid=10, keeper_start=11, engine_pid=12, engine_start=13)
    store.begin_trial(trial(1), fits="f")
    store.set_server(lost)
    store.set_command(1, Command(argv=("serve",)))

    assert store.lost_servers() == [lost]

    store.finish_trial(trial(1))
    assert store.lost_servers() == []
    assert store.trials()[0].trial.command.argv == ("serve",)


def test_an_interrupted_trial_without_runs_leaves_nothing(store: Store) -> None:
    """Ctrl-C in a launch leaves no row."""
    store.begin_trial(trial(1), fits="f")

    store.drop_running(1)

    assert store.trials() == []


def test_an_interrupted_trial_with_runs_keeps_them(store: Store) -> None:
    """Ctrl-C between two runs keeps the first."""
    store.begin_trial(trial(1), fits="f")
    store.add_run(1, run("chat", 0), fits="r", wall_s=1.0)

    store.drop_running(1)

    assert len(store.trials()[0].trial.runs) == 1


def test_failures_can_be_forgotten_but_runs_stay(store: Store) -> None:
    """--retry-failed tries failed configs again and keeps what they had measured."""
    for number, runs in ((1, ()), (2, (run("chat", 0),))):
        failed = trial(number, outcome=Failed(stage="load", cause="crashed", evidence="x"), runs=runs)
        store.begin_trial(failed, fits="f")
        for made in runs:
            store.add_run(number, made, fits="r", wall_s=1.0)
        store.finish_trial(failed)

    store.forget_failures()

    (stored,) = store.trials()
    assert (stored.trial.number, stored.trial.outcome) == (2, Completed())


def test_meta_records_come_back(store: Store) -> None:
    """Facts of the whole study are stored by key; an unknown key is None."""
    host = HostFacts(hostname="h", os="o", kernel="k", cpu="c", cores=2, memory_gib=1.0, python="3.11", servetune="0")
    store.set_meta("host", host)

    assert store.meta("host", HostFacts) == host
    assert store.meta("other", HostFacts) is None


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    """Garbage in place of the index gives one message with the remedy."""
    (tmp_path / "study.sqlite").write_bytes(b"garbage" * 1000)

    with pytest.raises(StoreError, match="damaged"):
        Store.open(tmp_path)


def test_an_index_from_the_future_is_refused(store: Store) -> None:
    """A schema that this version does not know is not touched."""
    store._connection.execute("PRAGMA user_version = 99")
    store.close()

    with pytest.raises(StoreError, match="newer servetune"):
        Store.open(store.folder)


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    """A study folder that is a file gives one message."""
    (tmp_path / "study").write_text("x")

    with pytest.raises(StoreError, match="study"):
        Store.open(tmp_path / "study")


def test_wal_is_avoided_on_network_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WAL needs memory shared between processes, which network file systems do not give."""
    with Store.open(tmp_path / "local") as local:
        assert local.journal_mode() == "wal"
    monkeypatch.setattr(store_files, "is_on_network", lambda _folder: True)

    with Store.open(tmp_path / "network") as network:
        assert network.journal_mode() == "delete"


def test_a_second_writer_is_told_who_is_in_the_way(store: Store) -> None:
    """A locked index gives a message, not a traceback."""
    store._connection.execute("PRAGMA busy_timeout = 1")
    with Store.open(store.folder) as other:
        other._connection.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreError, match="another servetune"):
            store.set_meta("key", 1)


def test_a_killed_writer_loses_no_committed_run(tmp_path: Path) -> None:
    """Kill -9 right after a run was stored: the run is there."""
    script = (
        "import os, sys; sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path\n"
        "from servetune.store import Store\n"
        "from tests.unit.store.sample import run, trial\n"
        "store = Store.open(Path(sys.argv[1]))\n"
        "store.begin_trial(trial(1), fits='f'); store.add_run(1, run('chat', 0), fits='r', wall_s=1.0)\n"
        f"os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    )
    root = Path(__file__).parents[3]
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path), str(root)], check=False, env=dict(os.environ))

    assert ended.returncode == -signal.SIGKILL
    with Store.open(tmp_path) as store:
        store.recover()
        assert len(store.trials()[0].trial.runs) == 1
