"""The nouns that flow through servetune, as frozen keyword-only values.

This module knows no other module of servetune, does no I/O and computes nothing but trivial properties.
Units are in the names (`_s`, `_ms`, `_ns`, `_tokens`); absent is None, never 0 or NaN.
"""

from __future__ import annotations

from typing import Literal

import msgspec

OptionValue = bool | int | float | str
"""The value of one engine option."""


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every value that crosses a module or file boundary."""


# --------------------------------------------------------------------------- engines, options, configs


class OptionSpec(Record, frozen=True, kw_only=True):
    """One option of an engine, as data of its catalogue (`engines/options/NAME.toml`)."""

    name: str
    type: Literal["bool", "int", "float", "choice", "str"]
    family: str
    """Group of options that are tuned in one step: scheduling, batching, memory, attention, ..."""
    doc: str
    """One line of what it does."""
    flag: str | None = None
    """Command-line flag; for type bool it is given when true and `off_flag` when false."""
    off_flag: str | None = None
    env: str | None = None
    default: OptionValue | None = None
    """The engine's own default; None: decided by the engine at start (see doc)."""
    choices: tuple[OptionValue, ...] = ()
    range: tuple[float, float] | None = None
    scale: Literal["linear", "log2"] = "linear"
    values: tuple[OptionValue, ...] = ()
    """Values worth trying when the user names none."""
    applies: Literal["launch", "load"] = "launch"
    requires: dict[str, tuple[OptionValue, ...]] = {}
    """Other options that must have one of these values for this one to be accepted at a non-default value."""
    versions: str = ""
    effect: str = ""
    """What is known about its effect on throughput and latency."""


class Catalogue(Record, frozen=True, kw_only=True):
    """All options of one engine."""

    engine: str
    options: dict[str, OptionSpec]


class Variant(Record, frozen=True, kw_only=True):
    """One form of the model's weights."""

    name: str
    model: str | None = None
    """Hub name, folder or file; None: the study's model."""
    quantize: str | None = None
    """Make it from the study's GGUF file with this quantisation (Q4_0, Q8_0, F16)."""
    note: str = ""


class Config(Record, frozen=True, kw_only=True):
    """Everything needed to start one server."""

    engine: str
    variant: str = ""
    """Name of the variant; "" is the study's model as it is."""
    options: dict[str, OptionValue] = {}
    """Only options that differ from the engine's defaults or are fixed by the study, sorted by name."""


class Axis(Record, frozen=True, kw_only=True):
    """An option with the values to try."""

    option: str
    values: tuple[OptionValue, ...]


class EngineSpec(Record, frozen=True, kw_only=True):
    """One engine of a study: how to start it and what to vary."""

    name: str
    command: str | None = None
    """Executable, when it is not the one found on PATH."""
    python: str | None = None
    url: str | None = None
    """A server that already runs (engine `endpoint`)."""
    options: dict[str, OptionValue] = {}
    """Options that every config of this engine starts from; one that is also an axis is varied from there."""
    axes: tuple[Axis, ...] = ()
    variants: tuple[Variant, ...] = ()
    env: dict[str, str] = {}
    ready_timeout_s: float = 300.0


class Installed(Record, frozen=True, kw_only=True):
    """An engine that was found on this machine."""

    engine: str
    version: str
    argv: tuple[str, ...]
    """The beginning of its command line."""
    how: str
    """How it was found, in words (on PATH, as a Python package, ...)."""


class Missing(Record, frozen=True, kw_only=True):
    """An engine that was not found."""

    engine: str
    reason: str
    remedy: str


class ModelFacts(Record, frozen=True, kw_only=True):
    """What a model file says about itself; None where it does not say."""

    path: str
    size_bytes: int
    architecture: str | None = None
    quantization: str | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    context_length: int | None = None
    name: str | None = None


class Command(Record, frozen=True, kw_only=True):
    """How one server is started."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    """Variables added to the environment."""


# --------------------------------------------------------------------------- workloads and load


class Load(Record, frozen=True, kw_only=True):
    """How requests are sent."""

    request_rate: float | None = None
    """Mean arrivals per second; None: all at once."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of the gaps; 1 is a Poisson process."""
    max_concurrency: int | None = None
    warmup_requests: int = 1
    idle_timeout_s: float = 120.0
    """A stream that is silent for longer is cut and counted as failed."""
    total_timeout_s: float = 3600.0


