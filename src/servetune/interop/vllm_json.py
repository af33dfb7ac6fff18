"""Writes a run's result with the keys of `vllm bench serve --save-result`, for tools that read such files. Pure."""

from __future__ import annotations

from typing import Any

from servetune.records import Load, Summary

_STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")
_LATENCIES = ("ttft", "tpot", "itl", "e2el")


def result(summary: Summary, load: Load, about: dict[str, Any]) -> dict[str, Any]:
    """Return the result as plain values.

    `about` holds what is known besides the figures (date, backend, model_id, ...), under vLLM's names. Latencies
    without a value are left out. `definitions` and `token_source` are ours: they say what the figures mean.
    """
    figures: dict[str, Any] = {
        "num_prompts": summary.completed + summary.failed,
        "request_rate": "inf" if load.request_rate is None else load.request_rate,
        "burstiness": load.burstiness,
        "max_concurrency": load.max_concurrency,
        "duration": summary.duration_s,
        "completed": summary.completed,
        "failed": summary.failed,
        "total_input_tokens": summary.total_input_tokens,
        "total_output_tokens": summary.total_output_tokens,
        "request_throughput": summary.request_throughput,
        "request_goodput": None,
        "output_throughput": summary.output_throughput,
        "total_token_throughput": summary.total_token_throughput,
        "max_output_tokens_per_s": summary.peak_output_throughput,
        "max_concurrent_requests": summary.peak_concurrency,
        "definitions": summary.definitions,
        "token_source": summary.token_source,
        "errors_by_kind": summary.errors,
    }
    latencies = {
        f"{statistic}_{name}_ms": getattr(summary.latency[name], statistic)
        for name in _LATENCIES
        if name in summary.latency
        for statistic in _STATISTICS
    }
    return {**about, **figures, **latencies}
