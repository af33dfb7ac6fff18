"""From request records to the figures of a run, by named sets of definitions. Pure.

The same label means different numbers in different tools, so every summary names its definitions:

strict     TTFT: first event with output of any kind, TTFOT: first visible text. E2EL: to the last event with output.
           TPOT: time from first to last output / tokens after the first event's. ITL: gaps spread over the tokens that
           each event brought where the server reports cumulative counts, else gaps between events with output (which is
           what ICL always is). The run lasts from the first send to the last output of any request.
vllm-0.11  as `vllm bench serve` 0.11: for chat, TTFT is the first event with `choices`, whatever it holds, E2EL ends at
           the last message, an answer without output or with an error inside counts as a success, and input tokens are
           the local count.
vllm-0.33  as 0.33: only events with output count; input tokens are the server's count.

In both vllm profiles TPOT = (E2EL - TTFT) / (tokens - 1), ITL holds one gap for each event, "peak output" counts events
in whole seconds from the first start, "peak concurrent" the requests that touch one such second, and the run lasts from
the start of the clock to the end of the last request. Output tokens are the server's count; where it reports none the
events with output are counted instead (vllm would count with a tokenizer), and `token_source` says so.

All latencies run from the moment right before the first byte is sent. Percentiles are numpy's linear ones, deviations
those of a population. Failed requests are in no latency and no token count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from servetune.records import (
    EVENT_CHOICES,
    EVENT_CONTENT,
    EVENT_DONE,
    EVENT_EMPTY,
    EVENT_FINISH,
    EVENT_OUTPUT,
    ClientFacts,
    Distribution,
    Fault,
    Record,
    RequestErrorKind,
    RequestRecord,
    Summary,
)

_NS_PER_MS = 1e6
_NS_PER_S = 1_000_000_000


class Metric(Record, frozen=True, kw_only=True):
    """One figure that an objective or a limit may name."""

    name: str
    label: str
    unit: str
    better: Literal["higher", "lower"]


class Timing(Record, frozen=True, kw_only=True):
    """One successful request under one set of definitions. Times are ns since the run's epoch."""

    start_ns: int
    end_ns: int
    """Where its end-to-end latency ends."""
    chunks_ns: tuple[int, ...]
    """Times of the events that count as output."""
    weights: tuple[float, ...]
    """What each of them adds to the peak: tokens, or 1."""
    input_tokens: int
    output_tokens: int
    counted: Literal["usage", "chunks"]
    latency_ms: dict[str, tuple[float, ...]]
    """Values of each latency: one a request, many for itl and icl."""


class Profile(Record, frozen=True, kw_only=True):
    """One set of definitions."""

    name: str
    timing: Callable[[RequestRecord, str], Timing | None]
    """(record, api) -> its timing; None: the request failed."""
    duration_ns: Callable[[Sequence[RequestRecord], ClientFacts], int]
    peaks: Callable[[Sequence[Timing], Sequence[RequestRecord], float], tuple[float | None, int | None]]
    """(timings, records, mean output tokens/s) -> largest output in one second, most requests at once."""


def summarize(
    records: Sequence[RequestRecord],
    facts: ClientFacts,
    definitions: str,
    *,
    goodput: Mapping[str, float] | None = None,
    percentiles: Sequence[float] = (),
) -> Summary:
    """Return the figures of one run; `definitions` is a name in PROFILES (KeyError otherwise).

    `goodput` holds limits in ms (keys in GOODPUT_KEYS) that a good request keeps; `percentiles` are added to those that
    every distribution has.
    """
    profile = PROFILES[definitions]
    timings = [timing for timing in timed(records, facts, definitions) if timing is not None]
    duration_s = profile.duration_ns(records, facts) / _NS_PER_S
    total_input = sum(timing.input_tokens for timing in timings)
    total_output = sum(timing.output_tokens for timing in timings)
    output_throughput = _per_second(total_output, duration_s)
    peak, concurrency = profile.peaks(timings, records, output_throughput)
    return Summary(
        definitions=definitions,
        completed=len(timings),
        failed=len(records) - len(timings),
        duration_s=duration_s,
        total_input_tokens=total_input,
        total_output_tokens=total_output,
        request_throughput=_per_second(len(timings), duration_s),
        output_throughput=output_throughput,
        total_token_throughput=_per_second(total_input + total_output, duration_s),
        peak_output_throughput=peak,
        peak_concurrency=concurrency,
        latency=_distributions(timings, percentiles),
        token_source=_token_source(timings),
        errors=dict(sorted(Counter(record.error.kind for record in records if record.error is not None).items())),
        goodput=None if not goodput else _per_second(_good(timings, goodput), duration_s),
    )