class WorkloadSpec(Record, frozen=True, kw_only=True):
    """One workload of a study: what is asked and how it is sent."""

    name: str
    kind: str
    num_prompts: int
    params: dict[str, OptionValue] = {}
    """Parameters of this kind (input_len, output_len, path, ...)."""
    load: Load = Load()
    seed: int | None = None
    """None: derived from study, workload and repeat, so that each repeat has fresh prompts."""


class Request(Record, frozen=True, kw_only=True):
    """One request of a workload, before it is turned into bytes."""

    index: int
    prompt: str
    prompt_tokens: int | None
    """Tokens of the raw prompt by our tokenizer; None: there is no tokenizer."""
    output_tokens: int
    """Most tokens to generate."""


class BodyRules(Record, frozen=True, kw_only=True):
    """How a Request becomes the JSON body that one engine accepts under one set of definitions."""

    api: Literal["chat", "completions"] = "chat"
    model: str = "model"
    definitions: str = "strict"
    ignore_eos: bool = True
    """Ask for exactly `output_tokens`; False where an engine refuses the field."""
    include_usage: bool = True
    extra: dict[str, OptionValue] = {}


# --------------------------------------------------------------------------- raw records of a run

EVENT_CHOICES = 1
"""The SSE message has a non-empty `choices` list."""
EVENT_ROLE = 2
"""Its delta names a role."""
EVENT_CONTENT = 4
"""It carries non-empty visible text."""
EVENT_REASONING = 8
"""It carries non-empty reasoning text."""
EVENT_TOOL = 16
"""It carries a tool or function call."""
EVENT_EMPTY = 32
"""It carries content that is the empty string, in a delta without a role (a token that decodes to nothing)."""
EVENT_USAGE = 64
EVENT_FINISH = 128
EVENT_DONE = 256
"""`data: [DONE]`."""
EVENT_ERROR = 512
"""An error object inside the stream."""
EVENT_INVALID = 1024
"""Not JSON, or JSON of an unknown form."""
EVENT_OUTPUT = EVENT_CONTENT | EVENT_REASONING | EVENT_TOOL | EVENT_EMPTY
"""Any of these bits: the message holds at least one generated token."""

RequestErrorKind = Literal[
    "connect",
    "reset",
    "http-status",
    "protocol",
    "stream-error",
    "no-output",
    "truncated",
    "idle-timeout",
    "total-timeout",
    "cancelled",
]


class RequestError(Record, frozen=True, kw_only=True):
    """Why one request failed."""

    kind: RequestErrorKind
    message: str


class RequestRecord(Record, frozen=True, kw_only=True):
    """One request as it happened. Times are ns since the run's epoch (RunFacts.epoch_ns).

    Events (SSE messages) are numbered in order. A read of the socket may complete several events; only the last
    one of a read has an exact time, the others lie between the previous read's time and this one.
    """

    index: int
    scheduled_ns: int
    sent_ns: int | None = None
    """Right before the send of the first byte, on an open connection; a retry keeps the first start."""
    sent_done_ns: int | None = None
    """Right after the last byte was handed to the kernel."""
    reads_ns: tuple[int, ...] = ()
    """Receive time of each read that completed at least one event."""
    read_events: tuple[int, ...] = ()
    """Events completed by each of these reads."""
    event_flags: tuple[int, ...] = ()
    """EVENT_* bits of each event."""
    event_tokens: tuple[int, ...] | None = None
    """Cumulative completion tokens at each event where the server reports usage per chunk; else None."""
    closed_ns: int | None = None
    """Time of the read that ended the response."""
    requested_tokens: int = 0
    local_prompt_tokens: int | None = None
    usage_prompt_tokens: int | None = None
    usage_output_tokens: int | None = None
    usage_cached_tokens: int | None = None
    text: str = ""
    status: int | None = None
    retries: int = 0
    reused_connection: bool = False
    error: RequestError | None = None


