"""Figures of one run, and what a reader must know about it."""

from __future__ import annotations

from typing import Literal

from servetune.records.raw import RequestErrorKind
from servetune.records.value import Record


class Distribution(Record, frozen=True, kw_only=True):
    """Statistics of one latency in ms, with the number of values they rest on (numpy's linear percentiles)."""

    count: int
    mean: float
    median: float
    std: float
    min: float
    max: float
    p90: float
    p95: float
    p99: float
    percentiles: dict[str, float] = {}
    """Further percentiles that were asked for: "99.9" -> ms."""


class Summary(Record, frozen=True, kw_only=True):
    """Figures of one run under one named set of definitions."""

    definitions: str
    completed: int
    failed: int
    duration_s: float
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    """Requests/s."""
    output_throughput: float
    """Output tokens/s."""
    total_token_throughput: float
    """Input and output tokens/s."""
    peak_output_throughput: float | None
    """Largest output tokens in one second (by chunks in the vllm profiles)."""
    peak_concurrency: int | None
    latency: dict[str, Distribution]
    """Keys: ttft, tpot, itl, e2el; strict adds ttfot (first visible token), icl (gap between chunks),
    schedule_e2el (from the scheduled time). A key without any value is absent."""
    token_source: Literal["usage", "requested", "chunks", "none"]
    """Where output token counts come from."""
    errors: dict[str, int] = {}
    """Failed requests by kind."""
    goodput: float | None = None
    """Requests/s that met all limits asked for (`servetune bench --goodput`); None: no limit was asked for."""

    @property
    def success_rate(self) -> float | None:
        """Completed / all requests; None without requests."""
        total = self.completed + self.failed
        return self.completed / total if total else None


class Fault(Record, frozen=True, kw_only=True):
    """Requests of one run that failed in the same way."""

    kind: RequestErrorKind
    count: int
    first: str
    """What was said about the first of them."""


class Finding(Record, frozen=True, kw_only=True):
    """Something a reader must know about a measurement or a conclusion; `docs/findings/CODE.md` explains it."""

    code: str
    severity: Literal["note", "warning", "bars"]
    """bars: the config cannot win with it."""
    evidence: str
    advice: str = ""
