"""A kill -9 at any moment leaves no process, loses at most the run in flight, and a second start finishes the study."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from servetune.store import Store
from servetune.study import load_results
from tests.e2e.mock_studies import Call, mock_study, write_study

QUICK = [("published", 2, 0.0)]
"""(point, how often it is reached before the kill, delay in s); see tests/e2e/killing.py."""

ALL = [
    *[("launch", count, delay) for count, delay in ((1, 0.0), (1, 0.03), (2, 0.1), (3, 0.0), (4, 0.05))],
    *[("ready", count, delay) for count, delay in ((1, 0.0), (2, 0.05), (3, 0.15), (4, 0.1))],
    *[("load", count, delay) for count, delay in ((1, 0.0), (1, 0.15), (2, 0.3), (3, 0.4), (4, 0.25), (4, 0.6))],
    *[("published", count, 0.0) for count in (1, 2, 4)],
    *[("renamed", count, 0.0) for count in (1, 3)],
    *[("commit", count, 0.0) for count in (3, 6, 12)],
    *[("writing", count, 0.0) for count in (1, 3)],
    *[("validate", count, delay) for count, delay in ((1, 0.0), (2, 0.1), (3, 0.1), (4, 0.3), (5, 0.6))],
]


def _runs(folder: Path) -> list[tuple[str, str, int, int]]:
    """(step, config, block, repeat by workload) of every stored run."""
    with Store.open(folder) as store:
        return [
            (entry.trial.measurement.step, repr(entry.trial.config), entry.trial.measurement.block, hash(run.workload))
            for entry in store.trials()
            for run in entry.trial.runs
        ]


def _kill_and_resume(tmp_path: Path, point: str, count: int, delay_s: float) -> float:
    """Kill a study at the point, wait until all is gone, finish it; return how long the processes lived on."""
    study = write_study(tmp_path, mock_study())
    folder = tmp_path / "out"
    arguments = ["tune", str(study), "--out", str(folder)]
    killed = Call([point, str(count), str(delay_s), "--", *arguments], tmp_path, module="tests.e2e.killing")
    assert killed.wait() == -9, f"the point {point} was not reached:\n{killed.text()}"
    gone_s = killed.wait_until_gone(15.0)
    before = _runs(folder) if (folder / "study.sqlite").is_file() else []

    again = Call(arguments, tmp_path)

    assert again.wait() == 0, again.text()
    after = _runs(folder)
    assert after[: len(before)] == before, "a stored run was lost"
    assert max(Counter(after).values()) == 1, "a finished run was repeated"
    assert load_results(folder).conclusion.finished
    assert (folder / "report.html").is_file()
    assert again.processes() == []
    return gone_s


@pytest.mark.parametrize(("point", "count", "delay_s"), QUICK)
def test_a_kill_leaves_nothing_and_the_study_goes_on(tmp_path: Path, point: str, count: int, delay_s: float) -> None:
    """Between load and rename; thirty moments are in the slow tests."""
    _kill_and_resume(tmp_path, point, count, delay_s)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "count", "delay_s"), ALL)
def test_a_kill_at_thirty_moments(tmp_path: Path, point: str, count: int, delay_s: float) -> None:
    """Thirty moments spread over launch, warm-up, load, writes, renames, commits and validation."""
    gone_s = _kill_and_resume(tmp_path, point, count, delay_s)
    print(f"{point} {count} {delay_s}: nothing left after {gone_s:.2f} s")
