"""Reads the text block that `vllm bench serve` and its relatives print. Pure: text in, values out.

Takes the forms of vLLM from 0.11 on, SGLang's with its own lines and old typing errors, and ours. Other lines are kept
as they are, so that nothing is lost without a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from servetune.records import Record

_TITLE = re.compile(r"^=+ *Serving Benchmark Result *=+$", re.IGNORECASE)
_LATENCY = re.compile(
    r"^(mean|median|std|max|p[\d.]+) (ttft|tpot|itl|e2e|e2el|e2e latency|ttfot|icl|schedule e2el) \(ms\)$"
)
_RULE = "====="
_FIELDS = {
    "successful requests": "completed",
    "failed requests": "failed",
    "definitions": "definitions",
    "maximum request concurrency": "max_concurrency",
    "max request concurrency": "max_concurrency",
    "max reqeuest concurrency": "max_concurrency",
    "request rate configured (rps)": "request_rate",
    "traffic request rate": "request_rate",
    "benchmark duration (s)": "duration_s",
    "total input tokens": "total_input_tokens",
    "total generated tokens": "total_output_tokens",
    "request throughput (req/s)": "request_throughput",
    "request goodput (req/s)": "request_goodput",
    "output token throughput (tok/s)": "output_throughput",
    "peak output token throughput (tok/s)": "peak_output_throughput",
    "peak concurrent requests": "peak_concurrency",
    "total token throughput (tok/s)": "total_token_throughput",
}
_COUNTS = {"completed", "failed", "max_concurrency", "total_input_tokens", "total_output_tokens"}
_HALF_DIGIT = 0.005
"""Largest rounding error of a figure printed with two decimals."""


class ParsedBlock(Record, frozen=True, kw_only=True):
    """The figures of one block, as printed; None where a line is missing."""

    completed: int | None = None
    failed: int | None = None
    definitions: str | None = None
    max_concurrency: int | None = None
    request_rate: float | None = None
    duration_s: float | None = None
    total_input_tokens: int | None = None
    total_output_tokens: int | None = None
    request_throughput: float | None = None
    request_goodput: float | None = None
    output_throughput: float | None = None
    peak_output_throughput: float | None = None
    peak_concurrency: float | None = None
    total_token_throughput: float | None = None
    latency_ms: Mapping[str, Mapping[str, float]] = msgspec.field(default_factory=dict)
    """ttft, tpot, itl, e2el, ... -> mean, median, p99, ... -> value."""
    other: tuple[str, ...] = ()
    """Lines that are not understood."""


def parse_block(text: str) -> ParsedBlock | None:
    """Return the first block of `text`, or None if there is none."""
    return next(_blocks(text), None)


def parse_blocks(text: str) -> list[ParsedBlock]:
    """Return every block of `text`, in order."""
    return list(_blocks(text))


def broken_identities(block: ParsedBlock) -> list[str]:
    """Return the sums that do not hold in `block`, in words; figures that are missing are not judged.

    Each rate must be its count divided by the duration, allowing for the two decimals with which both are printed.
    """
    counts = {
        "request throughput": (block.completed, block.request_throughput),
        "output token throughput": (block.total_output_tokens, block.output_throughput),
        "total token throughput": (_total(block), block.total_token_throughput),
    }
    return [
        f"{name}: {rate:.2f} is printed, {count} / {block.duration_s:.2f} s is {count / block.duration_s:.2f}"
        for name, (count, rate) in counts.items()
        if count is not None and rate is not None and block.duration_s and not _agree(count, rate, block.duration_s)
    ]


def _total(block: ParsedBlock) -> int | None:
    if block.total_input_tokens is None or block.total_output_tokens is None:
        return None
    return block.total_input_tokens + block.total_output_tokens


def _agree(count: int, rate: float, duration_s: float) -> bool:
    longest, shortest = duration_s + _HALF_DIGIT, max(duration_s - _HALF_DIGIT, 1e-9)
    slack = _HALF_DIGIT + 1e-9
    return count / longest - slack <= rate <= count / shortest + slack


def _blocks(text: str) -> Iterator[ParsedBlock]:
    lines: list[str] | None = None
    for raw in text.splitlines():
        line = " ".join(raw.split())
        if _TITLE.match(line):
            if lines is not None:
                yield _read(lines)
            lines = []
        elif lines is not None and line.startswith(_RULE):
            yield _read(lines)
            lines = None
        elif lines is not None:
            lines.append(line)
    if lines is not None:
        yield _read(lines)


def _read(lines: list[str]) -> ParsedBlock:
    fields: dict[str, int | float | str] = {}
    latency: dict[str, dict[str, float]] = {}
    other = []
    for line in lines:
        label, colon, figure = line.partition(":")
        label, figure = label.strip().casefold(), figure.strip()
        field, statistic = _FIELDS.get(label), _LATENCY.match(label)
        number = _number(figure)
        if field == "definitions":
            fields[field] = figure
        elif field is not None and number is not None:
            fields[field] = round(number) if field in _COUNTS else number
        elif statistic is not None and number is not None:
            key = "e2el" if statistic[2].startswith("e2e") else statistic[2].replace(" ", "_")
            latency.setdefault(key, {})[statistic[1]] = number
        elif colon:
            other.append(line)
    return ParsedBlock(**fields, latency_ms=latency, other=tuple(other))  # type: ignore[arg-type]


def _number(figure: str) -> float | None:
    try:
        number = float(figure)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None
