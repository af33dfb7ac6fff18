"""`servetune tune`: the main job, from a study (or just a model) to its report."""

from __future__ import annotations

import functools
import json
import math
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, TypedDict

import click
import msgspec

from servetune import engines, presets, report, studyfile, workloads
from servetune.cli.console import stderr_console
from servetune.cli.progress import PlainProgress, duration, progress_for
from servetune.engines.catalogue import axis_values
from servetune.errors import HostProblem, Interrupted, StudyFileError, UserError
from servetune.laboratory import prepare
from servetune.lock import measuring
from servetune.records import (
    Axis,
    Catalogue,
    Failed,
    Measurement,
    Notice,
    OptionSpec,
    Results,
    RunRequest,
    Study,
)
from servetune.study import Stop, load_results, run_study
from servetune.trial import Hooks, run_trial

DEMO_RUN_S = 3.0
"""How long a chat run of the demo's baseline should take: long enough to measure, short enough for many launches."""
ENDPOINT_RUN_S = 10.0
"""The same for an endpoint with one request in flight."""
PROBE_PROMPTS = 4


@click.command(
    epilog="Examples: servetune tune --demo · servetune tune study.toml · servetune tune model.gguf --minutes 20 ·"
    " servetune tune --endpoint http://127.0.0.1:8000"
)
@click.argument("target", required=False, metavar="[STUDY.toml | MODEL]")
@click.option("--demo", is_flag=True, help="Embedded engine and model: a whole study in a few minutes on two cores.")
@click.option("--endpoint", metavar="URL", help="Tune only the load of a server that already runs.")
@click.option("--out", type=click.Path(path_type=Path), help="Study folder (default ./studies/NAME).")
@click.option("--fresh", is_flag=True, help="Set an earlier study of this name aside and begin anew.")
@click.option("--retry-failed", is_flag=True, help="Try configs again that failed before.")
@click.option("--minutes", type=click.FloatRange(min=0.1, max=1e6), help="Time budget of the study.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="METRIC=BOUND",
    help="A config that breaks it cannot win, e.g. p99_ttft_ms=500; may be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the conclusion as JSON on stdout.")
def tune(**flags: Any) -> None:
    """Run a study to its report: start engines, load them, decide, validate.

    TARGET is a study file or a GGUF file. The same command again resumes: finished runs are never repeated.
    """
    wish = _Wish(**flags)
    if sum((wish.target is not None, wish.demo, wish.endpoint is not None)) != 1:
        raise UserError("servetune tune", "give one of STUDY.toml, MODEL, --demo, --endpoint URL", "see --help")
    stop = Stop()
    with _signals(stop):
        study, folder = _choose(wish, stop)
        results = _run(study, folder, stop, retry_failed=wish.retry_failed)
    sys.exit(_tell(results, folder, as_json=wish.as_json))


@dataclass(frozen=True, kw_only=True)
class _Wish:
    """The flags of one call."""

    target: str | None
    demo: bool
    endpoint: str | None
    out: Path | None
    fresh: bool
    retry_failed: bool
    minutes: float | None
    limits: tuple[str, ...]
    as_json: bool


# --------------------------------------------------------------------------- which study


def _choose(wish: _Wish, stop: Stop) -> tuple[Study, Path]:
    folder = wish.out
    if wish.demo or wish.endpoint:
        folder = folder or Path("studies") / ("demo" if wish.demo else "endpoint")
        _set_aside(folder, wish.fresh)
        study = _probed(wish, folder, stop)
    else:
        study = _from_target(str(wish.target))
        folder = folder or Path("studies") / study.name
        _set_aside(folder, wish.fresh)
    return _with_wishes(study, wish), folder


def _with_wishes(study: Study, wish: _Wish) -> Study:
    """The study with the budget and limits of the command line."""
    if wish.minutes is not None:
        if math.isnan(wish.minutes):
            raise UserError("--minutes", "is not a number", "give the time budget in minutes, for example 30")
        study = msgspec.structs.replace(study, budget=msgspec.structs.replace(study.budget, seconds=60 * wish.minutes))
    if not wish.limits:
        return study
    bounds = dict(study.limits.bounds)
    for text in wish.limits:
        name, equals, bound = text.partition("=")
        if not equals or not _is_number(bound):
            raise UserError(f"--limit {text}", "is not METRIC=BOUND with a number", "for example p99_ttft_ms=500")
        bounds[name] = float(bound)
    limited = msgspec.structs.replace(study, limits=msgspec.structs.replace(study.limits, bounds=bounds))
    # Reading the study back checks the names of the metrics and bounds that contradict each other.
    return studyfile.parse(studyfile.dump(limited), file="--limit", **_known())


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _set_aside(folder: Path, fresh: bool) -> None:
    """With --fresh, keep an earlier study under a name of its own."""
    if fresh and folder.exists():
        folder.rename(folder.with_name(f"{folder.name}-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}"))


def _from_target(target: str) -> Study:
    path = Path(target)
    if path.suffix == ".toml":
        return load_study_file(path)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UserError(target, "there is no such file", "give the path of a GGUF file")
        catalogue = engines.get("llamacpp").catalogue()
        names = ("threads", "flash_attn", "cache_type_k", "ubatch_size", "repack")
        chosen = (catalogue.options[name] for name in names)
        axes = tuple(Axis(option=option.name, values=axis_values(option)) for option in chosen)
        return presets.for_gguf(str(path.resolve()), minutes=30, axes=axes)
    raise HostProblem(
        f"{target}: this version starts llama.cpp only, which loads GGUF files"
        " (give a .gguf file, or a study file ending in .toml)"
    )


