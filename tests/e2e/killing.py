"""Run `servetune tune` and die by SIGKILL at one exact point, to see what a kill -9 leaves behind.

Called as `python -m tests.e2e.killing POINT COUNT DELAY_S -- tune ARGUMENTS`: the process kills itself DELAY_S after it
reached POINT for the COUNT-th time. Points: launch, ready, load and stop (stages of a trial), validate (a stage of a
validation trial), published (raw records fsynced, not yet renamed), renamed (renamed, the index row not written),
commit (inside an SQLite transaction, right before COMMIT), writing (a report or study file half written).
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from servetune import trial
from servetune.cli.main import main


class Killer:
    """Counts how often a point is reached and kills this process at the wanted one."""

    def __init__(self, point: str, count: int, delay_s: float) -> None:
        self.point = point
        self.left = count
        self.delay_s = delay_s

    def reached(self, point: str) -> None:
        """Kill, now or after the delay, if this is the wanted point and time."""
        if point != self.point:
            return
        self.left -= 1
        if self.left == 0:
            if self.delay_s == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Thread(target=self._later, daemon=True).start()

    def _later(self) -> None:
        time.sleep(self.delay_s)
        os.kill(os.getpid(), signal.SIGKILL)


def watch_stages(killer: Killer) -> None:
    """Tell the killer each stage of each trial."""
    original = trial._TrialRun._stage

    def watched(self: trial._TrialRun, stage: str, detail: str = "") -> None:
        killer.reached("validate" if self.measurement.step == "validate" else stage)
        original(self, stage, detail)

    trial._TrialRun._stage = watched  # type: ignore[method-assign]


def watch_files(killer: Killer) -> None:
    """Tell the killer each step of a durable write."""
    replace, write_bytes = Path.replace, Path.write_bytes

    def watched_replace(self: Path, target: Any) -> Path:
        killer.reached("published")
        moved = replace(self, target)
        killer.reached("renamed")
        return moved

    def watched_write(self: Path, data: Any) -> int:
        if killer.point == "writing" and self.name.endswith(".part"):
            write_bytes(self, data[: len(data) // 2])
            killer.reached("writing")
        return write_bytes(self, data)

    Path.replace = watched_replace  # type: ignore[method-assign, assignment]
    Path.write_bytes = watched_write  # type: ignore[method-assign]


def watch_commits(killer: Killer) -> None:
    """Tell the killer each COMMIT before SQLite executes it."""
    connect = sqlite3.connect

    def watched(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(lambda text: killer.reached("commit") if text == "COMMIT" else None)
        return connection

    sqlite3.connect = watched  # type: ignore[assignment]


def run(arguments: list[str], starter: Callable[[], None] = main) -> None:
    """Set the traps and run servetune with the arguments behind `--`."""
    point, count, delay_s = arguments[0], int(arguments[1]), float(arguments[2])
    killer = Killer(point, count, delay_s)
    watch_stages(killer)
    watch_files(killer)
    watch_commits(killer)
    sys.argv = ["servetune", *arguments[4:]]
    starter()


if __name__ == "__main__":
    run(sys.argv[1:])
