"""The keys of `vllm bench serve --save-result`."""

from __future__ import annotations

import json

import msgspec

from servetune.interop.vllm_json import detailed, result
from servetune.metrics import summarize, timed
from servetune.records import Load, RampUp, RequestError
from tests.unit.test_metrics import CHAT, facts, failure

FAILED = msgspec.structs.replace(
    failure("reset", [], index=0, sent_ns=None, local_prompt_tokens=8), error=RequestError(kind="reset", message="gone")
)
RECORDS = [msgspec.structs.replace(CHAT, index=1, sent_ns=40_000_000, text="abc"), FAILED]


def test_figures_have_the_names_of_vllm() -> None:
    """With what is known besides, percentiles on request, goodput and the ramp."""
    summary = summarize(RECORDS, facts(), "vllm-0.33", goodput={"ttft": 500.0}, percentiles=(99.9,))
    load = Load(max_concurrency=4, ramp_up=RampUp(strategy="linear", start_rps=1.0, end_rps=2.0))
    found = result(summary, load, {"model_id": "m", "tp": "1"})
    expected = {
        "model_id": "m", "tp": "1", "num_prompts": 2, "completed": 1, "failed": 1, "request_rate": "inf",
        "max_concurrency": 4, "ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 2.0,
        "duration": 1.0, "request_goodput": 1.0, "mean_ttft_ms": 60.0, "p99_ttft_ms": 60.0, "p99.9_ttft_ms": 60.0,
        "errors_by_kind": {"reset": 1},
    }  # fmt: skip
    assert expected.items() <= json.loads(json.dumps(found)).items()


def test_a_constant_rate_has_no_ramp() -> None:
    """And without limits there is no goodput."""
    found = result(summarize([], facts(), "strict"), Load(request_rate=2.0), {})
    assert (found["request_rate"], found["request_goodput"], "ramp_up_strategy" in found) == (2.0, None, False)
    assert "mean_ttft_ms" not in found


def test_the_lists_of_save_detailed() -> None:
    """In the order of the requests, in seconds; a failure has zeros and its error."""
    found = detailed(RECORDS, timed(RECORDS, facts(), "strict"))
    assert found == {
        "input_lens": [8, 9],
        "output_lens": [0, 3],
        "ttfts": [0, 0.06],
        "itls": [[], [0.02, 0.02]],
        "latencies": [0, 0.1],
        "start_times": [0.0, 0.04],
        "generated_texts": ["", "abc"],
        "errors": ["reset: gone", ""],
    }
