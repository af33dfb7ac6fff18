"""The law of the mock engine: what every option does to throughput and latency, exactly.

Times of one step of the scheduler (mock_scheduler.py), in seconds, for a config with weights variant v:

    step = (host + weights + eager + generating + prompts) / (speed x gains)

    host        = host_s x (0.15 with async_scheduling, else 1)
    weights     = weights_s x variants[v].weights        the weights are read once a step
    eager       = eager_s, in steps with prompt tokens and, without graph_capture, in all steps
    generating  = sequence_s x sequences + context_token_s x KV tokens read x (0.6 with flash attention, else 1)
    prompts     = prompt tokens x variants[v].prompts / prefill_rate
    gains       = product of gains[option][value] over the config's values, 1 where nothing is declared

Bounds of a step: max_num_seqs sequences, max_num_batched_tokens tokens, and a KV space of
kv_tokens - activation_share x max_num_batched_tokens tokens in blocks of block_size; a full space preempts the newest
sequence, which is computed again later.

Noise: the speed of a launch is multiplied by exp(launch_noise x z1), and in each run (server: busy period) of it by
exp(run_noise x z2), with z1 and z2 standard normal and fixed by (seed, launch) and (seed, launch, run).

This module knows no clock, process or socket; the only file it needs is the option catalogue.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import msgspec

from servetune.engines.catalogue import load_catalogue
from servetune.engines.mock_scheduler import Costs, Limits, Scheduler, Step
from servetune.engines.mock_scheduler import Sequence as Stream
from servetune.records import Axis, Config, OptionValue, Record


class VariantLaw(Record, frozen=True, kw_only=True):
    """How one variant of the weights compares with the plain ones."""

    weights: float = 1.0
    """Factor of the time to read the weights."""
    prompts: float = 1.0
    """Factor of the time of a prompt token."""


_VARIANTS = {
    "fp8": VariantLaw(weights=0.6, prompts=0.8),
    "awq": VariantLaw(weights=0.4, prompts=1.3),
    "int8": VariantLaw(weights=0.6),
}


class Law(Record, frozen=True, kw_only=True):
    """The constants of the law. Times are seconds."""

    host_s: float = 0.003
    weights_s: float = 0.010
    eager_s: float = 0.001
    sequence_s: float = 0.0001
    context_token_s: float = 2e-7
    prefill_rate: float = 20_000.0
    """Prompt tokens/s while nothing else costs time."""
    async_host_share: float = 0.15
    flash_share: float = 0.6
    activation_share: float = 0.25
    variants: dict[str, VariantLaw] = msgspec.field(default_factory=lambda: dict(_VARIANTS))
    """Any other name ("", bf16, ...) has the plain weights."""
    structural: bool = True
    """False: options and variants act through `gains` alone, as if each had its default value."""
    gains: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    """Option (or "variant") -> value as text (true, 64, fp8) -> exact factor of the speed."""


DEFAULT_LAW = Law()


class Shape(Record, frozen=True, kw_only=True):
    """A workload as far as the law sees it; `concurrency` None: all requests arrive at once."""

    requests: int
    input_tokens: int
    output_tokens: int
    concurrency: int | None = None


class Figures(Record, frozen=True, kw_only=True):
    """What the law says about one config and shape, without noise."""

    total_token_throughput: float
    output_throughput: float
    request_throughput: float
    duration_s: float
    mean_ttft_ms: float
    mean_tpot_ms: float
    mean_e2el_ms: float
    steps: int
    preemptions: int


class NoRoom(ValueError):
    """The KV space cannot hold a single sequence: the engine would be out of memory at its start."""


def all_options(options: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    """Return the value of every option: those of `options`, else the catalogue's default."""
    return {**_defaults(), **options}


@functools.cache
def _defaults() -> dict[str, OptionValue]:
    catalogue = load_catalogue("mock")
    return {name: option.default for name, option in catalogue.options.items() if option.default is not None}


