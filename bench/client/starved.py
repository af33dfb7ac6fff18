"""Whether servetune's load client says so when it is the limit: 20 starved runs and 20 sound ones.

`python -m bench.client.starved [--runs N]`. A starved client is held to a fraction of the processor time that it needs
(a control group's quota where one can be set, else stops and continues by signals), at three rates. Expected: the
finding client-bound in at least 19 of 20 starved runs and in at most one sound one; a starved run without it is within
1 ms of the truth. Writes bench/results/starved.json; exit code 1 if the expectation fails. About five minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from bench.client.build import build_server, train_tokenizer
from bench.client.processes import cores
from bench.client.truth import errors, measured, read_truth, true_figures

from servetune.engines.process import free_port
from servetune.http1 import NoAnswer, get

STREAMS = (100, 256, 1000)
TOKENS = 64
PREFILL_MS, INTERVAL_MS = 200, 20
FRACTIONS = (0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75)
FEWEST_STARVED, MOST_SOUND, WITHIN_MS = 19, 1, 1.0
_PERIOD_US = 100_000
_CYCLE_S = 0.1
_START_UP_S, _HELD_S = 0.6, 5.0
_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
_RESULT = Path(__file__).parents[1] / "results" / "starved.json"


class Outcome(NamedTuple):
    """One run."""

    streams: int
    share: float | None
    """Part of a core that the client was held to; None: all of it."""
    is_reported: bool
    worst_error_ms: float
    """Largest error of TTFT (mean, median, p99), TPOT mean and ITL p99."""
    evidence: str
    needed: float
    """Part of a core that it used."""


@contextmanager
def quota() -> Iterator[Path | None]:
    """Make a control group whose processor time can be limited; None where that is not possible."""
    for parent, probe in ((_V1, "cpu.cfs_quota_us"), (_V2, "cpu.max")):
        folder = parent / f"servetune-starved-{os.getpid()}"
        with suppress(OSError):
            folder.mkdir()
            if (folder / probe).exists():
                try:
                    yield folder
                finally:
                    folder.rmdir()
                return
            folder.rmdir()
    yield None


def limit(folder: Path, share: float | None) -> None:
    """Set the part of a core that the group's processes may use."""
    if (folder / "cpu.max").exists():
        allowed = "max" if share is None else str(int(share * _PERIOD_US))
        (folder / "cpu.max").write_text(f"{allowed} {_PERIOD_US}")
    else:
        (folder / "cpu.cfs_quota_us").write_text("-1" if share is None else str(max(1000, int(share * _PERIOD_US))))


def hold_back(process: subprocess.Popen[bytes], share: float) -> None:
    """Let the load worker below `process` run for a part of each tenth of a second."""
    while process.poll() is None:
        workers = [
            child.pid
            for child in psutil.Process(process.pid).children(recursive=True)
            if any("loadgen.worker" in word for word in child.cmdline())
        ]
        for number, pause_s in ((signal.SIGSTOP, _CYCLE_S * (1 - share)), (signal.SIGCONT, _CYCLE_S * share)):
            for pid in workers:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(pause_s)