def timed(records: Sequence[RequestRecord], facts: ClientFacts, definitions: str) -> list[Timing | None]:
    """Return the timing of each record; None where the request failed under these definitions."""
    timing = PROFILES[definitions].timing
    return [timing(record, facts.api) for record in records]


def faults(records: Sequence[RequestRecord]) -> tuple[Fault, ...]:
    """Return what failed, by kind, the most frequent first; each with the message of the first in time."""
    counts: Counter[RequestErrorKind] = Counter()
    first: dict[RequestErrorKind, str] = {}
    for record in records:
        if record.error is not None:
            counts[record.error.kind] += 1
            first.setdefault(record.error.kind, record.error.message)
    return tuple(Fault(kind=kind, count=count, first=first[kind]) for kind, count in counts.most_common())


def distribution(values: Sequence[float], percentiles: Sequence[float] = ()) -> Distribution:
    """Return the statistics of at least one value, with these percentiles (0 to 100) beside the usual ones."""
    array = np.asarray(values, dtype=float)
    median, p90, p95, p99, *more = np.percentile(array, [50, 90, 95, 99, *percentiles]).tolist()
    return Distribution(
        count=len(array),
        mean=float(array.mean()),
        median=median,
        std=float(array.std()),
        min=float(array.min()),
        max=float(array.max()),
        p90=p90,
        p95=p95,
        p99=p99,
        percentiles={percentile_name(asked): found for asked, found in zip(percentiles, more, strict=True)},
    )


def percentile_name(percentile: float) -> str:
    """Return how a percentile is written: 99, 99.9."""
    return str(int(percentile)) if percentile == int(percentile) else str(percentile)


def percentile(values: Distribution, asked: float) -> float:
    """Return one percentile of a distribution; KeyError if it is neither a usual one nor was asked for."""
    usual: dict[float, float] = {50: values.median, 90: values.p90, 95: values.p95, 99: values.p99}
    return usual[asked] if asked in usual else values.percentiles[percentile_name(asked)]


def value(summary: Summary, metric: str) -> float | None:
    """Return the figure that `metric` (a name in METRICS) has in `summary`; None where it has none."""
    if metric not in METRICS:
        raise KeyError(metric)
    if hasattr(summary, metric):
        found = getattr(summary, metric)
        return None if found is None else float(found)
    statistic, _, latency = metric.removesuffix("_ms").partition("_")
    values = summary.latency.get(latency)
    return None if values is None else float(getattr(values, statistic))


def _per_second(amount: int, duration_s: float) -> float:
    return amount / duration_s if duration_s > 0 else 0.0


def _distributions(timings: Sequence[Timing], percentiles: Sequence[float]) -> dict[str, Distribution]:
    pooled: dict[str, list[float]] = {name: [] for name in LATENCIES}
    for timing in timings:
        for name, values in timing.latency_ms.items():
            pooled[name].extend(values)
    return {name: distribution(values, percentiles) for name, values in pooled.items() if values}


def _good(timings: Sequence[Timing], limits_ms: Mapping[str, float]) -> int:
    """Count the requests within all limits; a request without a value (TPOT of one token) keeps that limit."""
    return sum(
        all(found <= limit for name, limit in limits_ms.items() for found in timing.latency_ms[name])
        for timing in timings
    )


def _token_source(timings: Sequence[Timing]) -> Literal["usage", "chunks", "none"]:
    sources = {timing.counted for timing in timings}
    if not sources:
        return "none"
    return "chunks" if "chunks" in sources else "usage"


# --------------------------------------------------------------------------- reading one record


def _event_times_ns(record: RequestRecord) -> list[int]:
    """Time of each event; events that one read brought share its time."""
    times: list[int] = []
    for at_ns, events in zip(record.reads_ns, record.read_events, strict=True):
        times += [at_ns] * events
    return times


def _times_with(record: RequestRecord, bits: int) -> list[int]:
    return [at_ns for at_ns, flags in zip(_event_times_ns(record), record.event_flags, strict=True) if flags & bits]


def _output_tokens(record: RequestRecord, chunks: int) -> tuple[int, Literal["usage", "chunks"]]:
    """Tokens of the answer: the server's count, or the number of events where it reports none."""
    if record.usage_output_tokens:
        return record.usage_output_tokens, "usage"
    return chunks, "chunks"


def _gaps_ms(times_ns: Sequence[int]) -> tuple[float, ...]:
    return tuple((later - earlier) / _NS_PER_MS for earlier, later in pairwise(times_ns))


# --------------------------------------------------------------------------- strict


