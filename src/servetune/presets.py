"""Studies that need no study file: the demo, one model, one endpoint. From values to a Study, nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from servetune.records import (
    Axis,
    Budget,
    Config,
    EngineSpec,
    Load,
    Objective,
    Study,
    Variant,
    WorkloadSpec,
)

DEMO_MODEL = "smollm2-135m-instruct"
"""Name under which weights.resolve knows the model that a Python package ships."""
DEMO_LONGEST_S = 20.0
"""A request of the demo that takes longer is cut, so that a configuration that crawls does not eat the budget."""
CONCURRENCIES = (1, 4, 16, 64)
"""Requests in flight that an endpoint is tried with."""
REQUANTISED = "re-quantised from Q4_1, in which the model is shipped: only its speed is meaningful, not its quality"


def demo(prompts: int = 12) -> Study:
    """The study of `servetune tune --demo`: four quantisations of a small model on llama.cpp, then three options.

    `prompts` is the number of requests of a chat run, from a probe of this machine (see cli/tune.py).
    """
    load = Load(idle_timeout_s=DEMO_LONGEST_S, total_timeout_s=DEMO_LONGEST_S)
    engine = EngineSpec(
        name="llamacpp",
        options={"ctx_size": 2048, "parallel": 4, "threads": 1},
        axes=(
            Axis(option="threads", values=(1, 2)),
            Axis(option="cache_type_k", values=("f16", "q8_0")),
            Axis(option="repack", values=(True, False)),
        ),
        variants=(
            Variant(name="F16", quantize="F16", note=REQUANTISED),
            Variant(name="Q8_0", quantize="Q8_0", note=REQUANTISED),
            Variant(name="Q4_1", note="as shipped"),
            Variant(name="Q4_0", quantize="Q4_0", note=REQUANTISED),
        ),
    )
    return Study(
        name="demo",
        model=DEMO_MODEL,
        baseline=Config(engine="llamacpp", variant="F16", options={"ctx_size": 2048, "parallel": 4, "threads": 1}),
        engines=(engine,),
        workloads=(
            # About 48 tokens in: the model's chat template adds some 30 to each.
            WorkloadSpec(
                name="chat", kind="chat", num_prompts=prompts, params={"input_mean": 20, "output_mean": 16}, load=load
            ),
            WorkloadSpec(
                name="long-prompt",
                kind="random",
                num_prompts=max(2, prompts // 4),
                params={"input_len": 200, "output_len": 8},
                load=load,
            ),
            WorkloadSpec(
                name="long-answer",
                kind="random",
                num_prompts=max(2, prompts // 4),
                params={"input_len": 16, "output_len": 48},
                load=load,
            ),
        ),
        objective=Objective(metric="total_token_throughput", on="chat", min_gain=0.02, confidence=0.95),
        budget=Budget(seconds=240, max_repeats=4, max_configs=9),
    )


def for_gguf(path: str, *, minutes: float, axes: tuple[Axis, ...]) -> Study:
    """A study of one GGUF file on llama.cpp: its own options on the built-in conversations, checked on two shapes."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(path).stem).strip("-.")[:60] or "model"
    return Study(
        name=name,
        model=path,
        baseline=Config(engine="llamacpp"),
        engines=(EngineSpec(name="llamacpp", axes=axes),),
        workloads=_three_workloads(prompts=64),
        objective=Objective(on="chat"),
        budget=Budget(seconds=60 * minutes),
    )


def for_endpoint(url: str, *, minutes: float, prompts: int = 4) -> Study:
    """A study of a server that already runs: only the number of requests in flight is varied, from one.

    `prompts` is the number of requests of a run, from a probe of the server (see cli/tune.py).
    """
    return Study(
        name="endpoint",
        model="",
        baseline=Config(engine="endpoint", options={"max_concurrency": 1}),
        engines=(
            EngineSpec(
                name="endpoint",
                url=url,
                options={"max_concurrency": 1},
                axes=(Axis(option="max_concurrency", values=CONCURRENCIES),),
            ),
        ),
        workloads=(WorkloadSpec(name="chat", kind="chat", num_prompts=prompts),),
        objective=Objective(on="chat"),
        budget=Budget(seconds=60 * minutes),
    )


def _three_workloads(prompts: int) -> tuple[WorkloadSpec, ...]:
    return (
        WorkloadSpec(name="chat", kind="chat", num_prompts=prompts),
        WorkloadSpec(
            name="long-prompt", kind="random", num_prompts=prompts // 4, params={"input_len": 1024, "output_len": 64}
        ),
        WorkloadSpec(
            name="long-answer", kind="random", num_prompts=prompts // 4, params={"input_len": 64, "output_len": 256}
        ),
    )
