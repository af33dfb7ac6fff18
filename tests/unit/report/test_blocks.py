"""The text block of each profile."""

from __future__ import annotations

import msgspec

from servetune.metrics import distribution
from servetune.records import Load, RampUp, Summary
from servetune.report.blocks import block

SUMMARY = Summary(
    definitions="vllm-0.11",
    completed=1000,
    failed=2,
    duration_s=106.82,
    total_input_tokens=217393,
    total_output_tokens=201605,
    request_throughput=9.3615,
    output_throughput=1887.334,
    total_token_throughput=3922.467,
    peak_output_throughput=4616.0,
    peak_concurrency=1000,
    latency={
        "ttft": distribution([100.0, 300.0]),
        "tpot": distribution([20.0]),
        "itl": distribution([20.0]),
        "e2el": distribution([500.0]),
    },
    token_source="usage",
)

OLD = """\
============ Serving Benchmark Result ============
Successful requests:                     1000
Benchmark duration (s):                  106.82
Total input tokens:                      217393
Total generated tokens:                  201605
Request throughput (req/s):              9.36
Output token throughput (tok/s):         1887.33
Peak output token throughput (tok/s):    4616.00
Peak concurrent requests:                1000.00
Total Token throughput (tok/s):          3922.47
---------------Time to First Token----------------
Mean TTFT (ms):                          200.00
Median TTFT (ms):                        200.00
P99 TTFT (ms):                           298.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          20.00
Median TPOT (ms):                        20.00
P99 TPOT (ms):                           20.00
---------------Inter-token Latency----------------
Mean ITL (ms):                           20.00
Median ITL (ms):                         20.00
P99 ITL (ms):                            20.00
=================================================="""


def test_vllm_011_has_the_lines_of_its_time() -> None:
    """Fifty signs wide, figures from column 41, no failed requests, no end-to-end latency."""
    assert block(SUMMARY, Load()) == OLD


def test_vllm_033_counts_failures_and_writes_total_small() -> None:
    """The only differences, with the load's lines where there is a limit or a rate."""
    new = block(msgspec.structs.replace(SUMMARY, definitions="vllm-0.33"), Load(max_concurrency=64, request_rate=2.5))
    expected = OLD.replace("Total Token", "Total token").splitlines()
    expected[2:2] = [
        "Failed requests:                         2",
        "Maximum request concurrency:             64",
        "Request rate configured (RPS):           2.50",
    ]
    assert new == "\n".join(expected)


def test_strict_names_itself_and_adds_end_to_end_latency() -> None:
    """A reader must know by which rules the figures were made."""
    lines = block(msgspec.structs.replace(SUMMARY, definitions="strict"), Load()).splitlines()
    assert lines[3] == "Definitions:                             strict"
    assert lines[-5] == "----------------End-to-end Latency----------------"
    assert lines[-4] == "Mean E2EL (ms):                          500.00"


def test_latencies_without_a_value() -> None:
    """Vllm prints 0.00, strict leaves the section out."""
    empty = msgspec.structs.replace(SUMMARY, latency={}, peak_output_throughput=None, peak_concurrency=None)
    assert "Mean TTFT (ms):                          0.00" in block(empty, Load())
    strict = block(msgspec.structs.replace(empty, definitions="strict"), Load())
    assert "TTFT" not in strict
    assert "Peak concurrent requests:                0.00" in strict


def test_other_latencies_and_percentiles() -> None:
    """In the order asked for; percentiles that a distribution was made with."""
    latency = {**SUMMARY.latency, "ttft": distribution([0.0, 100.0], (25.0, 99.9))}
    strict = msgspec.structs.replace(SUMMARY, definitions="strict", latency=latency)
    lines = block(strict, Load(), latencies=("icl", "ttft"), percentiles=(25.0, 90.0, 99.9)).splitlines()
    assert lines[-7:] == [
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):                          50.00",
        "Median TTFT (ms):                        50.00",
        "P25 TTFT (ms):                           25.00",
        "P90 TTFT (ms):                           90.00",
        "P99.9 TTFT (ms):                         99.90",
        "==================================================",
    ]
    assert "ICL" not in "".join(lines)
    old = block(msgspec.structs.replace(SUMMARY, latency={}), Load(), latencies=("e2el",), percentiles=(12.5,))
    assert old.splitlines()[-2] == "P12.5 E2EL (ms):                         0.00"


def test_goodput_stands_behind_the_request_throughput() -> None:
    """Only where limits were asked for."""
    lines = block(msgspec.structs.replace(SUMMARY, goodput=4.5), Load()).splitlines()
    assert lines[6] == "Request goodput (req/s):                 4.50"


def test_a_ramp_is_named_by_strict() -> None:
    """Vllm prints no rate then."""
    load = Load(ramp_up=RampUp(strategy="linear", start_rps=1, end_rps=10))
    assert "ramp" not in block(SUMMARY, load)
    strict = block(msgspec.structs.replace(SUMMARY, definitions="strict"), load)
    assert "Request rate ramp-up (RPS):              1.00 to 10.00, linear" in strict
