"""A run's figures in the text form that `vllm bench serve` prints. Pure.

Readers of published benchmarks know this form, and `interop/vllm_text.py` reads it back.
"""

from __future__ import annotations

from collections.abc import Sequence

from servetune import metrics
from servetune.records import Distribution, Load, Summary

_WIDTH = 50
_LABEL = 40
_SECTIONS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
    "ttfot": ("TTFOT", "Time to First Visible Token"),
    "icl": ("ICL", "Inter-chunk Latency"),
    "schedule_e2el": ("Schedule E2EL", "End-to-end Latency from the Schedule"),
}
_USUAL = ("ttft", "tpot", "itl")
_OLD = "vllm-0.11"
_OURS = "strict"


def block(
    summary: Summary, load: Load, *, latencies: Sequence[str] | None = None, percentiles: Sequence[float] = (99.0,)
) -> str:
    """Return the block of one run, without a line end after its last line.

    `vllm-0.11` and `vllm-0.33` have the lines of these versions, with 0.00 where there is no value, as they print it.
    `strict` names itself in a line of its own, adds end-to-end latency, and leaves out what has no value.
    `latencies` (keys of metrics.LATENCIES) chooses other sections, `percentiles` other lines in each; those beside 50,
    90, 95 and 99 must have been asked for when the summary was made.
    """
    lines = [" Serving Benchmark Result ".center(_WIDTH, "="), *_head(summary, load), *_rates(summary)]
    for key in latencies or _sections(summary):
        if summary.definitions != _OURS or key in summary.latency:
            lines += _section(key, summary.latency.get(key), percentiles)
    return "\n".join([*lines, "=" * _WIDTH])


def _line(label: str, figure: str) -> str:
    return f"{label + ':':<{_LABEL}} {figure}"


def _head(summary: Summary, load: Load) -> list[str]:
    lines = [_line("Successful requests", str(summary.completed))]
    if summary.definitions != _OLD:
        lines.append(_line("Failed requests", str(summary.failed)))
    if summary.definitions == _OURS:
        lines.append(_line("Definitions", summary.definitions))
    if load.max_concurrency is not None:
        lines.append(_line("Maximum request concurrency", str(load.max_concurrency)))
    if load.ramp_up is not None and summary.definitions == _OURS:
        ramp = load.ramp_up
        lines.append(
            _line("Request rate ramp-up (RPS)", f"{ramp.start_rps:.2f} to {ramp.end_rps:.2f}, {ramp.strategy}")
        )
    elif load.request_rate is not None and load.ramp_up is None:
        lines.append(_line("Request rate configured (RPS)", f"{load.request_rate:.2f}"))
    return lines


def _rates(summary: Summary) -> list[str]:
    total = "Total Token throughput (tok/s)" if summary.definitions == _OLD else "Total token throughput (tok/s)"
    figures = {
        "Benchmark duration (s)": f"{summary.duration_s:.2f}",
        "Total input tokens": str(summary.total_input_tokens),
        "Total generated tokens": str(summary.total_output_tokens),
        "Request throughput (req/s)": f"{summary.request_throughput:.2f}",
        **({} if summary.goodput is None else {"Request goodput (req/s)": f"{summary.goodput:.2f}"}),
        "Output token throughput (tok/s)": f"{summary.output_throughput:.2f}",
        "Peak output token throughput (tok/s)": f"{summary.peak_output_throughput or 0:.2f}",
        "Peak concurrent requests": f"{summary.peak_concurrency or 0:.2f}",
        total: f"{summary.total_token_throughput:.2f}",
    }
    return [_line(label, figure) for label, figure in figures.items()]


def _sections(summary: Summary) -> Sequence[str]:
    return (*_USUAL, "e2el") if summary.definitions == _OURS else _USUAL


def _section(key: str, values: Distribution | None, percentiles: Sequence[float]) -> list[str]:
    short, title = _SECTIONS[key]
    figures = {"Mean": 0.0, "Median": 0.0} if values is None else {"Mean": values.mean, "Median": values.median}
    for asked in percentiles:
        figures[f"P{metrics.percentile_name(asked)}"] = 0.0 if values is None else metrics.percentile(values, asked)
    return [
        title.center(_WIDTH, "-"),
        *(_line(f"{name} {short} (ms)", f"{figure:.2f}") for name, figure in figures.items()),
    ]
