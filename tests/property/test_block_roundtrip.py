"""A printed block, read back, has the figures that were printed, and they agree with each other."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.interop.vllm_text import broken_identities, parse_block
from servetune.metrics import PROFILES, distribution, summarize
from servetune.records import EVENT_CHOICES, EVENT_CONTENT, ClientFacts, Load, RequestRecord, Summary
from servetune.report.blocks import block

_ALWAYS_PRINTED = ("ttft", "tpot", "itl")


@st.composite
def _runs(draw: st.DrawFn) -> Summary:
    records = []
    for index in range(draw(st.integers(0, 5))):
        sent = draw(st.integers(0, 10**10))
        gaps = draw(st.lists(st.integers(1, 10**9), min_size=1, max_size=6))
        times = [sent + sum(gaps[: count + 1]) for count in range(len(gaps))]
        records.append(
            RequestRecord(
                index=index,
                scheduled_ns=0,
                sent_ns=sent,
                reads_ns=tuple(times),
                read_events=(1,) * len(times),
                event_flags=(EVENT_CHOICES | EVENT_CONTENT,) * len(times),
                closed_ns=times[-1],
                status=200,
                usage_prompt_tokens=draw(st.integers(0, 10**6)),
                usage_output_tokens=draw(st.integers(0, 10**6)),
            )
        )
    ends = [record.closed_ns or 0 for record in records]
    facts = ClientFacts(
        stamps="kernel",
        workers=1,
        epoch_ns=0,
        duration_ns=max(ends, default=0),
        clock_step_ns=0,
        cpu_share=0.0,
        max_loop_lag_ms=0.0,
        late_sends=0,
        multi_event_reads=0.0,
        unresolved_ttft=0.0,
        peak_open=1,
    )
    return summarize(records, facts, draw(st.sampled_from(sorted(PROFILES))))


@settings(deadline=None)
@given(
    summary=_runs(),
    concurrency=st.none() | st.integers(1, 10**4),
    rate=st.none() | st.floats(0.01, 1e4),
)
def test_a_block_reads_back_as_it_was_printed(summary: Summary, concurrency: int | None, rate: float | None) -> None:
    """Counts exactly, rates and latencies to two decimals; no line is left over and every identity holds."""
    found = parse_block(block(summary, Load(max_concurrency=concurrency, request_rate=rate)))
    assert found is not None
    assert found.other == ()
    assert broken_identities(found) == []
    assert (found.completed, found.max_concurrency) == (summary.completed, concurrency)
    assert (found.total_input_tokens, found.total_output_tokens) == (
        summary.total_input_tokens,
        summary.total_output_tokens,
    )
    for name in ("duration_s", "request_throughput", "output_throughput", "total_token_throughput"):
        assert getattr(found, name) == float(f"{getattr(summary, name):.2f}")
    assert (found.request_rate is None) == (rate is None)
    assert found.definitions == ("strict" if summary.definitions == "strict" else None)
    nothing = distribution([0.0])
    for key, statistics in found.latency_ms.items():
        values = summary.latency.get(key, nothing)
        assert statistics == {name: float(f"{getattr(values, name):.2f}") for name in ("mean", "median", "p99")}
    expected = set(summary.latency) & {*_ALWAYS_PRINTED, "e2el"} if found.definitions else set(_ALWAYS_PRINTED)
    assert set(found.latency_ms) == expected
