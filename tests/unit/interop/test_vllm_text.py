"""Reading printed blocks of several tools and versions."""

from __future__ import annotations

import pytest

from servetune.interop.vllm_text import ParsedBlock, broken_identities, parse_block, parse_blocks

OLD = """
some log line before it
============ Serving Benchmark Result ============
Successful requests:                     20
Benchmark duration (s):                  4.00
Total input tokens:                      1000
Total generated tokens:                  401
Request throughput (req/s):              5.00
Output token throughput (tok/s):         100.25
Peak output token throughput (tok/s):    140.00
Peak concurrent requests:                20.00
Total Token throughput (tok/s):          350.25
---------------Time to First Token----------------
Mean TTFT (ms):                          41.09
Median TTFT (ms):                        39.17
P99 TTFT (ms):                           83.82
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          11.34
==================================================
after it
"""

SGLANG = """
============ Serving Benchmark Result ============
Backend:                                 sglang-oai
Traffic request rate:                    inf
Max reqeuest concurrency:                32
Successful requests:                     20
Total input tokens:                      1000
Total generated tokens (retokenized):    399
Total token throughput (tok/s):          350.25
Concurrency:                             18.11
----------------End-to-End Latency----------------
Mean E2E Latency (ms):                   2000.50
---------------Inter-Token Latency----------------
Mean ITL (ms):                           15.00
P95 ITL (ms):                            20.00
Max ITL (ms):                            90.00
==================================================
"""


def test_a_block_of_vllm_011() -> None:
    """Every figure, from a text with other lines around it."""
    assert parse_block(OLD) == ParsedBlock(
        completed=20,
        duration_s=4.0,
        total_input_tokens=1000,
        total_output_tokens=401,
        request_throughput=5.0,
        output_throughput=100.25,
        peak_output_throughput=140.0,
        peak_concurrency=20.0,
        total_token_throughput=350.25,
        latency_ms={"ttft": {"mean": 41.09, "median": 39.17, "p99": 83.82}, "tpot": {"mean": 11.34}},
    )


def test_a_block_of_sglang() -> None:
    """Its own lines are kept, its old typing error is known, an infinite rate is no number."""
    found = parse_block(SGLANG)
    assert found is not None
    assert (found.max_concurrency, found.request_rate, found.total_token_throughput) == (32, None, 350.25)
    assert found.latency_ms == {"e2el": {"mean": 2000.5}, "itl": {"mean": 15.0, "p95": 20.0, "max": 90.0}}
    assert found.other == (
        "Backend: sglang-oai",
        "Traffic request rate: inf",
        "Total generated tokens (retokenized): 399",
        "Concurrency: 18.11",
    )


def test_lines_of_newer_versions_and_ours() -> None:
    """Failures, limits, rate, definitions; tabs and spaces do not matter."""
    text = """
    ====== Serving Benchmark Result ======
    Successful requests:\t3
    Failed requests: 1
    Definitions: strict
    Maximum request concurrency: 8
    Request rate configured (RPS): 2.50
    Median E2EL (ms): 7.25
    Odd line: x
    """
    found = parse_block(text)
    assert found is not None
    assert (found.completed, found.failed, found.definitions) == (3, 1, "strict")
    assert (found.max_concurrency, found.request_rate) == (8, 2.5)
    assert found.latency_ms == {"e2el": {"median": 7.25}}
    assert found.other == ("Odd line: x",)


def test_several_blocks_and_none() -> None:
    """A block that has no end is ended by the next one."""
    cut = OLD.replace("=" * 50, "")
    assert [found.completed for found in parse_blocks(OLD + SGLANG + cut + OLD)] == [20] * 4
    assert parse_block("nothing here\n=====") is None
    assert parse_blocks("") == []


def test_identities_hold_for_a_sound_block() -> None:
    """Missing figures are not judged."""
    found = parse_block(OLD)
    assert found is not None
    assert broken_identities(found) == []
    assert broken_identities(ParsedBlock(completed=3, total_input_tokens=5, duration_s=1.0)) == []
    assert broken_identities(ParsedBlock(completed=3, request_throughput=3.0)) == []


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (
            "Total Token throughput (tok/s): 360.00",
            "total token throughput: 360.00 is printed, 1401 / 4.00 s",
        ),
        ("Request throughput (req/s): 5.10", "request throughput"),
        ("Output token throughput (tok/s): 100.00", "output token throughput"),
    ],
)
def test_identities_find_a_changed_figure(line: str, name: str) -> None:
    """The message holds both figures."""
    lines = [line if text.startswith(line.partition(":")[0]) else text for text in OLD.splitlines()]
    found = parse_block("\n".join(lines))
    assert found is not None
    (broken,) = broken_identities(found)
    assert broken.startswith(name)


def test_rounding_of_a_short_duration_is_allowed_for() -> None:
    """0.01 s may have been 0.0051 or 0.0149 s."""
    assert broken_identities(ParsedBlock(completed=1, request_throughput=190.0, duration_s=0.01)) == []
    assert broken_identities(ParsedBlock(completed=1, request_throughput=300.0, duration_s=0.01))


def test_goodput_and_our_own_latencies() -> None:
    """All sections that servetune prints are read back."""
    found = parse_block(
        "== Serving Benchmark Result ==\nRequest goodput (req/s): 4.50\nP99.9 Schedule E2EL (ms): 7.00\n"
        "Mean TTFOT (ms): 1.00\nMean ICL (ms): 2.00\n====="
    )
    assert found is not None
    assert (found.request_goodput, found.other) == (4.5, ())
    assert found.latency_ms == {"schedule_e2el": {"p99.9": 7.0}, "ttfot": {"mean": 1.0}, "icl": {"mean": 2.0}}
