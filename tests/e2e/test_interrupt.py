"""Ctrl-C, SIGTERM and SIGHUP stop a study at once, keep what is measured, and leave a report."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from servetune.records import Trial
from servetune.study import load_results
from tests.e2e.mock_studies import Call, mock_study, write_study

STOPS_WITHIN_S = 10.0
"""Generous for a busy machine; about one second on a quiet one."""


def _wait_for_trials(call: Call, count: int) -> None:
    end = time.monotonic() + 60
    while f"trial {count}:" not in call.text():
        assert time.monotonic() < end, call.text()
        assert call.process.poll() is None, call.text()
        time.sleep(0.05)


def _stop(call: Call, number: signal.Signals, folder: Path) -> tuple[Trial, ...]:
    """Send the signal after two trials and check that it stops cleanly; return the trials that are kept."""
    _wait_for_trials(call, 2)
    begin = time.monotonic()
    os.kill(call.process.pid, number)
    assert call.wait(STOPS_WITHIN_S) == 130, call.text()
    assert time.monotonic() - begin < STOPS_WITHIN_S
    assert call.processes() == []
    assert number.name in call.text()
    assert (folder / "report.html").is_file()
    results = load_results(folder)
    assert len(results.trials) >= 2
    assert not results.conclusion.finished
    return results.trials


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """Exit code 130, no process left, a report of what is there."""
    folder = tmp_path / "out"
    call = Call(["tune", str(write_study(tmp_path, mock_study())), "--out", str(folder)], tmp_path)

    assert _stop(call, number, folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study file and its study in `out`, interrupted by Ctrl-C and finished by the same command."""
    tmp_path = tmp_path_factory.mktemp("finished")
    folder = tmp_path / "out"
    arguments = ["tune", str(write_study(tmp_path, mock_study())), "--out", str(folder)]
    kept = _stop(Call(arguments, tmp_path), signal.SIGINT, folder)
    again = Call(arguments, tmp_path)
    assert again.wait() == 0, again.text()
    assert load_results(folder).trials[: len(kept)] == kept, "a finished run was repeated or lost"
    return tmp_path


def test_a_study_that_was_interrupted_is_finished_by_the_same_command(finished: Path) -> None:
    """Ctrl-C stops cleanly; the second start goes on from what is there to a conclusion."""
    assert load_results(finished / "out").conclusion.finished


def test_a_second_study_on_the_same_host_is_refused(tmp_path: Path) -> None:
    """Two studies would spoil each other: the second ends with exit code 3 and names the first."""
    first = Call(["tune", str(write_study(tmp_path, mock_study())), "--out", str(tmp_path / "a")], tmp_path)
    _wait_for_trials(first, 1)

    second = Call(["tune", str(tmp_path / "study.toml"), "--out", str(tmp_path / "b")], tmp_path)

    assert second.wait() == 3, second.text()
    assert "another servetune is measuring" in second.text()
    os.kill(first.process.pid, signal.SIGTERM)
    first.wait()


def test_a_finished_study_repeats_nothing(finished: Path) -> None:
    """The same command again starts no engine and writes the same conclusion."""
    folder = finished / "out"
    before = load_results(folder)

    again = Call(["tune", str(finished / "study.toml"), "--out", str(folder)], finished)

    assert again.wait() == 0, again.text()
    assert "trial" not in again.text()
    after = load_results(folder)
    assert (after.trials, after.steps, after.conclusion) == (before.trials, before.steps, before.conclusion)


def test_a_changed_study_says_what_it_dropped(finished: Path, tmp_path: Path) -> None:
    """A workload that changed is measured anew; the message says how many runs no longer fit."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    study = tmp_path / "study.toml"
    study.write_text(study.read_text().replace("num_prompts = 8", "num_prompts = 10"))

    again = Call(["tune", str(study), "--out", str(tmp_path / "out")], tmp_path)

    assert again.wait() == 0, again.text()
    assert "not used again" in again.text()
    assert "runs of workload brief, which was changed or removed" in again.text()
