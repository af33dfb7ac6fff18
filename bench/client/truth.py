"""Reads what the truth server saw, and gives the figures that an exact client would report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

LATENCIES = ("ttft", "tpot", "itl")
STATISTICS = ("mean", "median", "p99")
_MARK = b"SSETRUE1"
_HEAD = 8
_FINISHED = 2
_NS_PER_MS = 1e6
_NS_PER_S = 1e9

Figures = dict[str, dict[str, float]]
"""Of each latency, in ms: mean, median, p99."""


class Answer(NamedTuple):
    """One request as the server saw it; times are ns of CLOCK_MONOTONIC."""

    arrived_ns: int
    """When the request reached the kernel."""
    wanted: int
    is_finished: bool
    writes_ns: npt.NDArray[np.int64]
    """When each token was written."""


class Window(NamedTuple):
    """The time in which the measured requests were answered."""

    begin_ns: int
    """Arrival of the first one."""
    end_ns: int
    """Last write of a token."""
    chunks: int
    chunks_per_s: float
    """Of a closed loop of three waves or more: while all slots are busy, so without its start and its end."""


def read_truth(path: Path) -> list[Answer]:
    """Read the server's file: a mark, a clock offset, then of each request eight numbers and its times."""
    data = path.read_bytes()
    if not data.startswith(_MARK):
        raise ValueError(f"{path.name} is not a truth server's file")
    numbers = np.frombuffer(data, "<i8", offset=len(_MARK) + 8)
    answers = []
    at = 0
    while at < len(numbers):
        _, _, arrived_ns, _, _, counts, flags, length = (int(number) for number in numbers[at : at + _HEAD])
        times = numbers[at + _HEAD : at + _HEAD + length]
        answers.append(Answer(arrived_ns, counts & 0xFFFFFFFF, bool((flags >> 32) & _FINISHED), times))
        at += _HEAD + length
    return answers


def measured(answers: Sequence[Answer], requests: int, tokens: int) -> list[Answer]:
    """Return the last `requests` finished answers of `tokens` tokens: test and warm-up requests come before them."""
    fitting = [answer for answer in answers if answer.is_finished and answer.wanted == tokens]
    return sorted(fitting, key=lambda answer: answer.arrived_ns)[-requests:]


def true_figures(answers: Sequence[Answer]) -> Figures:
    """Return TTFT, TPOT and ITL."""
    longer = [answer for answer in answers if len(answer.writes_ns) > 1]
    values = {
        "ttft": np.array([answer.writes_ns[0] - answer.arrived_ns for answer in answers]),
        "tpot": np.array(
            [(answer.writes_ns[-1] - answer.writes_ns[0]) / (len(answer.writes_ns) - 1) for answer in longer]
        ),
        "itl": np.concatenate([np.diff(answer.writes_ns) for answer in longer]) if longer else np.array([]),
    }
    return {
        name: {
            "mean": float(np.mean(latency)) / _NS_PER_MS,
            "median": float(np.median(latency)) / _NS_PER_MS,
            "p99": float(np.percentile(latency, 99)) / _NS_PER_MS,
        }
        for name, latency in values.items()
        if len(latency)
    }


def window(answers: Sequence[Answer], concurrency: int, *, is_paced: bool) -> Window:
    """Return when the answers were given and how fast; `answers` are in order of arrival."""
    begin_ns = answers[0].arrived_ns
    end_ns = max(int(answer.writes_ns[-1]) for answer in answers)
    chunks = sum(len(answer.writes_ns) for answer in answers)
    rate = chunks / max(1, end_ns - begin_ns) * _NS_PER_S
    if not is_paced and len(answers) > 2 * concurrency:
        steady_ns = answers[-1].arrived_ns - answers[concurrency].arrived_ns
        rate = (len(answers) - concurrency - 1) / steady_ns * _NS_PER_S * chunks / len(answers)
    return Window(begin_ns, end_ns, chunks, rate)


def errors(reported: Figures, true: Figures) -> Figures:
    """Return reported minus true, of what is reported."""
    return {
        latency: {
            statistic: reported[latency][statistic] - true[latency][statistic]
            for statistic in STATISTICS
            if statistic in reported[latency]
        }
        for latency in LATENCIES
        if latency in reported and latency in true
    }
