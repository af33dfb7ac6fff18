"""One whole study on a real engine: from the command to the report."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from servetune import weights
from servetune.records import Budget, Config, EngineSpec, Load, Objective, Study, Variant, WorkloadSpec
from servetune.study import load_results
from tests.e2e.mock_studies import Call, write_study

LOAD = Load(idle_timeout_s=15.0, total_timeout_s=15.0)
VARIANTS = (Variant(name="Q4_1"), Variant(name="Q4_0", quantize="Q4_0"))
STUDY = Study(
    name="real",
    model="smollm2-135m-instruct",
    baseline=Config(engine="llamacpp", variant="Q4_1", options={"ctx_size": 2048, "threads": 1}),
    engines=(EngineSpec(name="llamacpp", variants=VARIANTS, options={"ctx_size": 2048, "threads": 1}),),
    workloads=(
        WorkloadSpec(name="chat", kind="chat", num_prompts=6, params={"input_mean": 24, "output_mean": 8}, load=LOAD),
        WorkloadSpec(name="long", kind="random", num_prompts=2, params={"input_len": 64, "output_len": 4}, load=LOAD),
    ),
    objective=Objective(on="chat"),
    budget=Budget(seconds=25, max_repeats=2),
)


@pytest.fixture
def model_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The model and its variant, fetched and made outside the study; shared between runs where the caller wishes."""
    monkeypatch.setenv("SERVETUNE_CACHE", os.environ.get("SERVETUNE_TEST_CACHE") or str(tmp_path / "models"))
    weights.variant_file(weights.demo_model(lambda _: None), "Q4_0", lambda _: None)


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("model_cache")
def test_a_study_of_llama_cpp_ends_in_a_report(tmp_path: Path) -> None:
    """Real launches, real tokens, a conclusion, and no process left; which variant wins is not asserted."""
    folder = tmp_path / "out"

    call = Call(["tune", str(write_study(tmp_path, STUDY)), "--out", str(folder)], tmp_path)

    assert call.wait(120) == 0, call.text()
    assert call.processes() == []
    results = load_results(folder)
    assert results.conclusion.finished
    assert len(results.trials) >= 3
    for run in (run for trial in results.trials for run in trial.runs):
        assert run.summary.failed == 0
        assert run.summary.token_source == "usage"
        assert run.client.stamps == "kernel"
    assert json.loads((folder / "report.json").read_text())["schema"]
