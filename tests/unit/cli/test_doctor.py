"""`servetune doctor`: the host, the cache and the engines, and what would spoil a measurement."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from servetune import cache
from servetune import engines as known
from servetune.cli import doctor as doctor_command
from servetune.cli.main import servetune
from servetune.loadgen import calibrate
from servetune.records import Finding


def run(*arguments: str) -> Result:
    """Run doctor in this process, without a terminal."""
    return CliRunner().invoke(servetune, ["doctor", *arguments])


@pytest.fixture
def cached() -> Path:
    """A file of 2 MB in the test's own cache."""
    folder = cache.cache_dir() / "models"
    folder.mkdir()
    (folder / "x.gguf").write_bytes(b"x" * 2_000_000)
    return folder / "x.gguf"


def test_doctor_tells_host_cache_and_engines(cached: Path) -> None:
    """Everything that decides whether to measure here stands on one page."""
    result = run()
    assert (result.exit_code, result.stdout) == (0, "")
    for word in (
        "processor",
        "memory",
        "load",
        "descriptors",
        f"2 MB in {cache.cache_dir()}",
        "would spoil",
        *known.ENGINES,
    ):
        assert word in result.stderr


def test_problems_come_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finding is told with what to do; without any, that is said."""
    busy = Finding(code="busy", severity="warning", evidence="load 9 on 2 cores", advice="stop other programs")
    monkeypatch.setattr("servetune.telemetry.host.problems", lambda: [busy])
    assert "warning: load 9 on 2 cores -> stop other programs\n" in run().stderr
    monkeypatch.setattr("servetune.telemetry.host.problems", list)
    assert "nothing found" in run().stderr


def test_json_holds_the_same(cached: Path) -> None:
    """A program gets host facts, limits, cache size, engines and problems."""
    found = json.loads(run("--json").stdout)
    assert found["cache"] == {"folder": str(cache.cache_dir()), "size_bytes": 2_000_000}
    assert found["host"]["cores"] >= 1
    assert found["descriptors_soft"] <= found["descriptors_hard"] or found["descriptors_hard"] == -1
    assert {state["engine"] for state in found["engines"]} == set(known.ENGINES)


def test_the_cache_is_cleared_when_that_is_sure(cached: Path) -> None:
    """--yes stands for the answer, and the freed size is told."""
    result = run("--clear-cache", "--yes")
    assert result.exit_code == 0
    assert "removed 2 MB" in result.stderr
    assert not cached.exists()


def test_without_a_terminal_nothing_is_cleared_unasked(cached: Path) -> None:
    """Where nobody can answer, the user is told to add --yes."""
    result = run("--clear-cache")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert cached.exists()


@pytest.mark.parametrize(("answer", "remains"), [("n\n", True), ("y\n", False)])
def test_on_a_terminal_the_user_is_asked(
    cached: Path, monkeypatch: pytest.MonkeyPatch, answer: str, remains: bool
) -> None:
    """No leaves everything as it is, yes removes it."""

    class Terminal:
        """Standard input that says it is a terminal."""

        def isatty(self) -> bool:
            return True

    class Sys:
        """The part of sys that doctor asks."""

        stdin = Terminal()

    monkeypatch.setattr(doctor_command, "sys", Sys)
    result = CliRunner().invoke(servetune, ["doctor", "--clear-cache"], input=answer)
    assert result.exit_code == 0
    assert "Remove 2 MB" in result.stderr
    assert cached.exists() is remains


def test_the_load_client_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a real server of this machine; here with short loads."""
    monkeypatch.setattr("servetune.loadgen.calibrate.SIZES", dict.fromkeys(calibrate.SIZES, 64))
    result = run("--client")
    assert result.exit_code == 0
    for word in ("receive times from", "adds to TTFT", "256 streams", "one a packet", "fills one core"):
        assert word in result.stderr
    rates = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) (?:chunks/s|merged)", result.stderr)]
    assert len(rates) == 4
    assert all(rate > 100 for rate in rates)
