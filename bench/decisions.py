"""Proves the error rate of decisions by simulation: `python bench/decisions.py [--studies N] [--cell NAME]`.

Whole studies (search, validation, conclusion) run on the mock engine's law in process. Each one has three variants of
the weights and three options of two to four values; which of them gain, and how much, is the cell's. Exit code 1 if
a promise of docs/decisions/0002-error-rate.md does not hold.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
from scipy.special import betaincinv

from servetune import validate
from servetune.engines.catalogue import load_catalogue
from servetune.engines.mock_law import Law, Shape, sample, speed, throughput, value_text
from servetune.records import (
    Axis,
    Budget,
    ClientFacts,
    Command,
    Completed,
    Conclusion,
    Config,
    EngineSpec,
    Load,
    Measurement,
    Objective,
    OptionValue,
    Run,
    StepResult,
    Study,
    Summary,
    Trial,
    Variant,
    WorkloadSpec,
)
from servetune.search import staged

CATALOGUES = {"mock": load_catalogue("mock")}
SHAPE = Shape(requests=8, input_tokens=32, output_tokens=8)
VARIANTS = ("", "fp8", "awq")
OPTIONS: dict[str, tuple[OptionValue, ...]] = {
    "max_num_seqs": (32, 8, 64, 128),
    "max_num_batched_tokens": (1024, 256, 4096),
    "kv_tokens": (16384, 4096, 65536, 32768),
    "block_size": (16, 8, 32),
    "async_scheduling": (False, True),
    "attention_backend": ("reference", "flash"),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One kind of truth, simulated many times."""

    name: str
    gains: tuple[float, ...] = ()
    """True gain of one value of that many options (or variants), drawn at random."""
    losses: bool = False
    """Every value that does not gain loses 0 to 5 %."""
    uneven: float = 1.0
    """Noise of every second config, as a multiple."""
    drift: float = 0.0
    """Change of the machine's speed over 100 launches."""
    launch_noise: float = 0.010
    run_noise: float = 0.011
    seconds: float = 1e9
    """Budget; a launch of the baseline takes 10 s."""
    required: tuple[str, ...] = ("wrong",)
    """Promises that are checked in this cell: wrong, power, coverage."""


CELLS = (
    Cell(name="no gain"),
    Cell(name="+5 % in one option", gains=(0.05,), required=("wrong", "power", "coverage")),
    Cell(name="+2 % in one option", gains=(0.02,)),
    Cell(name="+3, +4, +5 % in three", gains=(0.03, 0.04, 0.05), required=("wrong", "coverage")),
    Cell(name="+5 %, all others lose", gains=(0.05,), losses=True, required=("wrong", "coverage")),
    Cell(name="no gain, noise x2.5 in half", uneven=2.5, required=()),
    Cell(name="+5 %, noise x2.5 in half", gains=(0.05,), uneven=2.5, required=()),
    Cell(name="no gain, drift 10 %", drift=0.10),
    Cell(name="+5 %, drift 10 %", gains=(0.05,), drift=0.10, required=("wrong", "power", "coverage")),
    Cell(name="+5 %, noise 5 %", gains=(0.05,), launch_noise=0.035, run_noise=0.035),
    Cell(name="no gain, 250 s", seconds=250.0),
    Cell(name="+5 %, 400 s", gains=(0.05,), seconds=400.0, required=("wrong", "coverage")),
)


@dataclass(kw_only=True)
class Tally:
    """What the studies of one cell came to."""

    studies: int = 0
    wrong: int = 0
    """Studies in which a step adopted a config that truly gains nothing."""
    found: int = 0
    """Studies in which the recommended config has every option that gains at least 5 % (or the largest gain)."""
    published: int = 0
    covered: int = 0
    errors: list[float] = field(default_factory=list)
    """Published gain minus true gain."""
    widths: list[float] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)