def value_text(value: OptionValue) -> str:
    """Return an option's value as the keys of Law.gains write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def speed(law: Law, config: Config) -> float:
    """Return the declared factor of the speed: the option `speed` times every declared gain."""
    options = all_options(config.options)
    chosen = {**options, "variant": config.variant}
    declared = (table.get(value_text(chosen.get(name, "")), 1.0) for name, table in law.gains.items())
    return float(options["speed"]) * math.prod(declared)


def resolve(law: Law, config: Config) -> tuple[Limits, Costs]:
    """Return what `config` means for the scheduler; raises NoRoom if the KV space is too small to start."""
    values = all_options(config.options if law.structural else {})
    variant = law.variants.get(config.variant, VariantLaw()) if law.structural else VariantLaw()
    block_tokens, budget = int(values["block_size"]), int(values["max_num_batched_tokens"])
    kv_blocks = int(int(values["kv_tokens"]) - law.activation_share * budget) // block_tokens
    if kv_blocks < 1:
        raise NoRoom(f"kv_tokens {values['kv_tokens']} leave no block beside max_num_batched_tokens {budget}")
    limits = Limits(
        max_sequences=int(values["max_num_seqs"]),
        token_budget=budget,
        kv_blocks=kv_blocks,
        block_tokens=block_tokens,
        chunked_prefill=bool(values["chunked_prefill"]),
        shortest_first=values["scheduling_policy"] == "shortest",
    )
    faster = speed(law, config)
    host_share = law.async_host_share if values["async_scheduling"] else 1.0
    context_share = law.flash_share if values["attention_backend"] == "flash" else 1.0
    costs = Costs(
        step_s=(law.host_s * host_share + law.weights_s * variant.weights) / faster,
        eager_s=law.eager_s / faster,
        sequence_s=law.sequence_s / faster,
        context_token_s=law.context_token_s * context_share / faster,
        prompt_token_s=variant.prompts / law.prefill_rate / faster,
        graphs=bool(values["graph_capture"]),
    )
    return limits, costs


def figures(law: Law, config: Config, shape: Shape) -> Figures:
    """Return throughput and latency without noise, by running the scheduler in virtual time.

    Raises NoRoom where the engine would not start, or would refuse the shape's requests as too long.
    """
    limits, costs = resolve(law, config)
    return _figures(limits, costs, shape)


@functools.lru_cache(maxsize=4096)
def _figures(limits: Limits, costs: Costs, shape: Shape) -> Figures:
    scheduler = Scheduler(limits, costs)
    if not scheduler.fits(shape.input_tokens, shape.output_tokens):
        raise NoRoom(f"{shape.input_tokens} + {shape.output_tokens} tokens exceed the KV space of {limits.kv_tokens}")
    simulation = _Simulation(scheduler, shape)
    return simulation.run()


class _Simulation:
    """A closed loop of requests against the scheduler, in virtual time.

    A client needs a moment to follow one answer with its next request, and requests come one after the other: one that
    finds the engine idle begins a step, the others just miss it and are seen by the step after.
    """

    def __init__(self, scheduler: Scheduler, shape: Shape) -> None:
        self.scheduler = scheduler
        self.shape = shape
        self.now_s = 0.0
        self.steps = 0
        self.arrivals: list[float] = []
        self.firsts: list[float] = [0.0] * shape.requests
        self.lasts: list[float] = [0.0] * shape.requests
        self._due = min(shape.concurrency or shape.requests, shape.requests)

    def run(self) -> Figures:
        while self._due or not self.scheduler.is_idle:
            if self.scheduler.is_idle:
                self._arrive(1)
            step = self.scheduler.plan()
            self._arrive(self._due)
            self._advance(step)
        return self._summary()

    def _arrive(self, count: int) -> None:
        for _ in range(count):
            self.scheduler.add(Stream(len(self.arrivals), self.shape.input_tokens, self.shape.output_tokens))
            self.arrivals.append(self.now_s)
        self._due -= count

    def _advance(self, step: Step) -> None:
        self.now_s += step.duration_s
        self.steps += 1
        for stream in self.scheduler.finish(step):
            number = int(str(stream.key))
            if stream.generated == 1:
                self.firsts[number] = self.now_s
            if stream.generated == stream.output_tokens:
                self.lasts[number] = self.now_s
                self._due += len(self.arrivals) + self._due < self.shape.requests

    def _summary(self) -> Figures:
        shape, duration_s = self.shape, self.now_s
        count = shape.requests
        ttft = sum(map(float.__sub__, self.firsts, self.arrivals)) / count
        generation = sum(map(float.__sub__, self.lasts, self.firsts)) / count
        return Figures(
            total_token_throughput=count * (shape.input_tokens + shape.output_tokens) / duration_s,
            output_throughput=count * shape.output_tokens / duration_s,
            request_throughput=count / duration_s,
            duration_s=duration_s,
            mean_ttft_ms=ttft * 1e3,
            mean_tpot_ms=generation / max(shape.output_tokens - 1, 1) * 1e3,
            mean_e2el_ms=(ttft + generation) * 1e3,
            steps=self.steps,
            preemptions=self.scheduler.preemptions,
        )


def throughput(law: Law, config: Config, shape: Shape) -> float:
    """Return the total token throughput (input and output tokens/s) without noise."""
    return figures(law, config, shape).total_token_throughput


def launch_factor(config: Config, launch: int | str) -> float:
    """Return the factor of the speed that launch number `launch` has over its whole life."""
    options = all_options(config.options)
    return math.exp(float(options["launch_noise"]) * _normal(f"{options['seed']}/{launch}"))


def run_factor(config: Config, launch: int | str, run: int | str) -> float:
    """Return the factor of the speed in run (busy period) `run` of that launch, without the launch's own."""
    options = all_options(config.options)
    return math.exp(float(options["run_noise"]) * _normal(f"{options['seed']}/{launch}/{run}"))


def sample(law: Law, config: Config, shape: Shape, *, launch: int | str, run: int | str) -> float:
    """Return the total token throughput that this run of this launch measures: the law's value with its noise.

    The same arguments give the same value; the law's value is cached, so that a call costs microseconds.
    """
    return throughput(law, config, shape) * launch_factor(config, launch) * run_factor(config, launch, run)


def _normal(name: str) -> float:
    """Return a standard normal number that is fixed by `name`."""
    bits = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 12
    return NormalDist().inv_cdf((bits + 0.5) / 2**52)


def optimum(law: Law, axes: Sequence[Axis], shape: Shape, *, variants: Sequence[str] = ("",)) -> tuple[Config, Figures]:
    """Return the config with the highest total token throughput among all combinations, and its figures.

    Combinations that would not start are left out; raises NoRoom if none is left.
    """
    best: tuple[Config, Figures] | None = None
    for variant, *values in itertools.product(variants, *(axis.values for axis in axes)):
        options = dict(sorted(zip((axis.option for axis in axes), values, strict=True)))
        config = Config(engine="mock", variant=str(variant), options=options)
        try:
            found = figures(law, config, shape)
        except NoRoom:
            continue
        if best is None or found.total_token_throughput > best[1].total_token_throughput:
            best = (config, found)
    if best is None:
        raise NoRoom("no combination of these values starts")
    return best
