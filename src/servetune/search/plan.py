"""What a staged search can come to: its steps before anything is measured, with the fewest and most launches.

Pure. Later steps start from whichever config leads then; here they are shown on each engine's first config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from servetune import space
from servetune.records import Catalogue, Config, EngineSpec, Record, Study
from servetune.search.ledger import VALIDATION
from servetune.search.purse import looks
from servetune.search.staged import ENGINE_STEP

FEWEST_BLOCKS = 2
"""A decision needs two launches of each config."""


class Span(Record, frozen=True, kw_only=True):
    """Fewest and most of something."""

    least: int = 0
    most: int = 0

    def plus(self, other: Span) -> Span:
        """Return both together."""
        return Span(least=self.least + other.least, most=self.most + other.most)


class Refused(Record, frozen=True, kw_only=True):
    """A config that is never started."""

    config: Config
    reason: str


class PlannedStep(Record, frozen=True, kw_only=True):
    """One step of the search, or its validation."""

    name: str
    title: str
    engine: str = ""
    """The step is made only if this engine leads; "" for every study."""
    configs: tuple[Config, ...]
    """The incumbent first."""
    refused: tuple[Refused, ...] = ()
    left_out: int = 0
    """Configs for which budget.max_configs leaves no room."""
    launches: Span = Span()
    runs: Span = Span()


class Totals(Record, frozen=True, kw_only=True):
    """What the whole study can come to, if its time budget lasts."""

    launches: Span
    runs: Span


def planned(study: Study, catalogues: Mapping[str, Catalogue]) -> tuple[PlannedStep, ...]:
    """Return the steps of `study`: choosing the engine, the options of each engine that may lead, the validation."""
    starting = space.starting_configs(study)
    kept = starting if study.budget.max_configs is None else starting[: max(1, study.budget.max_configs)]
    steps = []
    if len(starting) > 1:
        left_out = len(starting) - len(kept)
        title = "Engine and model variant"
        steps.append(_step(study, PlannedStep(name=ENGINE_STEP, title=title, configs=kept, left_out=left_out)))
    for spec in study.engines:
        leader = next((config for config in kept if config.engine == spec.name), None)
        if leader is not None:
            steps += _option_steps(study, spec, leader, catalogues[spec.name], entered=kept)
    return (*steps, _validation(study))


def _option_steps(
    study: Study, spec: EngineSpec, leader: Config, catalogue: Catalogue, *, entered: Sequence[Config]
) -> list[PlannedStep]:
    most = study.budget.max_configs
    room = None if most is None else max(0, most - len(entered))
    steps = []
    for stage in space.stages(spec, catalogue):
        wished = space.neighbours(leader, stage, catalogue)
        reasons = [(config, space.forbidden(config, catalogue)) for config in wished]
        allowed = [config for config, reason in reasons if reason is None]
        kept = allowed if room is None else allowed[:room]
        room = None if room is None else room - len(kept)
        step = PlannedStep(
            name=stage.option,
            title=f"{stage.family}: {stage.option}" if stage.family else stage.option,
            engine=spec.name,
            configs=(leader, *kept),
            refused=tuple(Refused(config=config, reason=reason) for config, reason in reasons if reason is not None),
            left_out=len(allowed) - len(kept),
        )
        steps.append(_step(study, step))
    return steps


def _step(study: Study, step: PlannedStep) -> PlannedStep:
    """Return `step` with its launches and runs counted; a step without a challenger launches nothing."""
    count = len(step.configs) if len(step.configs) > 1 else 0
    launches = Span(least=FEWEST_BLOCKS * count, most=looks(study) * count)
    runs = _times(launches, study.budget.runs_per_launch)
    return msgspec.structs.replace(step, launches=launches, runs=runs)


def _validation(study: Study) -> PlannedStep:
    """Return the published comparison; it is not made when nothing was adopted."""
    launches = Span(most=2 * looks(study))
    return PlannedStep(
        name=VALIDATION,
        title="Fresh launches of baseline and winner on every workload",
        configs=(study.baseline,),
        launches=launches,
        runs=_times(launches, len(study.workloads) * study.budget.runs_per_launch),
    )


def _times(span: Span, factor: int) -> Span:
    return Span(least=span.least * factor, most=span.most * factor)


def totals(steps: Sequence[PlannedStep]) -> Totals:
    """Add the steps up; of the engines that may lead, the one with the fewest and the one with the most count."""
    always = [step for step in steps if not step.engine]
    engines = dict.fromkeys(step.engine for step in steps if step.engine)
    each = [[step for step in steps if step.engine == engine] for engine in engines]
    return Totals(
        launches=_sum([step.launches for step in always]).plus(
            _widest([_sum([step.launches for step in group]) for group in each])
        ),
        runs=_sum([step.runs for step in always]).plus(
            _widest([_sum([step.runs for step in group]) for group in each])
        ),
    )


def _sum(spans: Sequence[Span]) -> Span:
    return Span(least=sum(span.least for span in spans), most=sum(span.most for span in spans))


def _widest(spans: Sequence[Span]) -> Span:
    return Span(
        least=min((span.least for span in spans), default=0), most=max((span.most for span in spans), default=0)
    )
