"""Holds what `servetune bench` reports against what really happened on the wire, at 64 concurrent streams.

`python bench/client_accuracy.py [--instrument DIR]`. The truth comes from the mock engine's own log (times of arrival
and of each write) and, where DIR (or $SERVETUNE_INSTRUMENT) holds sse_server.cpp and g++ is there, from that program,
which is built first. Exit code 1 if a latency is off by more than 0.5 ms or the throughput by more than 0.5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from servetune.engines.process import free_port
from servetune.http1 import NoAnswer, get
from servetune.metrics import distribution
from servetune.records import Distribution

STREAMS = 64
REQUESTS = 256
LATENCY_BOUND_MS = 0.5
THROUGHPUT_BOUND = 0.005
STATISTICS = ("mean", "median", "p99")
_NS_PER_MS = 1e6
_NS_PER_S = 1e9
_MARK = b"SSETRUE1"
_FINISHED = 2


class Answer(NamedTuple):
    """What one server saw of one request, in ns."""

    arrival_ns: int
    writes_ns: Sequence[int]


class Row(NamedTuple):
    """One figure of one source of truth."""

    source: str
    figure: str
    true: float
    error: float
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the error is within the bound."""
        return abs(self.error) <= self.bound


def truth_of_mock(path: Path) -> list[Answer]:
    """Read the mock engine's log of finished requests."""
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return [Answer(entry["arrival_ns"], entry["writes_ns"]) for entry in entries if entry["done_ns"] is not None]


def truth_of_instrument(path: Path) -> list[Answer]:
    """Read the instrument's binary file: after a mark and a clock offset, eight numbers and the send times of each."""
    data = path.read_bytes()
    assert data.startswith(_MARK), path
    numbers = np.frombuffer(data, "<i8", offset=16)
    answers = []
    at = 0
    while at < len(numbers):
        head = numbers[at : at + 8].tolist()
        writes = numbers[at + 8 : at + 8 + head[7]].tolist()
        at += 8 + head[7]
        if (head[6] >> 32) & _FINISHED:
            answers.append(Answer(head[2], writes))
    return answers


def true_figures(answers: Sequence[Answer]) -> tuple[dict[str, Distribution], float]:
    """TTFT, TPOT and ITL in ms, and output tokens/s, as an exact client would report them."""
    latencies = {
        "ttft": [(answer.writes_ns[0] - answer.arrival_ns) / _NS_PER_MS for answer in answers],
        "tpot": [
            (answer.writes_ns[-1] - answer.writes_ns[0]) / _NS_PER_MS / (len(answer.writes_ns) - 1)
            for answer in answers
            if len(answer.writes_ns) > 1
        ],
        "itl": [(later - earlier) / _NS_PER_MS for answer in answers for earlier, later in pairwise(answer.writes_ns)],
    }
    first = min(answer.arrival_ns for answer in answers)
    last = max(answer.writes_ns[-1] for answer in answers)
    tokens = sum(len(answer.writes_ns) for answer in answers)
    return {name: distribution(values) for name, values in latencies.items()}, tokens / (last - first) * _NS_PER_S


def rows(source: str, reported: dict[str, Any], answers: Sequence[Answer]) -> list[Row]:
    """Compare every figure."""
    latencies, throughput = true_figures(answers)
    compared = [
        Row(
            source,
            f"{statistic} {name} ms",
            getattr(true, statistic),
            reported["latency"][name][statistic] - getattr(true, statistic),
            LATENCY_BOUND_MS,
        )
        for name, true in latencies.items()
        for statistic in STATISTICS
    ]
    error = reported["output_throughput"] - throughput
    return [*compared, Row(source, "output tokens/s", throughput, error, THROUGHPUT_BOUND * throughput)]


@contextmanager
def running(argv: Sequence[str], port: int) -> Iterator[None]:
    """Run a server until it answers, and stop it in the end so that its truth is on the disk."""
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 20
        while isinstance(get(f"http://127.0.0.1:{port}/v1/models", timeout_s=1.0), NoAnswer):
            assert server.poll() is None, f"{argv[0]} ended with exit code {server.returncode}"
            assert time.monotonic() < until, f"{argv[0]} does not answer"
            time.sleep(0.05)
        yield
    finally:
        server.terminate()
        server.wait(20)


def bench(port: int, lock: Path) -> dict[str, Any]:
    """Run `servetune bench` and return the summary that it reports."""
    argv = [
        *(sys.executable, "-m", "servetune.cli.main", "bench", "--json", "--no-progress"),
        *("--base-url", f"http://127.0.0.1:{port}", "--dataset-name", "chat", "--num-warmups", "0"),
        *("--num-prompts", str(REQUESTS), "--max-concurrency", str(STREAMS)),
    ]
    env = {**os.environ, "SERVETUNE_LOCK": str(lock)}
    ended = subprocess.run(argv, stdout=subprocess.PIPE, check=True, env=env, timeout=600)
    result: dict[str, Any] = json.loads(ended.stdout)
    assert result["summary"]["completed"] == REQUESTS, result["summary"]["errors"]
    return result["summary"]  # type: ignore[no-any-return]


def against_mock(folder: Path) -> list[Row]:
    """Compare with the mock engine's log."""
    port, truth = free_port(), folder / "mock.jsonl"
    argv = [sys.executable, "-m", "servetune.engines.mock_server", "--port", str(port), "--truth", str(truth)]
    with running(argv, port):
        reported = bench(port, folder / "lock")
    return rows("mock", reported, truth_of_mock(truth))


def against_instrument(folder: Path, source: Path) -> list[Row]:
    """Build the instrument and compare with its truth."""
    program, port, truth = folder / "sse_server", free_port(), folder / "truth.bin"
    subprocess.run(
        ["g++", "-O2", "-march=native", "-std=c++17", "-o", str(program), str(source / "sse_server.cpp")], check=True
    )
    timing = ["--prefill-ms", "200", "--interval-ms", "20", "--role", "1"]
    with running([str(program), "--port", str(port), "--out", str(truth), *timing], port):
        reported = bench(port, folder / "lock")
    return rows("instrument", reported, truth_of_instrument(truth))


def main() -> int:
    """Compare with every truth that is at hand; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instrument", type=Path, default=os.environ.get("SERVETUNE_INSTRUMENT"))
    source = parser.parse_args().instrument
    with tempfile.TemporaryDirectory(prefix="servetune-accuracy-") as name:
        compared = against_mock(Path(name))
        if source and shutil.which("g++"):
            compared += against_instrument(Path(name), Path(source))
        else:
            print("instrument: left out (give --instrument DIR, and have g++)")
    print(f"{'truth':<12}{'figure':<20}{'true':>12}{'error':>12}{'bound':>10}")
    for row in compared:
        verdict = "" if row.holds else "  OUT OF BOUNDS"
        print(f"{row.source:<12}{row.figure:<20}{row.true:>12.3f}{row.error:>+12.4f}{row.bound:>10.3f}{verdict}")
    return 0 if all(row.holds for row in compared) else 1


if __name__ == "__main__":
    sys.exit(main())
