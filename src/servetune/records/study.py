"""The question, the machine, and everything that was found."""

from __future__ import annotations

from typing import Literal

from servetune.records.config import Config, EngineSpec
from servetune.records.trial import Trial
from servetune.records.value import Record
from servetune.records.verdict import Conclusion, StepResult
from servetune.records.workload import WorkloadSpec


class Objective(Record, frozen=True, kw_only=True):
    """What makes one config better than another."""

    metric: str = "total_token_throughput"
    goal: Literal["maximize", "minimize"] = "maximize"
    on: str = ""
    """Name of the workload it is measured on."""
    min_gain: float = 0.01
    confidence: float = 0.95
    """Per study: at most 1 - confidence is the probability that any adopted step truly gains nothing."""


class Limits(Record, frozen=True, kw_only=True):
    """What a config must keep to be allowed to win."""

    bounds: dict[str, float] = {}
    """Metric -> bound; latencies are upper bounds, rates and success_rate lower bounds."""
    max_loss: float = 0.05
    """Largest loss of the objective's metric on any declared workload."""


class Budget(Record, frozen=True, kw_only=True):
    """What the study may cost."""

    seconds: float = 6 * 3600.0
    max_repeats: int = 5
    max_configs: int | None = None
    runs_per_launch: int = 1


class Study(Record, frozen=True, kw_only=True):
    """One question: model x engines x options x workloads x objective x limits x budget."""

    name: str
    model: str
    baseline: Config
    engines: tuple[EngineSpec, ...]
    workloads: tuple[WorkloadSpec, ...]
    objective: Objective
    limits: Limits = Limits()
    budget: Budget = Budget()
    definitions: str = "strict"
    quality: Literal["report", "required"] = "report"
    tokenizer: str | None = None
    """Folder, GGUF file or hub name; None: the model's own."""
    search: str = "staged"
    seed: int = 0


class HostFacts(Record, frozen=True, kw_only=True):
    """The machine that measured."""

    hostname: str
    os: str
    kernel: str
    cpu: str
    cores: int
    memory_gib: float
    memory_available_gib: float | None = None
    cpu_flags: tuple[str, ...] = ()
    """Instruction set extensions that matter here (avx, avx2, fma, f16c, bmi2, avx512f, asimd, ...)."""
    python: str
    servetune: str
    packages: dict[str, str] = {}
    load_average: float | None = None
    gpus: tuple[str, ...] = ()


class Results(Record, frozen=True, kw_only=True):
    """Everything a report is made of: a pure function of the store."""

    study: Study
    host: HostFacts | None
    trials: tuple[Trial, ...]
    steps: tuple[StepResult, ...]
    conclusion: Conclusion
    dropped: tuple[str, ...] = ()
    """What earlier measurements of a changed study file no longer fit, and why."""
    elapsed_s: float = 0.0
