"""What a reader must know about a measurement, rule by rule, at both sides of each threshold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from servetune import findings
from servetune.records import (
    Config,
    Finding,
    Load,
    RequestError,
    RequestRecord,
    Summary,
    Variant,
)
from tests.unit.laboratory_sample import CLIENT, distribution, summary

PAGES = Path(__file__).parents[2] / "docs" / "findings"


def _of(
    made: Summary | None = None,
    *,
    load: Load | None = None,
    records: tuple[RequestRecord, ...] = (),
    options: dict[str, Any] | None = None,
    **client: Any,
) -> list[Finding]:
    facts = msgspec.structs.replace(CLIENT, **client)
    config = Config(engine="one", options=options or {})
    return list(findings.of_run(made or summary(), facts, load=load or Load(), config=config, records=records))


def _codes(*arguments: Any, **more: Any) -> list[str]:
    return [finding.code for finding in _of(*arguments, **more)]


def test_a_sound_run_has_no_finding() -> None:
    """100 requests, an idle client, no failure."""
    assert _of() == []


@pytest.mark.parametrize(
    ("client", "load", "code"),
    [
        ({"cpu_share": 0.91}, Load(), ["client-bound"]),
        ({"cpu_share": 0.89}, Load(), []),
        ({"cpu_share": 1.5, "workers": 2}, Load(), []),
        ({"max_loop_lag_ms": 21.0, "stamps": "user"}, Load(), ["client-bound"]),
        ({"max_loop_lag_ms": 21.0}, Load(), []),
        ({"late_sends": 2}, Load(request_rate=5.0), ["client-bound"]),
        ({"late_sends": 1}, Load(request_rate=5.0), []),
        ({"late_sends": 2}, Load(), []),
        ({"late_merged_reads": 0.006, "cpu_wait_share": 0.5}, Load(), ["client-bound"]),
        ({"late_merged_reads": 0.005, "cpu_wait_share": 0.5}, Load(), []),
        ({"slot_gap_p99_ms": 1e9}, Load(), []),
        ({"clock_step_ns": -1_000_001}, Load(), ["clock-step"]),
        ({"clock_step_ns": 1_000_000}, Load(), []),
        ({"unresolved_ttft": 0.011}, Load(), ["unresolved-ttft"]),
        ({"unresolved_ttft": 0.01}, Load(), []),
    ],
)
def test_what_the_client_says_about_itself(client: dict[str, Any], load: Load, code: list[str]) -> None:
    """Limits of the client, of its clock and of its sight."""
    assert _codes(load=load, **client) == code


@pytest.mark.parametrize(
    ("mean_ms", "gap_ms", "codes"),
    [(1000.0, 51.0, ["client-bound"]), (1000.0, 49.0, []), (100.0, 21.0, ["client-bound"]), (100.0, 19.0, [])],
)
def test_slots_that_wait_long_for_their_next_request(mean_ms: float, gap_ms: float, codes: list[str]) -> None:
    """Over 20 ms and over 5 % of a request's duration."""
    assert _codes(summary(latency={"e2el": distribution(mean_ms)}), slot_gap_p99_ms=gap_ms) == codes


def test_a_client_that_had_no_processor_says_so() -> None:
    """Beside the sign that it touched the figures; waiting alone is no finding."""
    (found,) = _of(late_merged_reads=0.1, cpu_wait_share=0.5)
    assert "waited for a processor during 50% of the run" in found.evidence
    (found,) = _of(late_merged_reads=0.1, cpu_wait_share=0.05)
    assert "processor" not in found.evidence
    assert _of(cpu_wait_share=0.5) == []


@pytest.mark.parametrize(("failed", "severity"), [(0, None), (1, "warning"), (12, "bars")])
def test_failed_requests_are_told_and_many_bar(failed: int, severity: str | None) -> None:
    """Below 90 % of success a config cannot win."""
    found = _of(summary(failed=failed, errors={"reset": failed}))

    assert [finding.severity for finding in found] == ([severity] if severity else [])
    assert all(f"reset {failed}" in finding.evidence for finding in found)


