"""`servetune plan`: what a study would do, without starting anything: steps, launches, time, memory, every command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from servetune import engines, presets, weights
from servetune.cli.console import print_json, say, say_heading, say_table
from servetune.cli.progress import duration
from servetune.cli.tune import load_study_file
from servetune.engines.base import Engine
from servetune.errors import HostProblem, UserError
from servetune.masking import mask_command
from servetune.records import (
    Command,
    Config,
    EngineSpec,
    HostFacts,
    Installed,
    ModelFacts,
    Record,
    Study,
    Trial,
)
from servetune.search.plan import PlannedStep, Span, Totals, planned, totals
from servetune.space import find_spec, key, label, variants
from servetune.study import catalogues_of, load_results
from servetune.telemetry import host as telemetry_host

ASSUMED_START_S = 10.0
ASSUMED_RUN_S = 30.0
"""Used where the study's folder holds no measurement yet; said to be assumptions wherever they are shown."""
EXAMPLE_PORT = 8000
"""Stands for the free port that each launch is given."""


class TimeEstimate(Record, frozen=True, kw_only=True):
    """How long the study takes, if its budget lasts."""

    start_s: float
    """From launch to ready, and to stop, for one server."""
    run_s: float
    basis: str
    """What both rest on, in words."""
    is_assumed: bool
    least_s: float
    most_s: float
    """Never more than the budget."""
    budget_s: float


class PlannedLaunch(Record, frozen=True, kw_only=True):
    """One config with the command that would start it."""

    label: str
    config: Config
    command: Command
    """With secrets masked."""
    refused: str = ""
    """Why it could not run on this machine, where that is certain."""


class Weights(Record, frozen=True, kw_only=True):
    """How large one model file is."""

    model: str
    gib: float | None
    """None: not on this machine yet, or not a file."""


class Plan(Record, frozen=True, kw_only=True):
    """Everything that `servetune plan` says."""

    study: str
    steps: tuple[PlannedStep, ...]
    totals: Totals
    time: TimeEstimate
    launches: tuple[PlannedLaunch, ...]
    weights: tuple[Weights, ...]
    memory_available_gib: float | None
    missing: tuple[str, ...]
    """Engines that are not installed, with the remedy."""


_EPILOG = """\b
Examples:
  servetune plan study.toml              check the file and see steps, time and commands
  servetune plan study.toml --json       the same for a program
  servetune plan --demo                  what servetune tune --demo would do
"""


