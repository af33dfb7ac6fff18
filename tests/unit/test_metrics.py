"""Figures worked out by hand for every definition of the three profiles."""

from __future__ import annotations

import math
from typing import Any

import pytest

from servetune.metrics import (
    LATENCIES,
    METRICS,
    PROFILES,
    distribution,
    faults,
    percentile,
    percentile_name,
    summarize,
    timed,
    value,
)
from servetune.records import (
    EVENT_CHOICES,
    EVENT_CONTENT,
    EVENT_DONE,
    EVENT_EMPTY,
    EVENT_FINISH,
    EVENT_REASONING,
    EVENT_ROLE,
    EVENT_USAGE,
    ClientFacts,
    Fault,
    RequestError,
    RequestErrorKind,
    RequestRecord,
)

MS = 1_000_000
ROLE = EVENT_CHOICES | EVENT_ROLE
TEXT = EVENT_CHOICES | EVENT_CONTENT
THOUGHT = EVENT_CHOICES | EVENT_REASONING
EMPTY = EVENT_CHOICES | EVENT_EMPTY
END = EVENT_CHOICES | EVENT_FINISH
USAGE, DONE = EVENT_USAGE, EVENT_DONE


def request(events: list[tuple[int, int]], **changes: Any) -> RequestRecord:
    """A request sent at 0 with one read for each event: (ms, flags)."""
    fields: dict[str, Any] = {
        "index": 0,
        "scheduled_ns": 0,
        "sent_ns": 0,
        "reads_ns": tuple(ms * MS for ms, _ in events),
        "read_events": (1,) * len(events),
        "event_flags": tuple(flags for _, flags in events),
        "closed_ns": events[-1][0] * MS if events else 0,
        "status": 200,
    }
    return RequestRecord(**{**fields, **changes})


def failure(kind: RequestErrorKind, events: list[tuple[int, int]], **changes: Any) -> RequestRecord:
    """A request that failed."""
    return request(events, error=RequestError(kind=kind, message=""), **changes)


def facts(*, api: str = "chat", duration_ms: int = 1000) -> ClientFacts:
    """What the client says about a quiet run."""
    return ClientFacts(
        stamps="kernel",
        workers=1,
        epoch_ns=0,
        duration_ns=duration_ms * MS,
        clock_step_ns=0,
        cpu_share=0.1,
        max_loop_lag_ms=0.0,
        late_sends=0,
        multi_event_reads=0.0,
        unresolved_ttft=0.0,
        peak_open=1,
        api=api,  # type: ignore[arg-type]
    )


CHAT = request(
    [(10, ROLE), (100, TEXT), (120, TEXT), (140, TEXT), (141, END), (142, USAGE), (143, DONE)],
    usage_prompt_tokens=9,
    usage_output_tokens=3,
    local_prompt_tokens=5,
)
"""A usual chat answer: role first, three tokens, the end, usage, DONE."""


def figures(record: RequestRecord, definitions: str, **about: Any) -> dict[str, float]:
    """Mean of each latency of a run with this one request."""
    summary = summarize([record], facts(**about), definitions)
    return {name: found.mean for name, found in summary.latency.items()}


def test_strict_ignores_the_role_and_the_messages_behind_the_last_token() -> None:
    """TTFT is the first token, E2EL the last one, TPOT their distance over n - 1."""
    assert figures(CHAT, "strict") == {
        "ttft": 100.0, "ttfot": 100.0, "tpot": 20.0, "itl": 20.0, "icl": 20.0, "e2el": 140.0, "schedule_e2el": 140.0,
    }  # fmt: skip


def test_vllm_011_counts_the_role_as_first_token_and_usage_as_the_end() -> None:
    """TTFT at the role message, one gap for each message with choices, E2EL at the usage message."""
    found = figures(CHAT, "vllm-0.11")
    assert found == {"ttft": 10.0, "tpot": (142 - 10) / 2, "itl": pytest.approx((90 + 20 + 20 + 1) / 4), "e2el": 142.0}