def run(server: Path, tokenizer: Path, group: Path | None, streams: int, share: float | None) -> Outcome:
    """Load the truth server once."""
    server_core, client_core = cores()
    with tempfile.TemporaryDirectory(prefix="servetune-starved-") as name:
        folder, port = Path(name), free_port()
        paced = ["--prefill-ms", str(PREFILL_MS), "--interval-ms", str(INTERVAL_MS)]
        serving = subprocess.Popen(
            [*_pin(server_core), str(server), "--port", str(port), "--out", str(folder / "truth"), *paced],
            stdout=subprocess.DEVNULL,
        )
        while isinstance(get(f"http://127.0.0.1:{port}/v1/models", timeout_s=1.0), NoAnswer):
            time.sleep(0.05)
        argv = [
            *(*_pin(client_core), sys.executable, "-m", "servetune.cli.main", "bench", "--json", "--no-progress"),
            *("--base-url", f"http://127.0.0.1:{port}", "--backend", "openai", "--model", "m"),
            *("--tokenizer", str(tokenizer), "--dataset-name", "random", "--random-input-len", "64"),
            *("--random-output-len", str(TOKENS), "--num-prompts", str(2 * streams), "--num-warmups", "0"),
            *("--max-concurrency", str(streams)),
        ]
        if group is not None:
            limit(group, None)
        bench = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "SERVETUNE_LOCK": str(folder / "lock")},
            preexec_fn=None if group is None else lambda: _join(group),  # noqa: PLW1509  # this program has one thread
        )
        if group is not None and share is not None:
            # Start-up and the evaluation at the end are not what is held back.
            time.sleep(_START_UP_S)
            limit(group, share)
            time.sleep(_HELD_S)
            limit(group, None)
        elif share is not None:
            threading.Thread(target=hold_back, args=(bench, share), daemon=True).start()
        said = bench.communicate(timeout=300)[0]
        serving.terminate()
        serving.wait(20)
        return _outcome(json.loads(said), folder / "truth", streams, share)


def _pin(core: int | None) -> list[str]:
    return [] if core is None else ["taskset", "-c", str(core)]


def _join(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))


def _outcome(result: dict[str, Any], truth: Path, streams: int, share: float | None) -> Outcome:
    found = errors(
        {name: result["summary"]["latency"][name] for name in ("ttft", "tpot", "itl")},
        true_figures(measured(read_truth(truth), 2 * streams, TOKENS)),
    )
    worst = max(abs(error) for error in (*found["ttft"].values(), found["tpot"]["mean"], found["itl"]["p99"]))
    bound = [finding for finding in result["findings"] if finding["code"] == "client-bound"]
    return Outcome(
        streams=streams,
        share=share,
        is_reported=bool(bound),
        worst_error_ms=worst,
        evidence=bound[0]["evidence"] if bound else "",
        needed=result["client"]["cpu_share"],
    )


def main() -> int:
    """Run everything; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="of each sort")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="servetune-starved-") as name, quota() as group:
        server, tokenizer = build_server(Path(name)), train_tokenizer(Path(name) / "tokenizer")
        sound = [_told(run(server, tokenizer, group, STREAMS[turn % 3], None)) for turn in range(runs)]
        need = {
            streams: min(outcome.needed for outcome in sound if outcome.streams == streams)
            for streams in STREAMS[: min(3, runs)]
        }
        starved = []
        for turn in range(runs):
            streams = STREAMS[turn % len(need)]
            share = need[streams] * FRACTIONS[turn // 3 % len(FRACTIONS)]
            starved.append(_told(run(server, tokenizer, group, streams, share)))
    reported = sum(outcome.is_reported for outcome in starved)
    false_alarms = sum(outcome.is_reported for outcome in sound)
    unsaid = [outcome for outcome in starved if not outcome.is_reported]
    holds = (
        reported >= FEWEST_STARVED / 20 * runs
        and false_alarms <= MOST_SOUND
        and all(outcome.worst_error_ms <= WITHIN_MS for outcome in unsaid)
    )
    unsaid_ms = max((each.worst_error_ms for each in unsaid), default=0.0)
    print(
        f"reported in {reported} of {runs} starved runs and {false_alarms} of {runs} sound ones; "
        f"largest error without the finding: starved {unsaid_ms:.3f} ms, "
        f"sound {max(each.worst_error_ms for each in sound if not each.is_reported):.3f} ms"
    )
    _RESULT.parent.mkdir(exist_ok=True)
    result = {"sound": [each._asdict() for each in sound], "starved": [each._asdict() for each in starved]}
    _RESULT.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if holds else 1


def _told(outcome: Outcome) -> Outcome:
    held = "all of a core" if outcome.share is None else f"{outcome.share:.1%} of a core"
    verdict = f"client-bound ({outcome.evidence})" if outcome.is_reported else "no finding"
    print(f"{outcome.streams:>5} streams, {held}: error {outcome.worst_error_ms:.3f} ms, {verdict}", flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
