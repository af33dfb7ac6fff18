"""What a searcher asks for, and what came of it."""

from __future__ import annotations

from typing import Literal

from servetune.records.config import Command, Config
from servetune.records.raw import ClientFacts
from servetune.records.summary import Finding, Summary
from servetune.records.value import Record
from servetune.records.workload import Load


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