def _strict_timing(record: RequestRecord, api: str) -> Timing | None:
    del api
    if record.error is not None or record.sent_ns is None:
        return None
    outputs = _strict_outputs(record)
    if not outputs:
        return None
    times = [at_ns for at_ns, _ in outputs]
    tokens, counted = _output_tokens(record, len(times))
    per_chunk = _tokens_per_chunk([known for _, known in outputs])
    visible = _times_with(record, EVENT_CONTENT)[:1]
    first, last = times[0], times[-1]
    rest = tokens - (per_chunk[0] if per_chunk else 1)
    return Timing(
        start_ns=record.sent_ns,
        end_ns=last,
        chunks_ns=tuple(times),
        weights=tuple(map(float, per_chunk)) if per_chunk else (tokens / len(times),) * len(times),
        input_tokens=record.usage_prompt_tokens or record.local_prompt_tokens or 0,
        output_tokens=tokens,
        counted=counted,
        latency_ms={
            "ttft": ((first - record.sent_ns) / _NS_PER_MS,),
            "ttfot": tuple((at_ns - record.sent_ns) / _NS_PER_MS for at_ns in visible),
            "tpot": ((last - first) / _NS_PER_MS / rest,) if rest > 0 else (),
            "itl": _token_gaps_ms(times, per_chunk),
            "icl": _gaps_ms(times),
            "e2el": ((last - record.sent_ns) / _NS_PER_MS,),
            "schedule_e2el": ((last - record.scheduled_ns) / _NS_PER_MS,),
        },
    )


def _strict_outputs(record: RequestRecord) -> list[tuple[int, int | None]]:
    """(time, cumulative tokens) of each event that holds a token."""
    known: Sequence[int | None] = record.event_tokens or (None,) * len(record.event_flags)
    events = zip(_event_times_ns(record), known, record.event_flags, strict=True)
    outputs = [(at_ns, tokens, flags) for at_ns, tokens, flags in events if flags & EVENT_OUTPUT]
    if len(outputs) > 1 and len(outputs) - 1 == record.usage_output_tokens:
        flags = outputs[-1][2]
        if flags & EVENT_FINISH and flags & EVENT_OUTPUT == EVENT_EMPTY:
            # All tokens came before: this empty delta only announces the end.
            outputs.pop()
    return [(at_ns, tokens) for at_ns, tokens, _ in outputs]


def _tokens_per_chunk(cumulative: Sequence[int | None]) -> list[int] | None:
    counts = [tokens for tokens in cumulative if tokens is not None]
    if len(counts) < len(cumulative):
        return None
    return [later - earlier for earlier, later in pairwise([0, *counts])]


def _token_gaps_ms(times_ns: Sequence[int], per_chunk: Sequence[int] | None) -> tuple[float, ...]:
    gaps = _gaps_ms(times_ns)
    if per_chunk is None:
        return gaps
    spread: list[float] = []
    waited_ms = 0.0
    for gap_ms, tokens in zip(gaps, per_chunk[1:], strict=True):
        # An event without a token only prolongs the wait for the next one.
        waited_ms += gap_ms
        if tokens:
            spread += [waited_ms / tokens] * tokens
            waited_ms = 0.0
    return tuple(spread)


def _strict_duration_ns(records: Sequence[RequestRecord], facts: ClientFacts) -> int:
    del facts
    starts = [record.sent_ns for record in records if record.sent_ns is not None]
    ends = [times[-1] for record in records if (times := _times_with(record, EVENT_OUTPUT))]
    return max(ends) - min(starts) if starts and ends else 0


def _strict_peaks(
    timings: Sequence[Timing], records: Sequence[RequestRecord], mean: float
) -> tuple[float | None, int | None]:
    peak = _peak_in_any_second(timings)
    # A run of less than a second (or of a few bursts) may have a higher mean than any whole second holds.
    return None if peak is None else max(peak, mean), _most_at_once(records)


def _peak_in_any_second(timings: Sequence[Timing]) -> float | None:
    """Most tokens in any window of one second, wherever it begins."""
    events = sorted(pair for timing in timings for pair in zip(timing.chunks_ns, timing.weights, strict=True))
    if not events:
        return None
    times = np.array([at_ns for at_ns, _ in events])
    sums = np.concatenate([[0.0], np.cumsum([weight for _, weight in events])])
    ends = np.searchsorted(times, times + _NS_PER_S, side="left")
    return float(np.max(sums[ends] - sums[:-1]))


def _most_at_once(records: Sequence[RequestRecord]) -> int | None:
    """Most requests that were sent and not yet closed at one moment; one that ends as another starts is not counted."""
    changes = [
        change
        for record in records
        if record.sent_ns is not None and record.closed_ns is not None
        for change in ((record.sent_ns, 1), (record.closed_ns, -1))
    ]
    if not changes:
        return None
    return int(np.max(np.cumsum([step for _, step in sorted(changes)])))


# --------------------------------------------------------------------------- vllm


