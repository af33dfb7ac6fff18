"""One trial: launch -> ready -> warm up -> load -> stop.

The only module that knows this order. It knows neither search nor store: finished runs go out through `Hooks.on_run`,
so that the caller can store each one before the next begins. A failure of the engine or of the load is a value
(Trial.outcome); only the user's interruption leaves as an exception.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

import msgspec

from servetune import findings, metrics, space, workloads
from servetune.engines.base import Engine, decisive_lines
from servetune.engines.process import Server, free_port
from servetune.errors import EngineFailed, Interrupted, LoadFailed
from servetune.http1 import NoAnswer, get
from servetune.loadgen.recordfile import read_records
from servetune.loadgen.run import LoadJob, run_load
from servetune.masking import mask_command, mask_text
from servetune.records import (
    BodyRules,
    Command,
    Completed,
    Config,
    EngineSpec,
    Event,
    Failed,
    Finding,
    HostFacts,
    Installed,
    Load,
    Measurement,
    ModelFacts,
    RequestRecord,
    Run,
    RunRequest,
    StageChanged,
    Study,
    Trial,
    TrialStarted,
    WorkloadSpec,
)
from servetune.store.files import publish
from servetune.telemetry import host as telemetry_host
from servetune.tokenizer import Tokenizer

BROKEN_CONNECTION = ("connect", "connect-refused", "connect-timeout", "reset", "reset-before-answer", "truncated")
IDLE_LOOK_S = 0.1
"""How long other programs are watched before the launch, while nothing of this study runs."""
DEATH_IS_TOLD_S = 0.3
"""How long the keeper may take to tell that an engine died; milliseconds on a quiet machine."""


@dataclass(frozen=True, kw_only=True)
class Laboratory:
    """What all trials of a study share, resolved once: engines found, models on disk, tokenizer, folder."""

    study: Study
    folder: Path
    host: HostFacts
    engines: Mapping[str, Engine]
    installed: Mapping[str, Installed]
    models: Mapping[tuple[str, str], str]
    """(engine, variant) -> path or hub name of the weights."""
    model_facts: Mapping[str, ModelFacts]
    """By that path; absent where nothing is known."""
    tokenizer: Tokenizer | None

    def spec(self, config: Config) -> EngineSpec:
        """The engine table of the study that `config` belongs to."""
        return next(spec for spec in self.study.engines if spec.name == config.engine)

    def workload(self, name: str) -> WorkloadSpec:
        """The workload of this name."""
        return next(spec for spec in self.study.workloads if spec.name == name)


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """How a trial tells its caller what happens, while it happens."""

    emit: Callable[[Event], None]
    cancelled: Callable[[], bool]
    on_begin: Callable[[Trial], None]
    """Called with the trial as it begins (no outcome yet), before any process is started."""
    on_server: Callable[[Server, Command], None]
    on_run: Callable[[Run, float], None]
    """Called with each finished run and the trial's wall time so far; its raw records are on disk."""


@dataclass(frozen=True, kw_only=True)
class _Serving:
    """A server that answers, started by this trial or by somebody else (an endpoint)."""

    url: str
    is_alive: Callable[[], bool]
    explain: Callable[[], tuple[str, str] | None]
    """Cause and evidence of the server's failure, if it failed."""


def run_trial(lab: Laboratory, measurement: Measurement, number: int, hooks: Hooks) -> Trial:
    """Make one trial and return it with its outcome.

    Raises:
        Interrupted: `hooks.cancelled` became true; the server is stopped and finished runs were handed over.
        StoreError: the raw records cannot be written.
    """
    return _TrialRun(lab, measurement, number, hooks).make()


