"""One measurement at a time on one host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from servetune.errors import HostProblem, LockHeld
from servetune.lock import lock_path, measuring


def test_the_second_is_told_who_measures() -> None:
    """The message names the holder's pid and study."""
    with measuring("study a in x"), pytest.raises(LockHeld, match=r"pid \d+, study a in x"), measuring("study b"):
        pass


def test_the_lock_is_free_again_afterwards() -> None:
    """Leaving the block frees the lock, also after an error."""
    with pytest.raises(ZeroDivisionError), measuring("a"):
        raise ZeroDivisionError

    with measuring("b"):
        pass


def test_a_killed_holder_frees_the_lock() -> None:
    """The kernel drops the lock of a process that dies by SIGKILL."""
    script = "import os, signal\nfrom servetune.lock import measuring\nwith measuring('x'): os.kill(os.getpid(), 9)"
    ended = subprocess.run([sys.executable, "-c", script], check=False)

    assert ended.returncode == -9
    with measuring("b"):
        pass


def test_an_impossible_lock_file_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A lock file that cannot be opened names the variable that chooses another."""
    monkeypatch.setenv("SERVETUNE_LOCK", str(tmp_path))

    with pytest.raises(HostProblem, match="SERVETUNE_LOCK"), measuring("a"):
        pass


def test_the_lock_is_in_the_temporary_folder_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """All users of a host share one lock."""
    monkeypatch.delenv("SERVETUNE_LOCK")

    assert lock_path().name == "servetune-measure.lock"