def test_vllm_033_counts_events_with_output_only() -> None:
    """Role, end and usage messages are no output."""
    assert figures(CHAT, "vllm-0.33") == {"ttft": 100.0, "tpot": 20.0, "itl": 20.0, "e2el": 140.0}


@pytest.mark.parametrize("definitions", ["vllm-0.11", "vllm-0.33"])
def test_completions_count_every_message_with_choices(definitions: str) -> None:
    """For completions both versions take each message with choices, and end at the last of them."""
    record = request([(50, EMPTY), (60, TEXT), (90, END), (95, USAGE), (96, DONE)], usage_output_tokens=2)
    found = figures(record, definitions, api="completions")
    assert found == {"ttft": 50.0, "tpot": 40.0, "itl": 20.0, "e2el": 90.0}


@pytest.mark.parametrize("definitions", ["vllm-0.11", "vllm-0.33"])
def test_completions_without_any_choices_have_failed(definitions: str) -> None:
    """There must be at least one message with choices, as vllm wants it."""
    summary = summarize([request([(50, USAGE)])], facts(api="completions"), definitions)
    assert (summary.completed, summary.failed) == (0, 1)


@pytest.mark.parametrize(("definitions", "expected"), [("strict", 5), ("vllm-0.11", 5), ("vllm-0.33", 9)])
def test_input_tokens_by_profile(definitions: str, expected: int) -> None:
    """0.11 counts locally, 0.33 and strict take the server's count; without one, the local count."""
    assert summarize([CHAT], facts(), definitions).total_input_tokens == (9 if definitions == "strict" else expected)
    silent = request([(10, TEXT), (20, TEXT)], local_prompt_tokens=5)
    assert summarize([silent], facts(), definitions).total_input_tokens == 5


@pytest.mark.parametrize("definitions", list(PROFILES))
def test_unknown_input_length_is_no_token(definitions: str) -> None:
    """Neither count is known."""
    assert summarize([request([(10, TEXT)])], facts(), definitions).total_input_tokens == 0


def test_reasoning_is_output_but_not_visible() -> None:
    """TTFT is the first thought, TTFOT the first visible text."""
    record = request([(50, THOUGHT), (70, THOUGHT), (90, TEXT), (91, END)], usage_output_tokens=3)
    found = figures(record, "strict")
    assert (found["ttft"], found["ttfot"], found["tpot"]) == (50.0, 90.0, 20.0)


def test_an_answer_of_thoughts_only_has_no_ttfot() -> None:
    """A latency without any value is absent."""
    assert "ttfot" not in figures(request([(50, THOUGHT), (51, END)], usage_output_tokens=1), "strict")


def test_itl_is_spread_over_the_tokens_that_an_event_brought() -> None:
    """Cumulative counts 2, 5, 6: TPOT leaves the first event's tokens out, ITL has 3 + 1 gaps, ICL two."""
    record = request(
        [(100, TEXT), (160, TEXT), (180, TEXT), (181, END)], event_tokens=(2, 5, 6, 6), usage_output_tokens=6
    )
    summary = summarize([record], facts(), "strict")
    assert summary.latency["itl"].count == 4
    assert summary.latency["itl"].mean == pytest.approx((3 * 20 + 20) / 4)
    assert summary.latency["icl"].mean == pytest.approx(40.0)
    assert summary.latency["tpot"].mean == pytest.approx(80 / 4)


def test_an_event_without_a_token_prolongs_the_gap_to_the_next() -> None:
    """Counts 1, 1, 2: one token took both gaps."""
    record = request([(100, TEXT), (110, EMPTY), (130, TEXT)], event_tokens=(1, 1, 2), usage_output_tokens=2)
    summary = summarize([record], facts(), "strict")
    assert (summary.latency["itl"].count, summary.latency["itl"].mean) == (1, 30.0)