def load_study_file(path: Path) -> Study:
    """Read a study file with the catalogues of all engines and look at its workloads' data too.

    Raises StudyFileError with every mistake.
    """
    study = studyfile.load(path, **_known())
    mistakes = [mistake for spec in study.workloads for mistake in workloads.check(spec)]
    if mistakes:
        raise StudyFileError(str(path), mistakes)
    return study


class _Known(TypedDict):
    catalogues: dict[str, Catalogue]
    kinds: dict[str, Mapping[str, OptionSpec]]


def _known() -> _Known:
    """The options of all engines and the parameters of all workloads, which a study file may name."""
    return {
        "catalogues": {name: engines.get(name).catalogue() for name in engines.ENGINES},
        "kinds": {name: workload.params for name, workload in workloads.KINDS.items()},
    }


def _probed(wish: _Wish, folder: Path, stop: Stop) -> Study:
    """The study of the demo or of an endpoint: as it was begun in `folder`, else scaled by one short run."""
    url = _base_url(wish.endpoint) if wish.endpoint else None
    used = folder / "study.toml"
    if used.is_file():
        begun = load_study_file(used)
        if begun.engines[0].url != url:
            raise UserError(str(folder), "holds the study of another server", "give --fresh, or another folder: --out")
        return begun
    if url:
        make = functools.partial(presets.for_endpoint, url, minutes=wish.minutes or 30)
        return make(prompts=_prompts_for(make(prompts=PROBE_PROMPTS), ENDPOINT_RUN_S, 16, stop))
    console = stderr_console()
    console.print("demo: llama.cpp and SmolLM2-135M from the package index; the first start makes four variants")
    return presets.demo(_prompts_for(presets.demo(PROBE_PROMPTS), DEMO_RUN_S, 8, stop))


def _base_url(endpoint: str) -> str:
    """The server's address with its scheme and without /v1."""
    url = endpoint.rstrip("/").removesuffix("/v1")
    return url if "://" in url else f"http://{url}"


def _prompts_for(study: Study, run_s: float, least: int, stop: Stop) -> int:
    """How many requests a run of the baseline needs to take about `run_s` on this machine, from one short run."""
    progress = PlainProgress(study)
    with tempfile.TemporaryDirectory() as scratch, measuring(f"the probe of {study.name}"):
        folder = Path(scratch)
        (folder / "runs").mkdir()
        (folder / "logs").mkdir()
        lab = prepare(study, folder, progress.emit)
        wanted = Measurement(
            config=study.baseline,
            runs=(RunRequest(workload="chat", repeat=0),),
            step="probe",
            block=0,
            role="baseline",
        )
        trial = run_trial(lab, wanted, 0, _silent_hooks(stop))
    if isinstance(trial.outcome, Failed):
        raise HostProblem(f"the baseline does not run: {trial.outcome.cause}: {trial.outcome.evidence}")
    per_request_s = trial.runs[0].summary.duration_s / PROBE_PROMPTS
    prompts = max(least, min(8 * least, 4 * round(run_s / per_request_s / 4)))
    if prompts * per_request_s > study.budget.seconds / 8:
        seconds = duration(prompts * per_request_s)
        progress.emit(Notice(text=f"one run takes about {seconds} here: a small budget (--minutes) will decide little"))
    return prompts


def _silent_hooks(stop: Stop) -> Hooks:
    def ignore(*_anything: object) -> None:
        pass

    return Hooks(emit=ignore, cancelled=stop.requested, on_begin=ignore, on_server=ignore, on_run=ignore)


# --------------------------------------------------------------------------- run and tell


@contextmanager
def _signals(stop: Stop) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP ask to stop; the second SIGINT is not needed, everything that waits looks often."""

    def note(number: int, _frame: FrameType | None) -> None:
        stop.signal_name = signal.Signals(number).name

    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(study: Study, folder: Path, stop: Stop, *, retry_failed: bool) -> Results:
    """Run the study and write its report; a study that is interrupted has a report too."""
    console = stderr_console()
    with progress_for(study, console) as progress:
        lab = prepare(study, folder, progress.emit)
        try:
            results = run_study(lab, emit=progress.emit, stop=stop, retry_failed=retry_failed)
        except Interrupted:
            if (folder / "study.sqlite").is_file():
                report.write(load_results(folder), folder)
                progress.emit(Notice(text=f"report of what is measured so far: {folder / 'report.html'}"))
            raise
    report.write(results, folder)
    return results


def _tell(results: Results, folder: Path, *, as_json: bool) -> int:
    """Print the verdict and the report's path; return the exit code."""
    conclusion = results.conclusion
    measured = any(trial.runs for trial in results.trials)
    if as_json:
        print(json.dumps({"conclusion": msgspec.to_builtins(conclusion), "folder": str(folder)}))
    else:
        print(report.verdict_sentence(results))
        command = report.command_text(results)
        if command is not None:
            print(f"run it:\n{command}")
        print(f"report: {folder / 'report.html'}")
    return 0 if measured and conclusion.limits_met else 1