class ClientFacts(Record, frozen=True, kw_only=True):
    """What the load client says about itself in one run."""

    stamps: Literal["kernel", "user"]
    workers: int
    epoch_ns: int
    """CLOCK_REALTIME ns of time 0 of the records."""
    duration_ns: int
    """From the epoch to the end of the last request."""
    clock_step_ns: int
    """Change of CLOCK_REALTIME - CLOCK_MONOTONIC over the run; large: the wall clock was set."""
    cpu_share: float
    """CPU time of the client's processes / wall time."""
    max_loop_lag_ms: float
    late_sends: int
    """Requests sent more than 5 ms after they were due (for open-loop schedules)."""
    multi_event_reads: float
    """Share of reads that completed more than one event."""
    unresolved_ttft: float
    """Share of requests whose first read held more than one event."""
    peak_open: int
    """Most requests in flight."""
    api: Literal["chat", "completions"] = "chat"
    """What was asked: the vllm definitions differ between the two."""


# --------------------------------------------------------------------------- summaries


class Distribution(Record, frozen=True, kw_only=True):
    """Statistics of one latency in ms, with the number of values they rest on (numpy's linear percentiles)."""

    count: int
    mean: float
    median: float
    std: float
    min: float
    max: float
    p90: float
    p95: float
    p99: float


class Summary(Record, frozen=True, kw_only=True):
    """Figures of one run under one named set of definitions."""

    definitions: str
    completed: int
    failed: int
    duration_s: float
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    """Requests/s."""
    output_throughput: float
    """Output tokens/s."""
    total_token_throughput: float
    """Input and output tokens/s."""
    peak_output_throughput: float | None
    """Largest output tokens in one second (by chunks in the vllm profiles)."""
    peak_concurrency: int | None
    latency: dict[str, Distribution]
    """Keys: ttft, tpot, itl, e2el; strict adds ttfot (first visible token), icl (gap between chunks),
    schedule_e2el (from the scheduled time). A key without any value is absent."""
    token_source: Literal["usage", "requested", "chunks", "none"]
    """Where output token counts come from."""
    errors: dict[str, int] = {}
    """Failed requests by kind."""

    @property
    def success_rate(self) -> float | None:
        """Completed / all requests; None without requests."""
        total = self.completed + self.failed
        return self.completed / total if total else None


class Finding(Record, frozen=True, kw_only=True):
    """Something a reader must know about a measurement or a conclusion; `docs/findings/CODE.md` explains it."""

    code: str
    severity: Literal["note", "warning", "bars"]
    """bars: the config cannot win with it."""
    evidence: str
    advice: str = ""


# --------------------------------------------------------------------------- measurements, runs, trials


class RunRequest(Record, frozen=True, kw_only=True):
    """One run that a searcher asks for. Prompts depend on (study seed, workload, repeat), never on the config."""

    workload: str
    repeat: int


class Measurement(Record, frozen=True, kw_only=True):
    """What a searcher asks for next: one fresh launch of `config` and the runs to make on it."""

    config: Config
    runs: tuple[RunRequest, ...]
    step: str
    """Name of the step it belongs to; "validate" for the published comparison."""
    block: int
    """Configs measured with the same step and block are interleaved in time and share prompts."""
    role: Literal["incumbent", "challenger", "baseline", "winner"]


class Run(Record, frozen=True, kw_only=True):
    """One workload x load against one trial's server."""

    workload: str
    repeat: int
    seed: int
    load: Load
    summary: Summary
    """Under the study's definitions."""
    client: ClientFacts
    findings: tuple[Finding, ...] = ()
    started_at: str = ""
    """UTC, ISO 8601."""
    workload_digest: str = ""
    """First 16 hex digits of SHA-256 over the prompts' UTF-8 text, concatenated."""
    records_file: str = ""
    """Raw records, relative to the study folder."""


class Completed(Record, frozen=True, kw_only=True, tag="completed"):
    """The trial made all its runs."""


class Failed(Record, frozen=True, kw_only=True, tag="failed"):
    """The trial did not make all its runs."""

    stage: Literal["preflight", "launch", "ready", "warmup", "load", "stop"]
    cause: str
    """One of the codes of engines/base.py: out-of-memory, port-in-use, crashed, hung, unsupported-cpu, ..."""
    evidence: str
    """The log lines or system facts that show it."""


class Trial(Record, frozen=True, kw_only=True):
    """One launch of one config: its server, its runs, its outcome."""

    number: int
    measurement: Measurement
    outcome: Completed | Failed
    runs: tuple[Run, ...] = ()
    command: Command
    """With secrets masked."""
    engine_version: str = ""
    started_at: str = ""
    start_s: float | None = None
    """From the start of the process to ready."""
    wall_s: float = 0.0
    peak_rss_mib: float | None = None
    log_file: str = ""

    @property
    def config(self) -> Config:
        """The config of its measurement."""
        return self.measurement.config