def test_an_empty_delta_that_only_ends_the_answer_holds_no_token() -> None:
    """All tokens were counted before it; if one is missing, the empty delta is that token."""
    events = [(100, TEXT), (120, TEXT), (150, EMPTY | EVENT_FINISH)]
    assert figures(request(events, usage_output_tokens=2), "strict")["e2el"] == 120.0
    assert figures(request(events, usage_output_tokens=3), "strict")["e2el"] == 150.0


def test_a_last_event_with_text_is_a_token_whatever_the_count() -> None:
    """Only an empty delta that finishes is taken away."""
    events = [(100, TEXT), (120, TEXT), (150, TEXT | EVENT_FINISH)]
    assert figures(request(events, usage_output_tokens=2), "strict")["e2el"] == 150.0
    assert figures(request([(100, TEXT), (150, EMPTY)], usage_output_tokens=1), "strict")["e2el"] == 150.0


def test_events_of_one_read_share_its_time() -> None:
    """A merged read has gaps of 0 inside; the mean is kept."""
    record = request(
        [(100, TEXT), (160, TEXT), (0, TEXT), (0, TEXT)],
        reads_ns=(100 * MS, 160 * MS),
        read_events=(1, 3),
        usage_output_tokens=4,
    )
    summary = summarize([record], facts(), "strict")
    assert (summary.latency["itl"].max, summary.latency["itl"].min, summary.latency["itl"].mean) == (60.0, 0.0, 20.0)


@pytest.mark.parametrize("definitions", list(PROFILES))
def test_without_usage_events_are_counted_and_the_summary_says_so(definitions: str) -> None:
    """Three events with output stand for three tokens."""
    summary = summarize([request([(10, ROLE), (100, TEXT), (120, TEXT), (140, TEXT)])], facts(), definitions)
    assert (summary.total_output_tokens, summary.token_source) == (3, "chunks")
    assert summarize([CHAT], facts(), definitions).token_source == "usage"
    assert summarize([], facts(), definitions).token_source == "none"


@pytest.mark.parametrize("definitions", list(PROFILES))
def test_one_token_has_no_tpot(definitions: str) -> None:
    """The denominator would be 0."""
    assert "tpot" not in figures(request([(100, TEXT), (101, DONE)], usage_output_tokens=1), definitions)


def test_failures_are_counted_by_kind_and_in_no_latency() -> None:
    """One good request among three."""
    records = [CHAT, failure("http-status", [], status=500), failure("reset", [(10, TEXT)])]
    summary = summarize(records, facts(), "strict")
    assert (summary.completed, summary.failed, summary.errors) == (1, 2, {"http-status": 1, "reset": 1})
    assert summary.latency["ttft"].count == 1
    assert summary.success_rate == pytest.approx(1 / 3)


def test_vllm_011_does_not_see_an_answer_without_output() -> None:
    """An empty answer and an error inside an answer count as successes with a TTFT of 0, in chat with status 200."""
    records = [failure("no-output", [(10, USAGE), (11, DONE)]), failure("stream-error", [(10, 512)]),
               failure("no-output", [])]  # fmt: skip
    summary = summarize(records, facts(), "vllm-0.11")
    assert (summary.completed, summary.latency["ttft"].max, summary.latency["e2el"].median) == (3, 0.0, 10.0)
    assert summarize(records, facts(), "vllm-0.33").completed == 0
    assert summarize(records, facts(api="completions"), "vllm-0.11").completed == 0
    assert summarize([failure("reset", [])], facts(), "vllm-0.11").completed == 0


@pytest.mark.parametrize("definitions", list(PROFILES))
def test_a_request_that_was_never_sent_has_failed(definitions: str) -> None:
    """It has no start."""
    unsent = request([(10, TEXT)], sent_ns=None)
    assert summarize([unsent], facts(), definitions).completed == 0
    assert summarize([failure("cancelled", [], sent_ns=None, closed_ns=None)], facts(), definitions).completed == 0


