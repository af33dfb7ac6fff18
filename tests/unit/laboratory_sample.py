"""An imaginary laboratory for tests of decisions: what each config would measure, and what fails, in a few words."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from servetune import space, validate
from servetune.records import (
    Axis,
    Budget,
    Catalogue,
    ClientFacts,
    Command,
    Completed,
    Conclusion,
    Config,
    Distribution,
    EngineSpec,
    Failed,
    Finding,
    Load,
    Measurement,
    Objective,
    OptionSpec,
    OptionValue,
    Run,
    RunRequest,
    StepResult,
    Study,
    Summary,
    Trial,
    Variant,
    WorkloadSpec,
)
from servetune.search import staged

CLIENT = ClientFacts(
    stamps="kernel",
    workers=1,
    epoch_ns=0,
    duration_ns=10**9,
    clock_step_ns=0,
    cpu_share=0.1,
    max_loop_lag_ms=1.0,
    late_sends=0,
    multi_event_reads=0.0,
    unresolved_ttft=0.0,
    peak_open=8,
)


def option(name: str, family: str, default: OptionValue | None, **more: Any) -> OptionSpec:
    """One option of the imaginary engines."""
    kind: Any = "bool" if isinstance(default, bool) else "int"
    return OptionSpec(name=name, type=kind, family=family, doc="For tests.", default=default, **more)


CATALOGUE = Catalogue(
    engine="one",
    options={
        "seqs": option("seqs", "batching", 32),
        "tokens": option("tokens", "batching", 1024),
        "overlap": option("overlap", "scheduling", False, requires={"seqs": (32, 64)}),
        "threads": option("threads", "cpu", None),
    },
)
CATALOGUES = {"one": CATALOGUE, "two": msgspec.structs.replace(CATALOGUE, engine="two")}


def distribution(mean: float, p99: float | None = None, count: int = 100) -> Distribution:
    """A latency with this mean and tail."""
    tail = mean if p99 is None else p99
    return Distribution(count=count, mean=mean, median=mean, std=0, min=mean, max=tail, p90=mean, p95=mean, p99=tail)


def summary(throughput: float = 100.0, **more: Any) -> Summary:
    """A summary with this total token throughput."""
    values: dict[str, Any] = {
        "definitions": "strict",
        "completed": 100,
        "failed": 0,
        "duration_s": 2.0,
        "total_input_tokens": 1000,
        "total_output_tokens": 1000,
        "request_throughput": 50.0,
        "output_throughput": throughput / 2,
        "total_token_throughput": throughput,
        "peak_output_throughput": None,
        "peak_concurrency": None,
        "latency": {},
        "token_source": "usage",
    }
    return Summary(**{**values, **more})


def study(**more: Any) -> Study:
    """Engine `one` with variants "" and fp8 and two axes; workloads chat (decides) and long."""
    values: dict[str, Any] = {
        "name": "s",
        "model": "m",
        "baseline": Config(engine="one"),
        "engines": (engine(),),
        "workloads": tuple(WorkloadSpec(name=name, kind="chat", num_prompts=100) for name in ("chat", "long")),
        "objective": Objective(on="chat"),
        "budget": Budget(seconds=1e6, max_repeats=4),
    }
    return Study(**{**values, **more})


def engine(
    name: str = "one", *, variants: tuple[str, ...] = ("", "fp8"), **axes: tuple[OptionValue, ...]
) -> EngineSpec:
    """An engine table; without axes it has seqs and tokens."""
    chosen = axes or {"seqs": (32, 64), "tokens": (1024, 4096)}
    return EngineSpec(
        name=name,
        axes=tuple(Axis(option=option, values=values) for option, values in chosen.items()),
        variants=tuple(Variant(name=variant) for variant in variants),
    )


class Lab:
    """Measures what it is told; `factor` maps parts of a label ("fp8", "seqs=64") to factors of the throughput."""

    def __init__(
        self,
        factor: Mapping[str, float] | None = None,
        *,
        noise: float = 0.002,
        wall_s: float = 10.0,
        fails: Callable[[Measurement, int], str | None] = lambda _wanted, _attempt: None,
        change: Callable[[Config, RunRequest, Summary], Summary] = lambda _config, _request, made: made,
        finding: Callable[[Config], tuple[Finding, ...]] = lambda _config: (),
    ) -> None:
        """`fails` gives a cause of failure or None, `change` edits a summary, `finding` adds to runs of a config."""
        self.factor, self.noise, self.wall_s = factor or {}, noise, wall_s
        self.fails, self.change, self.finding = fails, change, finding

    def trial(self, wanted: Measurement, history: list[Trial]) -> Trial:
        """Make one trial."""
        own = [trial for trial in history if trial.measurement.block == wanted.block and trial.config == wanted.config]
        attempt = sum(trial.measurement.step == wanted.step for trial in own)
        cause = self.fails(wanted, attempt)
        outcome: Completed | Failed = Completed()
        if cause is not None:
            outcome = Failed(stage="load", cause=cause, evidence="a log line")
        return Trial(
            number=len(history),
            measurement=wanted,
            outcome=outcome,
            runs=() if cause else tuple(self._run(wanted.config, request, len(history)) for request in wanted.runs),
            command=Command(argv=()),
            wall_s=self.wall_s,
        )

    def _run(self, config: Config, request: RunRequest, number: int) -> Run:
        parts = {*space.label(config).split(), f"{config.variant}@{request.workload}", request.workload}
        value = 100.0 * math.prod(factor for part, factor in self.factor.items() if part in parts)
        name = f"{number}/{request.workload}/{request.repeat}"
        shake = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big") / 2**31 - 1
        made = self.change(config, request, summary(value * math.exp(self.noise * shake)))
        findings = self.finding(config)
        return Run(
            workload=request.workload,
            repeat=request.repeat,
            seed=0,
            load=Load(),
            summary=made,
            client=CLIENT,
            findings=findings,
        )


def search_all(asked: Study, lab: Lab, history: list[Trial] | None = None) -> list[Trial]:
    """Make the trials of the whole search."""
    made = list(history or [])
    while (wanted := staged.next_measurement(asked, CATALOGUES, made)) is not None:
        made.append(lab.trial(wanted, made))
        assert len(made) < 500, "the search does not end"
    return made


def run_all(asked: Study, lab: Lab, history: list[Trial] | None = None) -> list[Trial]:
    """Make the trials of search and validation."""
    made = search_all(asked, lab, history)
    while (wanted := validate.next_measurement(asked, CATALOGUES, made)) is not None:
        made.append(lab.trial(wanted, made))
        assert len(made) < 500, "the validation does not end"
    return made


def concluded(asked: Study, lab: Lab) -> Conclusion:
    """Make all trials and conclude."""
    return validate.conclude(asked, CATALOGUES, run_all(asked, lab))


def steps_of(asked: Study, lab: Lab) -> tuple[StepResult, ...]:
    """Make the trials of the search and return its steps."""
    return staged.steps(asked, CATALOGUES, search_all(asked, lab))
