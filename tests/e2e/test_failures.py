"""Every failure of an engine ends as a value with its cause; the study goes on and leaves no process."""

from __future__ import annotations

import msgspec
import pytest

from servetune.records import Axis, Completed, Failed, Results
from servetune.study import load_results
from tests.e2e.mock_studies import Call, mock_study, write_study

CAUSES = {
    "refuse-start": ("ready", "refused"),
    "oom-start": ("ready", "out-of-memory"),
    "oom-load:4": ("load", "out-of-memory-under-load"),
    "crash-mid-stream:4": ("load", "crashed"),
    "hang-start": ("ready", "hung"),
    "hang-load:0": ("warmup", "hung"),
    "http-500": ("warmup", "all-requests-failed"),
    "http-429": ("warmup", "all-requests-failed"),
    "broken-sse": ("warmup", "all-requests-failed"),
}
HARMLESS = ("slow-start:0.5", "split-utf8", "no-usage", "spawn-escapee")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """One study whose only axis is the way to fail."""
    tmp_path = tmp_path_factory.mktemp("failures")
    study = mock_study(axes=(Axis(option="fail", values=("", *CAUSES, *HARMLESS)),))
    engine = msgspec.structs.replace(study.engines[0], ready_timeout_s=2.5)
    load = msgspec.structs.replace(study.workloads[0].load, idle_timeout_s=1.0)
    workloads = tuple(msgspec.structs.replace(spec, load=load) for spec in study.workloads)
    study = msgspec.structs.replace(study, engines=(engine,), workloads=workloads)
    folder = tmp_path / "out"
    call = Call(["tune", str(write_study(tmp_path, study)), "--out", str(folder)], tmp_path)
    assert call.wait(240) == 0, call.text()
    assert call.processes() == []
    return load_results(folder)


@pytest.mark.parametrize("mode", CAUSES)
def test_a_failure_is_a_value_with_its_cause(results: Results, mode: str) -> None:
    """Stage and cause are right, and the evidence is not empty."""
    outcomes = [trial.outcome for trial in results.trials if trial.config.options.get("fail") == mode]

    assert outcomes
    for outcome in outcomes:
        assert isinstance(outcome, Failed)
        assert (outcome.stage, outcome.cause) == CAUSES[mode]
        assert outcome.evidence.strip()


@pytest.mark.parametrize("mode", HARMLESS)
def test_odd_but_sound_servers_are_measured(results: Results, mode: str) -> None:
    """A slow start, split characters, missing usage, a process that starts others are no failures."""
    outcomes = [trial.outcome for trial in results.trials if trial.config.options.get("fail") == mode]

    assert outcomes
    assert all(isinstance(outcome, Completed) for outcome in outcomes)