def _vllm_timing(
    record: RequestRecord, times_ns: Sequence[int], last_ns: int | None, input_tokens: int | None
) -> Timing | None:
    """Build a timing from the events that count; without any of them TTFT is 0, as vllm's is."""
    if record.sent_ns is None:
        return None
    ttft_ms = (times_ns[0] - record.sent_ns) / _NS_PER_MS if times_ns else 0.0
    end_ns = record.sent_ns if last_ns is None else last_ns
    e2el_ms = (end_ns - record.sent_ns) / _NS_PER_MS
    tokens, counted = _output_tokens(record, len(_times_with(record, EVENT_OUTPUT)))
    return Timing(
        start_ns=record.sent_ns,
        end_ns=end_ns,
        chunks_ns=tuple(times_ns),
        weights=(1.0,) * len(times_ns),
        input_tokens=input_tokens or 0,
        output_tokens=tokens,
        counted=counted,
        latency_ms={
            "ttft": (ttft_ms,),
            "tpot": ((e2el_ms - ttft_ms) / (tokens - 1),) if tokens > 1 else (),
            "itl": _gaps_ms(times_ns),
            "e2el": (e2el_ms,),
        },
    )


def _vllm_011_timing(record: RequestRecord, api: str) -> Timing | None:
    ignored = api == "chat" and record.status == 200
    if record.error is not None and not (ignored and record.error.kind in {"no-output", "stream-error"}):
        return None
    times = _times_with(record, EVENT_CHOICES)
    if api != "chat":
        return _vllm_timing(record, times, times[-1], record.local_prompt_tokens) if times else None
    events = zip(_event_times_ns(record), record.event_flags, strict=True)
    messages = [at_ns for at_ns, flags in events if flags != EVENT_DONE]
    return _vllm_timing(record, times, messages[-1] if messages else None, record.local_prompt_tokens)


def _vllm_033_timing(record: RequestRecord, api: str) -> Timing | None:
    if record.error is not None:
        return None
    times = _times_with(record, EVENT_OUTPUT if api == "chat" else EVENT_CHOICES)
    tokens = record.local_prompt_tokens if record.usage_prompt_tokens is None else record.usage_prompt_tokens
    return _vllm_timing(record, times, times[-1], tokens) if times else None


def _vllm_duration_ns(records: Sequence[RequestRecord], facts: ClientFacts) -> int:
    del records
    return facts.duration_ns


def _vllm_peaks(
    timings: Sequence[Timing], records: Sequence[RequestRecord], mean: float
) -> tuple[float | None, int | None]:
    del records, mean
    if not timings:
        return None, None
    origin = min(timing.start_ns for timing in timings)
    chunks: Counter[int] = Counter()
    touched: Counter[int] = Counter()
    for timing in timings:
        chunks.update((at_ns - origin) // _NS_PER_S for at_ns in timing.chunks_ns)
        touched.update(range((timing.start_ns - origin) // _NS_PER_S, (timing.end_ns - origin) // _NS_PER_S + 1))
    return float(max(chunks.values(), default=0)), max(touched.values())


# --------------------------------------------------------------------------- names

PROFILES = {
    "strict": Profile(name="strict", timing=_strict_timing, duration_ns=_strict_duration_ns, peaks=_strict_peaks),
    "vllm-0.11": Profile(name="vllm-0.11", timing=_vllm_011_timing, duration_ns=_vllm_duration_ns, peaks=_vllm_peaks),
    "vllm-0.33": Profile(name="vllm-0.33", timing=_vllm_033_timing, duration_ns=_vllm_duration_ns, peaks=_vllm_peaks),
}
"""Every set of definitions by its name."""

LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "end-to-end latency",
    "ttfot": "time to first visible token",
    "icl": "inter-chunk latency",
    "schedule_e2el": "end-to-end latency from the schedule",
}
"""Every latency that a summary may hold; the last three under `strict` only."""

GOODPUT_KEYS = ("ttft", "tpot", "e2el")
"""Latencies that have one value a request, and so may be limited for goodput."""

_STATISTICS = {"mean": "mean", "median": "median", "p90": "90th percentile of", "p95": "95th percentile of",
               "p99": "99th percentile of", "max": "largest"}  # fmt: skip
_RATES = (
    Metric(name="total_token_throughput", label="input and output tokens", unit="tokens/s", better="higher"),
    Metric(name="output_throughput", label="output tokens", unit="tokens/s", better="higher"),
    Metric(name="request_throughput", label="requests", unit="requests/s", better="higher"),
    Metric(name="success_rate", label="share of requests that succeeded", unit="", better="higher"),
    Metric(name="duration_s", label="duration of the run", unit="s", better="lower"),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _RATES} | {
    name: Metric(name=name, label=f"{words} {label}", unit="ms", better="lower")
    for latency, label in LATENCIES.items()
    for statistic, words in _STATISTICS.items()
    for name in [f"{statistic}_{latency}_ms"]
}
"""Every figure that an objective or a limit may name."""
