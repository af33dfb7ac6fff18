"""Writes a run's result with the keys of `vllm bench serve --save-result`, for tools that read such files. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from servetune.metrics import Timing
from servetune.records import Load, RequestRecord, Summary

_STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")
_LATENCIES = ("ttft", "tpot", "itl", "e2el")
_NS_PER_S = 1e9
_MS_PER_S = 1e3


def result(summary: Summary, load: Load, about: dict[str, Any]) -> dict[str, Any]:
    """Return the result as plain values.

    `about` holds what is known besides the figures (date, backend, model_id, ...), under vLLM's names. Latencies
    without a value are left out. `definitions` and `token_source` are ours: they say what the figures mean.
    """
    ramp = load.ramp_up
    figures: dict[str, Any] = {
        "num_prompts": summary.completed + summary.failed,
        "request_rate": "inf" if load.request_rate is None else load.request_rate,
        "burstiness": load.burstiness,
        "max_concurrency": load.max_concurrency,
        **(
            {}
            if ramp is None
            else {
                "ramp_up_strategy": ramp.strategy,
                "ramp_up_start_rps": ramp.start_rps,
                "ramp_up_end_rps": ramp.end_rps,
            }
        ),
        "duration": summary.duration_s,
        "completed": summary.completed,
        "failed": summary.failed,
        "total_input_tokens": summary.total_input_tokens,
        "total_output_tokens": summary.total_output_tokens,
        "request_throughput": summary.request_throughput,
        "request_goodput": summary.goodput,
        "output_throughput": summary.output_throughput,
        "total_token_throughput": summary.total_token_throughput,
        "max_output_tokens_per_s": summary.peak_output_throughput,
        "max_concurrent_requests": summary.peak_concurrency,
        "definitions": summary.definitions,
        "token_source": summary.token_source,
        "errors_by_kind": summary.errors,
    }
    latencies: dict[str, float] = {}
    for name in _LATENCIES:
        if (values := summary.latency.get(name)) is not None:
            latencies |= {f"{statistic}_{name}_ms": getattr(values, statistic) for statistic in _STATISTICS}
            latencies |= {f"p{asked}_{name}_ms": found for asked, found in values.percentiles.items()}
    return {**about, **figures, **latencies}


def detailed(records: Sequence[RequestRecord], timings: Sequence[Timing | None]) -> dict[str, list[Any]]:
    """Return the lists of `--save-detailed`: one entry a request, in the order of the requests, times in seconds.

    `timings` are those of `records` (metrics.timed); a request that failed has zeros and its error. `start_times` run
    from the start of the load; their zero has no other meaning, as in vLLM.
    """
    rows = sorted(zip(records, timings, strict=True), key=lambda row: row[0].index)

    def seconds(timing: Timing | None, name: str) -> list[float]:
        return [] if timing is None else [found / _MS_PER_S for found in timing.latency_ms[name]]

    return {
        "input_lens": [_input_len(record, timing) for record, timing in rows],
        "output_lens": [0 if timing is None else timing.output_tokens for _, timing in rows],
        "ttfts": [sum(seconds(timing, "ttft")) for _, timing in rows],
        "itls": [seconds(timing, "itl") for _, timing in rows],
        "latencies": [sum(seconds(timing, "e2el")) for _, timing in rows],
        "start_times": [(record.sent_ns or 0) / _NS_PER_S for record, _ in rows],
        "generated_texts": [record.text for record, _ in rows],
        "errors": [
            "" if record.error is None else f"{record.error.kind}: {record.error.message}" for record, _ in rows
        ],
    }


def _input_len(record: RequestRecord, timing: Timing | None) -> int:
    return (record.local_prompt_tokens or 0) if timing is None else timing.input_tokens