@click.command(epilog=_EPILOG)
@click.argument("study_file", required=False, type=click.Path(path_type=Path), metavar="[STUDY.toml]")
@click.option("--demo", is_flag=True, help="Plan the built-in demonstration study.")
@click.option("--out", type=click.Path(path_type=Path), help="Study folder (default ./studies/NAME).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def plan(*, study_file: Path | None, demo: bool, out: Path | None, as_json: bool) -> None:
    """Check a study and show what it would do: steps, launches, time, memory and every command. Starts nothing."""
    if demo == (study_file is not None):
        raise UserError("servetune plan", "give one of STUDY.toml and --demo", "see --help")
    study = presets.demo() if study_file is None else load_study_file(study_file)
    made = make_plan(study, out or Path("studies") / study.name)
    print_json(made) if as_json else _say_plan(made)
    if len(made.missing) == len(study.engines):
        raise HostProblem("none of the study's engines is installed: " + "; ".join(made.missing))


# --------------------------------------------------------------------------- making the plan


def make_plan(study: Study, folder: Path) -> Plan:
    """Return the plan of `study`, whose earlier measurements (if any) lie in `folder`."""
    steps = planned(study, catalogues_of(study))
    total = totals(steps)
    host = telemetry_host.facts()
    installed = {spec.name: engines.get(spec.name).find(spec) for spec in study.engines}
    found = {name: answer for name, answer in installed.items() if isinstance(answer, Installed)}
    return Plan(
        study=study.name,
        steps=steps,
        totals=total,
        time=estimate(study, total, _earlier_trials(folder)),
        launches=tuple(_launch(study, config, found, host) for config in _configs(steps)),
        weights=tuple(_weights(model) for model in _models(study)),
        memory_available_gib=host.memory_available_gib,
        missing=tuple(
            f"{answer.engine}: {answer.reason} ({answer.remedy})"
            for answer in installed.values()
            if not isinstance(answer, Installed)
        ),
    )


def _earlier_trials(folder: Path) -> tuple[Trial, ...]:
    return load_results(folder).trials if (folder / "study.sqlite").is_file() else ()


def estimate(study: Study, total: Totals, earlier: Sequence[Trial]) -> TimeEstimate:
    """Return how long the study takes, by the means of earlier trials that made all their runs."""
    whole = [trial for trial in earlier if trial.runs]
    run_s, start_s, basis = ASSUMED_RUN_S, ASSUMED_START_S, "assumed, since nothing is measured yet"
    if whole:
        durations = [run.summary.duration_s for trial in whole for run in trial.runs]
        run_s = sum(durations) / len(durations)
        start_s = max(0.0, sum(trial.wall_s for trial in whole) - sum(durations)) / len(whole)
        basis = f"means of {len(whole)} earlier launches"
    budget_s = study.budget.seconds
    return TimeEstimate(
        start_s=start_s,
        run_s=run_s,
        basis=basis,
        is_assumed=not whole,
        least_s=min(budget_s, total.launches.least * start_s + total.runs.least * run_s),
        most_s=min(budget_s, total.launches.most * start_s + total.runs.most * run_s),
        budget_s=budget_s,
    )


def _configs(steps: Sequence[PlannedStep]) -> list[Config]:
    return list({key(config): config for step in steps for config in step.configs}.values())


def _launch(study: Study, config: Config, found: dict[str, Installed], host: HostFacts) -> PlannedLaunch:
    """Return the command of one config; an engine that is not installed is called by its name."""
    spec = find_spec(study.engines, config.engine)
    engine = engines.get(config.engine)
    installed = found.get(config.engine) or Installed(engine=spec.name, version="", argv=(spec.name,), how="missing")
    model = _model(study, spec, config.variant)
    command = engine.command(config, spec=spec, installed=installed, model=model, port=EXAMPLE_PORT)
    return PlannedLaunch(
        label=label(config),
        config=config,
        command=mask_command(command),
        refused=_refusal(engine, config, _facts(model) or _facts(study.model), host),
    )


def _refusal(engine: Engine, config: Config, model: ModelFacts | None, host: HostFacts) -> str:
    failed = engine.preflight(config, model=model, host=host)
    return f"{failed.cause}: {failed.evidence}" if failed else ""


def _model(study: Study, spec: EngineSpec, variant_name: str) -> str:
    """Return the weights as they can be named before anything is fetched or made."""
    variant = next((one for one in variants(spec) if one.name == variant_name), None)
    model = (variant.model if variant else None) or study.model
    if variant and variant.quantize:
        return f"{model.removesuffix('.gguf')}.{variant.quantize}.gguf"
    return model


def _models(study: Study) -> list[str]:
    names = (_model(study, spec, variant.name) for spec in study.engines for variant in variants(spec))
    return [name for name in dict.fromkeys((study.model, *names)) if name]


def _facts(model: str) -> ModelFacts | None:
    """Return what a model file says about itself, if there is one; raises UserError for a damaged file."""
    return weights.facts(Path(model)) if Path(model).is_file() else None


def _weights(model: str) -> Weights:
    path = Path(model)
    return Weights(model=model, gib=path.stat().st_size / 2**30 if path.is_file() else None)


# --------------------------------------------------------------------------- telling it


def _say_plan(made: Plan) -> None:
    say(f"study {made.study}: {_span(made.totals.launches)} launches, {_span(made.totals.runs)} runs", style="bold")
    _say_time(made.time)
    say_heading("steps (later ones start from the config that leads then; shown here on each engine's first)")
    say_table(("step", "configs", "launches", "runs"), [_step_row(step) for step in made.steps])
    for line in _remarks(made):
        say(line)
    say_heading("weights")
    rows = [
        (entry.model, f"{entry.gib:.2f} GiB" if entry.gib is not None else "not a file here yet")
        for entry in made.weights
    ]
    say_table(("model", "size"), rows)
    if made.memory_available_gib is not None:
        say(
            f"memory available: {made.memory_available_gib:.1f} GiB; beside the weights, each server needs its KV cache"
        )
    say_heading(f"commands ({EXAMPLE_PORT} stands for the free port that each launch is given)")
    for launch in made.launches:
        say(f"# {launch.label}" + (f"  -- cannot run here: {launch.refused}" if launch.refused else ""))
        say(_shell(launch.command) or "(runs already; nothing is started)")
    for line in made.missing:
        say(f"not installed: {line}")


def _say_time(time: TimeEstimate) -> None:
    span = (
        duration(time.least_s)
        if time.least_s == time.most_s
        else f"{duration(time.least_s)} to {duration(time.most_s)}"
    )
    say(f"time: {span}, at most the budget of {duration(time.budget_s)}")
    say(f"  from {time.start_s:.1f} s for a start and {time.run_s:.1f} s for a run ({time.basis})")


def _step_row(step: PlannedStep) -> tuple[str, str, str, str]:
    name = f"{step.title} (if {step.engine} leads)" if step.engine else step.title
    return name, str(len(step.configs)), _span(step.launches), _span(step.runs)


def _remarks(made: Plan) -> Iterator[str]:
    for step in made.steps:
        for refused in step.refused:
            yield f"never started: {label(refused.config)}: {refused.reason}"
        if step.left_out:
            yield f"{step.title}: {step.left_out} left out by budget.max_configs"


def _span(span: Span) -> str:
    return str(span.most) if span.least == span.most else f"{span.least} to {span.most}"


def _shell(command: Command) -> str:
    """Return the command as it would be typed."""
    env = [f"{name}={shlex.quote(value)}" for name, value in command.env.items()]
    return " ".join((*env, shlex.join(command.argv))).strip()