class _TrialRun:
    """The life of one trial; holds what its stages hand on."""

    def __init__(self, lab: Laboratory, measurement: Measurement, number: int, hooks: Hooks) -> None:
        self.lab = lab
        self.measurement = measurement
        self.number = number
        self.hooks = hooks
        self.config = measurement.config
        self.engine = lab.engines[self.config.engine]
        self.spec = lab.spec(self.config)
        self.model = lab.models[self.config.engine, self.config.variant]
        self.log_path = lab.folder / "logs" / f"{number:04d}.log"
        self.started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.start = time.monotonic()
        self.runs: list[Run] = []
        self.start_s: float | None = None
        self.peak_rss_mib: float | None = None
        self.command = Command(argv=())
        self.busy: Finding | None = None

    def make(self) -> Trial:
        """Go through the stages; the first that fails decides the outcome."""
        label = space.label(space.without_fixed(self.config, self.lab.study.engines))
        self.hooks.on_begin(self._trial(Completed()))
        self.hooks.emit(TrialStarted(number=self.number, measurement=self.measurement, label=label))
        facts = self.lab.model_facts.get(self.model)
        refused = self.engine.preflight(self.config, model=facts, host=self.lab.host)
        if refused is not None:
            return self._trial(refused)
        try:
            outcome = self._with_endpoint() if self.spec.url else self._with_server()
        except EngineFailed as failure:
            self._check_cancelled()
            outcome = _failed(failure.stage, failure.cause, failure.evidence)
        return self._trial(outcome)

    def _trial(self, outcome: Completed | Failed) -> Trial:
        return Trial(
            number=self.number,
            measurement=self.measurement,
            outcome=outcome,
            runs=tuple(self.runs),
            command=self.command,
            engine_version=self.lab.installed[self.config.engine].version,
            started_at=self.started_at,
            start_s=self.start_s,
            wall_s=time.monotonic() - self.start,
            peak_rss_mib=self.peak_rss_mib,
            log_file=f"logs/{self.log_path.name}",
        )

    def _check_cancelled(self) -> None:
        if self.hooks.cancelled():
            raise Interrupted("request")

    def _stage(self, stage: str, detail: str = "") -> None:
        self._check_cancelled()
        self.hooks.emit(StageChanged(stage=stage, detail=detail))

    # ----------------------------------------------------------------------- server

    def _with_endpoint(self) -> Completed | Failed:
        assert self.spec.url is not None
        serving = _Serving(url=self.spec.url, is_alive=lambda: True, explain=lambda: None)
        return self._load_all(serving)

    def _with_server(self) -> Completed | Failed:
        self._stage("launch")
        self.busy = findings.host_busy(telemetry_host.watch_processor(IDLE_LOOK_S).busy, self.lab.host.cores)
        port = free_port()
        installed = self.lab.installed[self.config.engine]
        command = self.engine.command(self.config, spec=self.spec, installed=installed, model=self.model, port=port)
        command = Command(argv=command.argv, env={**command.env, **self.spec.env})
        self.command = mask_command(command)
        server = Server.launch(command, port=port, log_path=self.log_path)
        try:
            self.hooks.on_server(server, self.command)
            begin = time.monotonic()
            self._stage("ready")
            server.wait_ready(self.engine, self.spec.ready_timeout_s, self.hooks.cancelled)
            self.start_s = time.monotonic() - begin
            serving = _Serving(url=server.url, is_alive=server.is_alive, explain=lambda: self._explain(server))
            outcome = self._load_all(serving)
            self.peak_rss_mib = server.peak_rss_mib()
        finally:
            self.hooks.emit(StageChanged(stage="stop"))
            server.stop()
        return outcome

    def _explain(self, server: Server) -> tuple[str, str] | None:
        """Cause and evidence when the server died; None while it lives."""
        if server.is_alive():
            return None
        log = mask_text(server.log_tail(200))
        found = self.engine.explain(log, server.exit_code())
        if found is None:
            return "crashed", decisive_lines(log) or f"the engine ended with exit code {server.exit_code()}"
        under_load = "out-of-memory-under-load" if found.cause == "out-of-memory" else found.cause
        return under_load, found.evidence

    # ----------------------------------------------------------------------- load

    def _load_all(self, serving: _Serving) -> Completed | Failed:
        rules = self._rules(serving.url)
        for wanted in self.measurement.runs:
            failure = self._load_one(serving, wanted, rules)
            if failure is not None:
                return failure
        return Completed()

    def _rules(self, url: str) -> BodyRules:
        study = self.lab.study
        return BodyRules(
            model=served_model(url) or Path(study.model).name,
            definitions=study.definitions,
            ignore_eos=self.engine.accepts_ignore_eos,
        )

    def _load_one(self, serving: _Serving, wanted: RunRequest, rules: BodyRules) -> Failed | None:
        spec = self.lab.workload(wanted.workload)
        seed = spec.seed
        if seed is None:
            seed = workloads.run_seed(self.lab.study.seed, spec.name, wanted.repeat)
        load = load_of(self.config, spec)
        requests = workloads.build(spec, seed=seed, tokenizer=self.lab.tokenizer)
        warmup = workloads.warmup_requests(spec, load.warmup_requests, seed=seed, tokenizer=self.lab.tokenizer)
        job = LoadJob(
            url=serving.url, requests=tuple(requests), warmup=tuple(warmup), rules=rules, load=load, arrival_seed=seed
        )
        self._stage("load", spec.name)
        final = self.lab.folder / "runs" / f"{self.number:04d}-{len(self.runs)}.records"
        part = final.with_suffix(".part")
        begun = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            client = run_load(
                job, out=part, emit=self.hooks.emit, cancelled=self.hooks.cancelled, server_alive=serving.is_alive
            )
        except LoadFailed as failure:
            self._check_cancelled()
            return self._load_failure(serving, failure)
        self._check_cancelled()
        records = read_records(part)
        failure_of_server = self._judge(serving, records)
        if failure_of_server is not None:
            part.unlink(missing_ok=True)
            return failure_of_server
        summary = metrics.summarize(records, client, self.lab.study.definitions)
        publish(part, final)
        run = Run(
            workload=spec.name,
            repeat=wanted.repeat,
            seed=seed,
            load=load,
            summary=summary,
            client=client,
            findings=(
                *findings.of_run(summary, client, load=load, config=self.config, records=records),
                *([self.busy] if self.busy else []),
            ),
            started_at=begun,
            workload_digest=workloads.digest(requests),
            records_file=f"runs/{final.name}",
        )
        self.runs.append(run)
        self.hooks.on_run(run, time.monotonic() - self.start)
        return None

    def _load_failure(self, serving: _Serving, failure: LoadFailed) -> Failed:
        stage = "warmup" if failure.cause == "warmup-failed" else "load"
        died = _wait_for(serving.explain)
        if died is not None:
            return _failed(stage, *died)
        if stage == "load":
            return _failed(stage, "client-failed", mask_text(failure.evidence))
        kinds = {line.partition(":")[0] for line in failure.evidence.splitlines()}
        return _failed(stage, _cause_of(kinds), mask_text(failure.evidence))

    def _judge(self, serving: _Serving, records: list[RequestRecord]) -> Failed | None:
        """Failed when the server died, or answered nothing at all."""
        good = sum(record.error is None for record in records)
        broken = any(record.error is not None and record.error.kind in BROKEN_CONNECTION for record in records)
        died = serving.explain() if not broken else _wait_for(serving.explain)
        if died is not None:
            cause, evidence = died
            return _failed("load", cause, f"{good} of {len(records)} requests were answered before\n{evidence}")
        if good:
            return None
        errors = [record.error for record in records if record.error is not None]
        table = sorted({f"{error.kind}: {' '.join(error.message.split())[:300]}" for error in errors})
        return _failed("load", _cause_of({error.kind for error in errors}), mask_text("\n".join(table[:5])))