def test_strict_needs_output() -> None:
    """A record without an error and without output is no success."""
    assert summarize([request([(10, ROLE)])], facts(), "strict").completed == 0


def test_rates_are_counts_over_the_duration() -> None:
    """Strict runs last from the first send to the last output of any request, vllm's as the client's clock."""
    late = request([(1500, TEXT), (2040, TEXT)], sent_ns=1000 * MS, usage_output_tokens=2, usage_prompt_tokens=4)
    lost = failure("truncated", [(2140, TEXT)])
    summary = summarize([CHAT, late, lost], facts(duration_ms=4000), "strict")
    assert summary.duration_s == pytest.approx(2.14)
    assert summary.request_throughput == pytest.approx(2 / 2.14)
    assert summary.output_throughput == pytest.approx(5 / 2.14)
    assert summary.total_token_throughput == pytest.approx((13 + 5) / 2.14)
    assert summarize([CHAT, late, lost], facts(duration_ms=4000), "vllm-0.11").duration_s == 4.0


def test_an_empty_run_has_rates_of_zero_and_no_latency() -> None:
    """Nothing is invented where nothing was measured."""
    for definitions in PROFILES:
        summary = summarize([], facts(duration_ms=0), definitions)
        assert (summary.request_throughput, summary.latency, summary.success_rate) == (0.0, {}, None)
        assert (summary.peak_output_throughput, summary.peak_concurrency) == (None, None)


def test_strict_peak_is_the_busiest_second_wherever_it_begins() -> None:
    """Four tokens between 0.7 and 1.4 s: buckets from 0 would split them two and two."""
    record = request([(700, TEXT), (900, TEXT), (1100, TEXT), (1400, TEXT), (2600, TEXT)], usage_output_tokens=5)
    summary = summarize([record], facts(duration_ms=3000), "strict")
    assert summary.peak_output_throughput == pytest.approx(4.0)
    assert summarize([record], facts(duration_ms=3000), "vllm-0.11").peak_output_throughput == 2.0


def test_strict_peak_weighs_events_by_tokens_and_is_never_below_the_mean() -> None:
    """Two events of five tokens each; and a run of a tenth of a second."""
    heavy = request([(100, TEXT), (900, TEXT), (1500, TEXT)], usage_output_tokens=15)
    assert summarize([heavy], facts(), "strict").peak_output_throughput == pytest.approx(10.0)
    short = request([(50, TEXT), (100, TEXT)], usage_output_tokens=2)
    assert summarize([short], facts(), "strict").peak_output_throughput == pytest.approx(2 / 0.1)


def test_peak_concurrency_is_true_in_strict_and_by_touched_seconds_in_vllm() -> None:
    """Three requests one after the other within a second: one at a time, but vllm says three."""
    records = [
        request([(start + 100, TEXT)], sent_ns=start * MS, closed_ns=(start + 200) * MS) for start in (0, 200, 400)
    ]
    assert summarize(records, facts(), "strict").peak_concurrency == 1
    assert summarize(records, facts(), "vllm-0.11").peak_concurrency == 3
    overlapping = [request([(100, TEXT)], closed_ns=300 * MS), *records[:2]]
    assert summarize(overlapping, facts(), "strict").peak_concurrency == 2


def test_vllm_011_peak_without_any_message_is_zero() -> None:
    """All buckets of vllm stay empty."""
    assert summarize([failure("no-output", [])], facts(), "vllm-0.11").peak_output_throughput == 0.0


def test_schedule_latency_holds_the_wait_of_the_client() -> None:
    """Due at 0, sent at 30 ms: 30 ms longer from the schedule."""
    found = figures(request([(100, TEXT)], sent_ns=30 * MS), "strict")
    assert (found["e2el"], found["schedule_e2el"]) == (70.0, 100.0)