def test_failures_without_a_kind_are_still_told() -> None:
    """And a run without any request is no failure, only short."""
    assert "no kind" in _of(summary(failed=1))[0].evidence
    assert _codes(summary(completed=0)) == ["short-run"]


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (summary(duration_s=60.0, peak_output_throughput=751.0), ["pathological"]),
        (summary(duration_s=60.0, peak_output_throughput=749.0), []),
        (summary(duration_s=59.0, peak_output_throughput=751.0), []),
        (summary(latency={"tpot": distribution(10.0, 51.0)}), ["pathological"]),
        (summary(latency={"tpot": distribution(10.0, 49.0)}), []),
        (summary(latency={"tpot": distribution(10.0, 51.0, count=19)}), []),
        (summary(duration_s=0.9), ["short-run"]),
        (summary(completed=9), ["short-run"]),
        (summary(completed=10, duration_s=1.0), []),
    ],
)
def test_runs_whose_mean_says_little(made: Summary, code: list[str]) -> None:
    """Surges, tails, and runs that are too small."""
    assert _codes(made) == code


@pytest.mark.parametrize(
    ("decoding", "in_flight", "options", "evidence"),
    [
        (230, 1000, {}, "256 is a common default"),
        (230, 700, {}, None),
        (170, 1000, {}, None),
        (300, 1000, {}, None),
        (60, 128, {"max_num_seqs": 64}, "max_num_seqs is 64"),
        (60, 100, {"max_num_seqs": 64}, None),
        (30, 128, {"max_num_seqs": 64}, None),
        (90, 128, {"max_num_seqs": 64}, None),
        (4, 12, {"parallel": 4, "max_num_seqs": 64}, "parallel is 4"),
    ],
)
def test_a_cap_shows_in_littles_law(
    decoding: int, in_flight: int, options: dict[str, Any], evidence: str | None
) -> None:
    """As many requests decode as the cap allows, while many more wait."""
    made = summary(output_throughput=decoding * 10.0, latency={"tpot": distribution(100.0)})

    found = _of(made, options=options, peak_open=in_flight)

    assert [finding.code for finding in found] == (["cap-suspected"] if evidence else [])
    assert not evidence or evidence in found[0].evidence


@pytest.mark.parametrize("decoding", [216, 224, 233, 234, 235, 237])
def test_published_runs_under_a_default_cap_of_256_are_recognised(decoding: int) -> None:
    """Decoding requests of seven published vLLM runs with 1000 in flight."""
    made = summary(output_throughput=decoding * 10.0, latency={"tpot": distribution(100.0)})

    assert _codes(made, peak_open=1000) == ["cap-suspected"]


@pytest.mark.parametrize("decoding", [190, 638, 746, 928])
def test_published_runs_of_engines_without_that_cap_are_not(decoding: int) -> None:
    """SGLang and TensorRT-LLM on the same load."""
    made = summary(output_throughput=decoding * 10.0, latency={"tpot": distribution(100.0)})

    assert _codes(made, peak_open=1000) == []


@pytest.mark.parametrize(("made", "code"), [(98, ["output-mismatch"]), (102, ["output-mismatch"]), (99, []), (101, [])])
def test_the_server_must_generate_what_was_asked(made: int, code: list[str]) -> None:
    """Only whole requests with counts of the server are compared."""
    whole = RequestRecord(index=0, scheduled_ns=0, requested_tokens=100, usage_output_tokens=made)
    broken = RequestRecord(
        index=1,
        scheduled_ns=0,
        requested_tokens=100,
        usage_output_tokens=1,
        error=RequestError(kind="reset", message=""),
    )
    silent = RequestRecord(index=2, scheduled_ns=0, requested_tokens=100)

    assert _codes(records=(whole, broken, silent)) == code