def _wait_for(explain: Callable[[], tuple[str, str] | None]) -> tuple[str, str] | None:
    """Ask for a moment whether the server died: a client sees its connections break before the keeper can tell."""
    end = time.monotonic() + DEATH_IS_TOLD_S
    while (died := explain()) is None and time.monotonic() < end:
        time.sleep(0.02)
    return died


def _cause_of(error_kinds: set[str]) -> str:
    """What it means that every request failed in one of these ways."""
    return "hung" if error_kinds <= {"first-byte-timeout", "idle-timeout", "total-timeout"} else "all-requests-failed"


def _failed(stage: str, cause: str, evidence: str) -> Failed:
    """Build a Failed; an unknown stage is a programming error and msgspec.convert says so."""
    return msgspec.convert({"type": "failed", "stage": stage, "cause": cause, "evidence": evidence}, Failed)


def load_of(config: Config, spec: WorkloadSpec) -> Load:
    """The workload's load with the options of `config` that apply to the load (endpoint studies)."""
    names = ("max_concurrency", "request_rate", "burstiness")
    chosen = {name: config.options[name] for name in names if name in config.options}
    return msgspec.structs.replace(spec.load, **chosen) if chosen else spec.load


class _ModelEntry(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_ModelEntry] = []


def served_model(url: str) -> str | None:
    """The first model that the server at `url` lists, or None when it lists none."""
    answer = get(f"{url}/v1/models")
    if isinstance(answer, NoAnswer) or answer.status != HTTPStatus.OK:
        return None
    try:
        listed = msgspec.json.decode(answer.body, type=_ModelList)
    except msgspec.DecodeError:
        return None
    return listed.data[0].id if listed.data else None