def test_distribution_uses_linear_percentiles_and_population_deviation() -> None:
    """1, 2, 3, 4 by hand."""
    found = distribution([4.0, 1.0, 3.0, 2.0])
    assert (found.count, found.mean, found.median, found.min, found.max) == (4, 2.5, 2.5, 1.0, 4.0)
    assert found.std == pytest.approx(math.sqrt(1.25))
    assert (found.p90, found.p95, found.p99) == pytest.approx((3.7, 3.85, 3.97))


def test_every_metric_has_a_value_or_none() -> None:
    """Names of METRICS are read from a summary; a name that is none is refused."""
    summary = summarize([CHAT], facts(), "strict")
    assert value(summary, "total_token_throughput") == pytest.approx(12 / 0.14)
    assert value(summary, "success_rate") == 1.0
    assert value(summary, "mean_ttft_ms") == 100.0
    assert value(summary, "p99_schedule_e2el_ms") == 140.0
    assert all(value(summary, name) is not None for name in METRICS)
    empty = summarize([], facts(), "strict")
    assert (value(empty, "success_rate"), value(empty, "p99_tpot_ms")) == (None, None)
    with pytest.raises(KeyError):
        value(summary, "mean_ttft")


def test_the_direction_of_each_metric() -> None:
    """Rates are better high, times better low."""
    assert all(
        METRICS[name].better == ("lower" if name.endswith(("_ms", "_s")) and "throughput" not in name else "higher")
        for name in METRICS
    )
    assert {f"{statistic}_{latency}_ms" for statistic in ("mean", "p99") for latency in LATENCIES} <= METRICS.keys()


def test_goodput_counts_the_requests_within_all_limits() -> None:
    """A limit is kept at its very value; a request of one token has no TPOT to break one; failures are not good."""
    single = request([(100, TEXT)], usage_output_tokens=1)
    records = [CHAT, single, failure("reset", [(1, TEXT)])]

    def goodput(definitions: str = "strict", **limits: float) -> float | None:
        return summarize(records, facts(duration_ms=2000), definitions, goodput=limits).goodput

    assert goodput() is None
    assert goodput("vllm-0.33", ttft=100.0) == 1.0
    assert goodput("vllm-0.33", ttft=99.9) == 0.0
    assert goodput("vllm-0.33", ttft=100.0, tpot=19.9) == 0.5
    assert goodput("vllm-0.33", e2el=130.0) == 0.5
    assert goodput("strict", ttft=100.0, tpot=20.0) == pytest.approx(2 / 0.14)


def test_percentiles_on_request() -> None:
    """Beside the usual ones; a distribution without them says so by KeyError."""
    values = distribution(list(range(101)), (25.0, 99.9))
    assert values.percentiles == {"25": 25.0, "99.9": pytest.approx(99.9)}
    assert [percentile(values, asked) for asked in (25.0, 50.0, 90.0, 95.0, 99.0)] == [25.0, 50.0, 90.0, 95.0, 99.0]
    assert [percentile_name(asked) for asked in (5.0, 99.99)] == ["5", "99.99"]
    with pytest.raises(KeyError):
        percentile(values, 10.0)
    summary = summarize([CHAT], facts(), "strict", percentiles=(10.0,))
    assert summary.latency["ttft"].percentiles == {"10": 100.0}


def test_faults_are_counted_by_kind_with_the_first_message() -> None:
    """The most frequent first."""

    def failed(kind: RequestErrorKind, message: str) -> RequestRecord:
        return request([], error=RequestError(kind=kind, message=message))

    records = [failed("dns", "a"), failed("reset", "b"), CHAT, failed("reset", "c")]
    assert faults(records) == (Fault(kind="reset", count=2, first="b"), Fault(kind="dns", count=1, first="a"))
    assert faults([CHAT]) == ()


def test_the_timing_of_each_record() -> None:
    """None for one that failed, in the order of the records."""
    first, second = timed([failure("reset", []), CHAT], facts(), "strict")
    assert first is None
    assert second is not None
    assert (second.output_tokens, second.latency_ms["ttft"]) == (3, (100.0,))
