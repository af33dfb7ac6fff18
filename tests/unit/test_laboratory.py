"""What a study needs is found, or missed with a remedy, before anything is measured."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from servetune.engines.process import free_port
from servetune.errors import HostProblem, UserError
from servetune.laboratory import prepare
from servetune.records import Config, EngineSpec, Event, Notice, Objective, Study, Variant, WorkloadSpec
from servetune.search import staged
from servetune.study import catalogues_of

MISSING = EngineSpec(name="llamacpp", command="/nowhere/llama-server")
STUDY = Study(
    name="s",
    model="m",
    baseline=Config(engine="mock"),
    engines=(EngineSpec(name="mock", variants=(Variant(name="fp8"),)), MISSING),
    workloads=(WorkloadSpec(name="chat", kind="chat", num_prompts=4),),
    objective=Objective(on="chat"),
)


def test_an_engine_that_is_not_installed_is_told_and_never_asked_for(tmp_path: Path) -> None:
    """The study goes on without it; the baseline's plain weights stand beside the listed variant."""
    told: list[Event] = []

    lab = prepare(STUDY, tmp_path, told.append)

    assert [spec.name for spec in lab.study.engines] == ["mock"]
    assert set(lab.models) == {("mock", ""), ("mock", "fp8")}
    assert any(isinstance(event, Notice) and "/nowhere/llama-server" in event.text for event in told)
    wanted = staged.next_measurement(lab.study, catalogues_of(lab.study), ())
    assert wanted is not None
    assert wanted.config.engine == "mock"


def test_a_baseline_that_is_not_installed_ends_the_study(tmp_path: Path) -> None:
    """Gains against nothing cannot be measured; the message names the remedy."""
    study = msgspec.structs.replace(STUDY, baseline=Config(engine="llamacpp"))

    with pytest.raises(HostProblem, match=r"baseline is not installed(.|\n)*/nowhere/llama-server"):
        prepare(study, tmp_path, lambda _: None)


def test_an_endpoint_that_does_not_answer_is_told_at_once(tmp_path: Path) -> None:
    """A dead URL is the environment's fault, said before any launch; its login is masked."""
    spec = EngineSpec(name="endpoint", url=f"http://127.0.0.1:{free_port()}")
    study = msgspec.structs.replace(STUDY, baseline=Config(engine="endpoint"), engines=(spec,))

    with pytest.raises(HostProblem, match=r"refused(.|\n)*start the server"):
        prepare(study, tmp_path, lambda _: None)


def test_a_workload_that_needs_a_tokenizer_says_how_to_name_one(tmp_path: Path) -> None:
    """The mock has no tokenizer of its own."""
    random = WorkloadSpec(name="r", kind="random", num_prompts=4, params={"input_len": 8, "output_len": 2})
    study = msgspec.structs.replace(STUDY, workloads=(*STUDY.workloads, random))

    with pytest.raises(UserError, match=r"workload r: needs a tokenizer \(name one with tokenizer ="):
        prepare(study, tmp_path, lambda _: None)


def test_a_missing_model_file_is_told(tmp_path: Path) -> None:
    """A GGUF path that does not exist is the user's mistake."""
    engine = EngineSpec(name="llamacpp")
    study = msgspec.structs.replace(
        STUDY, model=str(tmp_path / "gone.gguf"), baseline=Config(engine="llamacpp"), engines=(engine,)
    )

    with pytest.raises(UserError, match=r"gone\.gguf"):
        prepare(study, tmp_path, lambda _: None)
