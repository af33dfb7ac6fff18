"""A run's figures in the text form that `vllm bench serve` prints. Pure.

Readers of published benchmarks know this form, and `interop/vllm_text.py` reads it back.
"""

from __future__ import annotations

from servetune.records import Distribution, Load, Summary

_WIDTH = 50
_LABEL = 40
_SECTIONS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}
_OLD = "vllm-0.11"
_OURS = "strict"


def block(summary: Summary, load: Load) -> str:
    """Return the block of one run, without a line end after its last line.

    `vllm-0.11` and `vllm-0.33` have the lines of these versions, with 0.00 where there is no value, as they print it.
    `strict` names itself in a line of its own, adds end-to-end latency, and leaves out what has no value.
    """
    lines = [" Serving Benchmark Result ".center(_WIDTH, "="), *_head(summary, load), *_rates(summary)]
    for key in _sections(summary):
        lines += _section(key, summary.latency.get(key))
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
    if load.request_rate is not None:
        lines.append(_line("Request rate configured (RPS)", f"{load.request_rate:.2f}"))
    return lines


def _rates(summary: Summary) -> list[str]:
    total = "Total Token throughput (tok/s)" if summary.definitions == _OLD else "Total token throughput (tok/s)"
    figures = {
        "Benchmark duration (s)": f"{summary.duration_s:.2f}",
        "Total input tokens": str(summary.total_input_tokens),
        "Total generated tokens": str(summary.total_output_tokens),
        "Request throughput (req/s)": f"{summary.request_throughput:.2f}",
        "Output token throughput (tok/s)": f"{summary.output_throughput:.2f}",
        "Peak output token throughput (tok/s)": f"{summary.peak_output_throughput or 0:.2f}",
        "Peak concurrent requests": f"{summary.peak_concurrency or 0:.2f}",
        total: f"{summary.total_token_throughput:.2f}",
    }
    return [_line(label, figure) for label, figure in figures.items()]


def _sections(summary: Summary) -> list[str]:
    if summary.definitions == _OURS:
        return [key for key in _SECTIONS if key in summary.latency]
    return ["ttft", "tpot", "itl"]


def _section(key: str, values: Distribution | None) -> list[str]:
    short, title = _SECTIONS[key]
    mean, median, p99 = (values.mean, values.median, values.p99) if values is not None else (0.0, 0.0, 0.0)
    return [
        title.center(_WIDTH, "-"),
        _line(f"Mean {short} (ms)", f"{mean:.2f}"),
        _line(f"Median {short} (ms)", f"{median:.2f}"),
        _line(f"P99 {short} (ms)", f"{p99:.2f}"),
    ]