# --------------------------------------------------------------------------- verdicts


class Interval(Record, frozen=True, kw_only=True):
    """A gain with its interval.

    Gains are improvements as a fraction: new/old - 1 for a metric to maximise, old/new - 1 for one to minimise,
    so that positive is always better.
    """

    estimate: float
    low: float
    high: float
    confidence: float
    """Two-sided coverage of [low, high]."""


VerdictKind = Literal["better", "worse", "equivalent", "no difference shown", "invalid"]


class Verdict(Record, frozen=True, kw_only=True):
    """A decision about one config against the incumbent of its step, with its evidence."""

    config: Config
    against: Config
    kind: VerdictKind
    gain: Interval | None
    """None: there is no pair of measurements (failed, or barred before)."""
    repeats: int
    """Pairs of launches it rests on."""
    adopted: bool = False
    reason: str = ""
    """Why it was adopted, barred or not decided, in words."""


class StepResult(Record, frozen=True, kw_only=True):
    """One stage of a staged search."""

    name: str
    title: str
    incumbent: Config
    verdicts: tuple[Verdict, ...]
    leader: Config
    """The incumbent of the next step."""
    finished: bool
    stop_reason: str = ""
    """Why it ended before all repeats were made (decided, budget), or "" ."""


class Noise(Record, frozen=True, kw_only=True):
    """Spread of the objective as a fraction, pooled over configs."""

    between_launches: float | None
    """None: needs at least two runs in some launch."""
    within_launch: float | None
    one_launch: float | None
    """Standard deviation of what one launch reports (between launches and within together)."""
    degrees: float


class WorkloadChange(Record, frozen=True, kw_only=True):
    """Baseline against recommended config on one workload, from fresh interleaved launches."""

    workload: str
    metric: str
    gain: Interval
    repeats: int
    barred: bool = False
    """It loses more than `max_loss`."""


class Conclusion(Record, frozen=True, kw_only=True):
    """What the study answers."""

    baseline: Config
    recommended: Config
    kind: VerdictKind
    gain: Interval | None
    """From the fresh launches of the validation; None: nothing was adopted or the budget ended before."""
    changes: tuple[WorkloadChange, ...] = ()
    """One entry for each workload, the objective's first."""
    barred: tuple[Verdict, ...] = ()
    """Configs that would have won but may not be recommended, with the reason."""
    limits_met: bool = True
    noise: Noise | None = None
    findings: tuple[Finding, ...] = ()
    stop_reason: str = ""
    finished: bool = True


# --------------------------------------------------------------------------- study


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


# --------------------------------------------------------------------------- progress


class StepStarted(Record, frozen=True, kw_only=True, tag="step-started"):
    """A step of the search begins."""

    name: str
    title: str
    configs: int


class TrialStarted(Record, frozen=True, kw_only=True, tag="trial-started"):
    """A server is about to be launched."""

    number: int
    measurement: Measurement
    label: str


class StageChanged(Record, frozen=True, kw_only=True, tag="stage"):
    """The trial moved on: launch, ready, warmup, load, stop."""

    stage: str
    detail: str = ""


class LoadProgress(Record, frozen=True, kw_only=True, tag="load-progress"):
    """Where a run stands, a few times a second."""

    done: int
    total: int
    failed: int
    chunks_per_s: float
    elapsed_s: float


class RunDone(Record, frozen=True, kw_only=True, tag="run-done"):
    """One run is measured and stored."""

    run: Run


class TrialDone(Record, frozen=True, kw_only=True, tag="trial-done"):
    """A server is stopped and its trial stored."""

    trial: Trial
    best_label: str = ""
    best_value: float | None = None
    left_s: float | None = None
    """Estimate of the time left in the study."""


class StepDone(Record, frozen=True, kw_only=True, tag="step-done"):
    """A step ended in its verdicts."""

    step: StepResult


class Notice(Record, frozen=True, kw_only=True, tag="notice"):
    """Something the user should know now (a model is fetched, a stale server was stopped)."""

    text: str


Event = StepStarted | TrialStarted | StageChanged | LoadProgress | RunDone | TrialDone | StepDone | Notice