def studies(cell: Cell, count: int, first: int = 0) -> Iterator[tuple[Study, Law]]:
    """Yield `count` random studies of a cell, each with its truth."""
    for seed in range(first, first + count):
        rng = random.Random(f"{cell.name}/{seed}")
        names = rng.sample(list(OPTIONS), 3)
        axes = [Axis(option=name, values=OPTIONS[name][: rng.randint(2, 4)]) for name in names]
        changes = [("variant", value) for value in VARIANTS[1:]]
        changes += [(axis.option, value_text(value)) for axis in axes for value in axis.values[1:]]
        gains: dict[str, dict[str, float]] = {}
        if cell.losses:
            for name, text in changes:
                gains.setdefault(name, {})[text] = 1 - 0.05 * rng.random()
        one_of_each = [rng.choice(list(group)) for _, group in itertools.groupby(changes, key=lambda change: change[0])]
        chosen = rng.sample(one_of_each, len(cell.gains))
        for (name, text), gain in zip(chosen, cell.gains, strict=True):
            gains.setdefault(name, {})[text] = 1 + gain
        noise = {"launch_noise": cell.launch_noise, "run_noise": cell.run_noise}
        engine = EngineSpec(
            name="mock", options=dict(noise), axes=tuple(axes), variants=tuple(Variant(name=name) for name in VARIANTS)
        )
        study = Study(
            name=f"{cell.name} {seed}",
            model="mock",
            baseline=Config(engine="mock", options=dict(sorted(noise.items()))),
            engines=(engine,),
            workloads=(WorkloadSpec(name="chat", kind="chat", num_prompts=100),),
            objective=Objective(on="chat"),
            budget=Budget(seconds=cell.seconds, max_repeats=5),
            seed=seed,
        )
        yield study, Law(structural=False, gains=gains)


def simulate(study: Study, law: Law, cell: Cell) -> tuple[tuple[StepResult, ...], Conclusion, int]:
    """Run one study to its end on the law; returns its steps, conclusion and number of launches."""
    history: list[Trial] = []
    while (wanted := staged.next_measurement(study, CATALOGUES, history)) is not None:
        history.append(_measured(wanted, study, law, cell, len(history)))
    while (wanted := validate.next_measurement(study, CATALOGUES, history)) is not None:
        history.append(_measured(wanted, study, law, cell, len(history)))
    steps = staged.steps(study, CATALOGUES, history)
    return steps, validate.conclude(study, CATALOGUES, history), len(history)


def _measured(wanted: Measurement, study: Study, law: Law, cell: Cell, number: int) -> Trial:
    config = wanted.config
    if cell.uneven != 1 and _is_uneven(repr(config)):
        noisy = {name: float(config.options[name]) * cell.uneven for name in ("launch_noise", "run_noise")}
        config = msgspec.structs.replace(config, options={**config.options, **noisy})
    launch = f"{study.name}/{number}"
    drift = math.exp(cell.drift * number / 100)
    runs = tuple(
        _run(request.workload, request.repeat, drift * sample(law, config, SHAPE, launch=launch, run=place))
        for place, request in enumerate(wanted.runs)
    )
    usual = throughput(law, study.baseline, SHAPE)
    measured_s = sum(5.0 * usual / run.summary.total_token_throughput for run in runs)
    return Trial(
        number=number,
        measurement=wanted,
        outcome=Completed(),
        runs=runs,
        command=Command(argv=()),
        wall_s=5.0 + measured_s,
    )


@functools.lru_cache(maxsize=4096)
def _is_uneven(name: str) -> bool:
    return random.Random(name).random() < 0.5


_CLIENT = ClientFacts(
    stamps="kernel",
    workers=1,
    epoch_ns=0,
    duration_ns=2_000_000_000,
    clock_step_ns=0,
    cpu_share=0.1,
    max_loop_lag_ms=1.0,
    late_sends=0,
    multi_event_reads=0.0,
    unresolved_ttft=0.0,
    peak_open=8,
)
_LOAD = Load()


def _run(workload: str, repeat: int, throughput: float) -> Run:
    summary = Summary(
        definitions="strict",
        completed=100,
        failed=0,
        duration_s=2.0,
        total_input_tokens=3200,
        total_output_tokens=800,
        request_throughput=50.0,
        output_throughput=throughput / 5,
        total_token_throughput=throughput,
        peak_output_throughput=None,
        peak_concurrency=None,
        latency={},
        token_source="usage",
    )
    return Run(workload=workload, repeat=repeat, seed=0, load=_LOAD, summary=summary, client=_CLIENT)


