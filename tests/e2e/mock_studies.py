"""Small studies on the mock engine, and what runs on this machine because of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import msgspec

from servetune import studyfile
from servetune.records import (
    Axis,
    Budget,
    Config,
    EngineSpec,
    Load,
    Objective,
    OptionValue,
    Study,
    Variant,
    WorkloadSpec,
)

MARK = "SERVETUNE_TEST_MARK"
"""Variable by which a test finds every process that one call of servetune led to."""


def mock_study(
    *,
    axes: tuple[Axis, ...] = (Axis(option="async_scheduling", values=(False, True)),),
    variants: tuple[Variant, ...] = (),
    options: dict[str, OptionValue] | None = None,
    repeats: int = 2,
    load: Load | None = None,
) -> Study:
    """A study whose runs take some tenths of a second each, with one clear winner: async_scheduling (about +20 %)."""
    fixed: dict[str, OptionValue] = {"speed": 2.0, "launch_noise": 0.001, "run_noise": 0.001, **(options or {})}
    short = load or Load(idle_timeout_s=5.0, total_timeout_s=30.0)
    return Study(
        name="mocked",
        model="mock-model",
        baseline=Config(
            engine="mock", variant=variants[0].name if variants else "", options=dict(sorted(fixed.items()))
        ),
        engines=(EngineSpec(name="mock", axes=axes, variants=variants, options=fixed, ready_timeout_s=20.0),),
        workloads=(
            WorkloadSpec(
                name="chat", kind="chat", num_prompts=16, params={"input_mean": 32, "output_mean": 12}, load=short
            ),
            WorkloadSpec(
                name="brief", kind="chat", num_prompts=8, params={"input_mean": 16, "output_mean": 6}, load=short
            ),
        ),
        objective=Objective(on="chat"),
        budget=Budget(seconds=300, max_repeats=repeats),
    )


def write_study(folder: Path, study: Study) -> Path:
    """Write the study file and return its path."""
    path = folder / "study.toml"
    path.write_text(studyfile.dump(study), encoding="utf-8")
    return path


def with_axis(study: Study, axis: Axis) -> Study:
    """The same study with one more axis on its only engine."""
    (engine,) = study.engines
    return msgspec.structs.replace(study, engines=(msgspec.structs.replace(engine, axes=(*engine.axes, axis)),))


class Call:
    """One call of servetune in a process of its own, with everything it starts."""

    def __init__(self, arguments: list[str], folder: Path, module: str = "servetune.cli.main") -> None:
        self.mark = uuid.uuid4().hex
        self.log = folder / f"call-{self.mark[:6]}.log"
        own = {MARK: self.mark, "PYTHONPATH": str(Path(__file__).parents[2]), "SERVETUNE_LOCK": str(folder / "lock")}
        env = {**os.environ, **own}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env
            )

    def wait(self, timeout_s: float = 120.0) -> int:
        """The exit code."""
        return self.process.wait(timeout_s)

    def text(self) -> str:
        """Everything it printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def processes(self) -> list[int]:
        """Pids of all running processes that this call led to, itself included."""
        wanted = f"{MARK}={self.mark}".encode()
        return [pid for pid in _pids() if wanted in _environment(pid)]

    def wait_until_gone(self, timeout_s: float = 15.0) -> float:
        """Seconds until no process of this call is left; raises AssertionError with the pids after the time-out."""
        begin = time.monotonic()
        while left := self.processes():
            waited = time.monotonic() - begin
            assert waited < timeout_s, f"left after {waited:.1f} s: {left}"
            time.sleep(0.05)
        return time.monotonic() - begin


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