def test_two_sides_must_do_the_same_work() -> None:
    """Output tokens a request may differ by 1 %."""
    old, same, less = (summary(total_output_tokens=tokens) for tokens in (1000, 1009, 980))

    assert findings.of_comparison("chat", [old], [same]) == ()
    (found,) = findings.of_comparison("chat", [old], [less])
    assert found.code == "unequal-output"
    assert found.evidence == "chat: 10.0 and 9.8 output tokens a request"
    assert findings.of_comparison("chat", [old], [summary(completed=0)]) == ()
    assert findings.of_comparison("chat", [], []) == ()


def test_a_winner_that_answers_later_is_told() -> None:
    """Means over the runs of each side; means and tails of TTFT and TPOT."""
    old = [summary(latency={"ttft": distribution(100.0, 200.0), "tpot": distribution(10.0)}) for _ in range(2)]
    new = [summary(latency={"ttft": distribution(109.0, 230.0), "tpot": distribution(12.0)})]

    found = findings.of_comparison("chat", old, new)

    assert [finding.code for finding in found] == ["latency-worse", "latency-worse"]
    assert found[0].evidence == "chat: TTFT p99 200.0 to 230.0 ms (+15%)"
    assert found[1].evidence == "chat: TPOT mean 10.0 to 12.0 ms (+20%), p99 10.0 to 12.0 ms (+20%)"


def test_other_weights_than_the_baselines_are_told() -> None:
    """By name, or as the model as it is."""
    found = findings.quality_not_checked(Config(engine="one"), Config(engine="one", variant="fp8"))

    assert found is not None
    assert found.evidence == "the baseline's weights are the model as it is, the winner's fp8"
    assert findings.quality_not_checked(Config(engine="one"), Config(engine="two")) is None


def test_weights_that_were_quantised_twice_are_told() -> None:
    """With the variant's note, or the format."""
    found = findings.requantised(
        (
            Variant(name="a"),
            Variant(name="b", quantize="Q4_0"),
            Variant(name="c", quantize="F16", note="from Q4_1"),
        )
    )

    assert found is not None
    assert found.evidence == "b (Q4_0), c (from Q4_1)"
    assert findings.requantised((Variant(name="a"),)) is None


def test_an_interval_that_reaches_zero_confirms_nothing() -> None:
    """The published interval has the last word."""
    found = findings.unconfirmed_gain(-0.004, 0.031)

    assert found is not None
    assert found.evidence == "fresh launches give -0.4% to +3.1%"
    assert findings.unconfirmed_gain(0.001, 0.031) is None


@pytest.mark.parametrize(("share", "is_told"), [(0.0, False), (0.25, False), (0.5, True)])
def test_a_busy_host_is_told(share: float, is_told: bool) -> None:
    """A quarter of the processor time is the limit."""
    found = findings.host_busy(share, cores=2)

    assert (found is not None) == is_told
    assert found is None or "50% of the time of 2 cores" in found.evidence


def test_what_the_budget_left_out_is_told() -> None:
    """The evidence names it, the advice how to go on."""
    found = findings.budget_ended("not measured: mock threads=2")

    assert found.evidence == "not measured: mock threads=2"
    assert "goes on from here" in found.advice


@pytest.mark.parametrize("code", findings.CODES)
def test_every_code_has_its_page_in_one_form(code: str) -> None:
    """Four headings, each with text."""
    page = (PAGES / f"{code}.md").read_text()

    assert page.startswith(f"# {code}\n")
    assert re.findall(r"^## (.+)\n\n\S", page, flags=re.MULTILINE) == [
        "What it means",
        "Why it matters",
        "Example",
        "What to do",
    ]


def test_every_code_that_is_used_is_known() -> None:
    """Findings of the module's own text."""
    source = Path(findings.__file__).read_text()

    assert set(re.findall(r'code="([a-z-]+)"', source)) == set(findings.CODES)
