"""A Study that is written as a study file and read again is the same Study."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servetune import metrics, studyfile
from servetune.records import (
    Axis,
    Budget,
    Config,
    EngineSpec,
    Limits,
    Load,
    Objective,
    Study,
    Variant,
    WorkloadSpec,
)
from tests.unit.study_texts import CATALOGUES, KINDS

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(lambda text: text.strip())
HUB = st.sampled_from(["some/model", "org/Model-1.5B", "gpt2"])
PARTS = st.floats(min_value=0.001, max_value=1e6)
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "max_num_seqs": st.integers(1, 1024),
    "ratio": st.floats(0, 1),
    "flash": st.booleans(),
    "block": st.sampled_from([1, 8, 16]),
    "label": st.text(st.characters(codec="utf-8"), max_size=12),
    "threads": st.integers(1, 64),
}
UPPER = [name for name in metrics.METRICS if name.startswith("p99_")]


@st.composite
def engines(draw: st.DrawFn) -> EngineSpec:
    """An engine with fixed options, axes of other options, variants and environment."""
    names = draw(st.permutations(list(OPTIONS)))
    fixed, varied = names[: draw(st.integers(0, 3))], names[3 : 3 + draw(st.integers(0, 3))]
    return EngineSpec(
        name="alpha",
        command=draw(st.none() | NAMES),
        python=draw(st.none() | NAMES),
        options={name: draw(OPTIONS[name]) for name in sorted(fixed)},
        axes=tuple(
            Axis(option=name, values=tuple(draw(st.lists(OPTIONS[name], min_size=2, max_size=4, unique=True))))
            for name in varied
            if name != "flash"
        ),
        variants=tuple(draw(st.lists(variants(), max_size=3, unique_by=lambda variant: variant.name))),
        env=draw(st.dictionaries(st.text("ABC_é x", min_size=1, max_size=4), TEXTS.filter(lambda t: "\0" not in t))),
        ready_timeout_s=draw(st.floats(0.5, 1000)),
    )


@st.composite
def variants(draw: st.DrawFn) -> Variant:
    """A variant from other weights, by quantisation, or the study's model itself."""
    model = draw(st.none() | HUB)
    quantize = draw(st.none() | st.sampled_from(["F16", "Q4_0"])) if model is None else None
    return Variant(name=draw(NAMES), model=model, quantize=quantize, note=draw(st.just("") | TEXTS))


WORKLOADS = st.builds(
    WorkloadSpec,
    name=NAMES,
    kind=st.just("random"),
    num_prompts=st.integers(1, 10**6),
    params=st.fixed_dictionaries(
        {}, optional={"input_len": st.integers(1, 100_000), "output_len": st.integers(-(2**63) + 1, 2**63 - 1)}
    ),
    load=st.builds(
        Load,
        request_rate=st.none() | PARTS,
        burstiness=PARTS,
        max_concurrency=st.none() | st.integers(1, 1000),
        warmup_requests=st.integers(0, 10),
        idle_timeout_s=PARTS,
        total_timeout_s=PARTS,
    ),
    seed=st.none() | st.integers(0, 2**63 - 1),
)


@st.composite
def studies(draw: st.DrawFn) -> Study:
    """Any study with one engine that a study file can express."""
    engine = draw(engines())
    workloads = tuple(draw(st.lists(WORKLOADS, min_size=1, max_size=3, unique_by=lambda spec: spec.name)))
    own = {"max_num_seqs": draw(st.integers(33, 64))} if draw(st.booleans()) else {}
    variant = draw(st.sampled_from([one.name for one in engine.variants])) if engine.variants else ""
    return Study(
        name=draw(NAMES),
        model=draw(HUB),
        baseline=Config(engine="alpha", variant=variant, options=dict(sorted({**engine.options, **own}.items()))),
        engines=(engine,),
        workloads=workloads,
        objective=Objective(
            goal="maximize",
            metric="output_throughput",
            on=draw(st.sampled_from([spec.name for spec in workloads])),
            min_gain=draw(st.floats(0, 1)),
            confidence=draw(st.floats(0.51, 0.999)),
        ),
        limits=Limits(
            bounds=draw(st.dictionaries(st.sampled_from(UPPER), PARTS, max_size=3)), max_loss=draw(st.floats(0, 1))
        ),
        budget=Budget(
            seconds=draw(st.sampled_from([0.5, 90.0, 5400.0, 7200.0]) | st.floats(0.1, 1e6)),
            max_repeats=draw(st.integers(2, 9)),
            max_configs=draw(st.none() | st.integers(1, 9)),
            runs_per_launch=draw(st.integers(1, 3)),
        ),
        definitions=draw(st.sampled_from(list(metrics.PROFILES))),
        quality=draw(st.sampled_from(["report", "required"])),
        tokenizer=draw(st.none() | HUB),
        seed=draw(st.integers(0, 2**63 - 1)),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(studies())
def test_dump_then_parse_is_the_same_study(study: Study) -> None:
    """Every text, number and choice survives, whatever characters it holds."""
    text = studyfile.dump(study)
    assert studyfile.parse(text, catalogues=CATALOGUES, kinds=KINDS) == study, text