def count(cell: Cell, number: int) -> Tally:
    """Simulate `number` studies of a cell."""
    tally = Tally()
    for study, law in studies(cell, number):
        steps, conclusion, launches = simulate(study, law, cell)
        tally.studies += 1
        tally.launches.append(launches)
        tally.wrong += any(
            verdict.adopted and speed(law, verdict.config) <= speed(law, verdict.against)
            for step in steps
            for verdict in step.verdicts
        )
        true_gain = speed(law, conclusion.recommended) / speed(law, conclusion.baseline) - 1
        tally.found += bool(cell.gains) and _has_largest(law, conclusion.recommended, max(cell.gains))
        if conclusion.gain is not None:
            tally.published += 1
            tally.covered += conclusion.gain.low <= true_gain <= conclusion.gain.high
            tally.errors.append(conclusion.gain.estimate - true_gain)
            tally.widths.append(conclusion.gain.high - conclusion.gain.low)
    return tally


def _has_largest(law: Law, config: Config, largest: float) -> bool:
    chosen = {**config.options, "variant": config.variant}
    return any(
        table.get(value_text(chosen[name])) == 1 + largest for name, table in law.gains.items() if name in chosen
    )


def upper(hits: int, total: int) -> float:
    """One-sided 95 % Clopper-Pearson upper bound of a share."""
    return 1.0 if hits == total else float(betaincinv(hits + 1, total - hits, 0.95))


def lower(hits: int, total: int) -> float:
    """One-sided 95 % Clopper-Pearson lower bound of a share."""
    return 0.0 if hits == 0 else float(betaincinv(hits, total - hits + 1, 0.05))


def failures(
    cell: Cell, tally: Tally, *, wrong: float = 0.06, power: float = 0.85, coverage: float = 0.93
) -> list[str]:
    """Return which promises of the cell are broken, by the bounds given."""
    broken = []
    if "wrong" in cell.required and upper(tally.wrong, tally.studies) > wrong:
        broken.append(f"{cell.name}: wrong adoptions up to {upper(tally.wrong, tally.studies):.1%}, not {wrong:.0%}")
    if "power" in cell.required and tally.found / tally.studies < power:
        broken.append(f"{cell.name}: the gain is found in {tally.found / tally.studies:.1%}, not {power:.0%}")
    if "coverage" in cell.required and lower(tally.covered, tally.published) < coverage:
        broken.append(f"{cell.name}: coverage down to {lower(tally.covered, tally.published):.1%}, not {coverage:.0%}")
    return broken


def row(cell: Cell, tally: Tally) -> str:
    """One line of the table."""
    parts = [
        f"{cell.name:<28}",
        f"{tally.wrong / tally.studies:7.2%} <= {upper(tally.wrong, tally.studies):5.2%}",
        f"{tally.found / tally.studies:7.1%}" if cell.gains else "      -",
    ]
    if tally.published >= 30:
        bias = statistics.fmean(tally.errors)
        parts += [
            f"{tally.covered / tally.published:7.2%} >= {lower(tally.covered, tally.published):6.2%}",
            f"{statistics.median(tally.widths):6.2%}",
            f"{bias:+7.3%}",
        ]
    else:
        parts += [f"{'-':>17}", f"{'-':>6}", f"{'-':>7}"]
    return "  ".join([*parts, f"{statistics.fmean(tally.launches):5.1f}"])


HEAD = (
    f"{'cell':<28}  {'wrong (bound)':>16}  {'found':>7}  {'coverage (bound)':>17}  {'width':>6}  {'bias':>7}  launches"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 if a promise does not hold."""
    parser = argparse.ArgumentParser(description="error rate, power and coverage of the decisions, by simulation")
    parser.add_argument("--studies", type=int, default=2000, help="studies a cell (2000)")
    parser.add_argument("--cell", action="append", help="only cells whose name contains this")
    chosen = parser.parse_args(arguments)
    print(HEAD)
    broken: list[str] = []
    begin = time.monotonic()
    for cell in CELLS:
        if chosen.cell and not any(part in cell.name for part in chosen.cell):
            continue
        tally = count(cell, chosen.studies)
        print(row(cell, tally), flush=True)
        broken += failures(cell, tally)
    print(f"{chosen.studies} studies a cell, {time.monotonic() - begin:.0f} s", *broken, sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
