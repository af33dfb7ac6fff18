"""What the parent and the load workers say to each other. Values only.

A worker inherits three files: the job (msgpack, this module's WorkerJob), the bytes of all requests, and, where the
workers share the requests of a closed loop, the tickets. It answers with one JSON message a line on stdout and takes
one command a line from stdin.
"""

from __future__ import annotations

from servetune.loadgen.transport import Route
from servetune.records import Api, ClientFacts, Record


class PreparedRequest(Record, frozen=True, kw_only=True):
    """One request, ready to be sent."""

    index: int
    begin: int
    """Where its bytes (head and body) begin in the file of requests."""
    size: int
    due_ns: int
    """Offset from the start of the load; 0 where the load has no rate."""
    requested_tokens: int
    local_prompt_tokens: int | None


class WorkerJob(Record, frozen=True, kw_only=True):
    """Everything a worker needs."""

    route: Route
    warmup: tuple[PreparedRequest, ...]
    """Sent by the first worker only."""
    requests: tuple[PreparedRequest, ...]
    """In order of `due_ns`."""
    max_in_flight: int | None
    has_rate: bool
    keeps_connections: bool
    idle_timeout_s: float
    total_timeout_s: float
    first_byte_timeout_s: float | None
    max_error_rate: float | None
    overrun_factor: float
    keep_text: bool
    stream: bool
    api: Api


class Begin(Record, frozen=True, kw_only=True, tag="begin"):
    """The inherited files are written: read the job. Records are added to the file that `records` names."""

    records: str


class Prepare(Record, frozen=True, kw_only=True, tag="prepare"):
    """Open the first connections, as one of `workers`."""

    worker: int
    workers: int


class Start(Record, frozen=True, kw_only=True, tag="start"):
    """Begin: time 0 of the load is at `monotonic_ns` (CLOCK_MONOTONIC), and is `epoch_ns` of CLOCK_REALTIME."""

    monotonic_ns: int
    epoch_ns: int


class Stop(Record, frozen=True, kw_only=True, tag="stop"):
    """End every request that has not ended."""

    reason: str


Order = Begin | Prepare | Start | Stop


class Warm(Record, frozen=True, kw_only=True, tag="warm"):
    """The warm-up is over."""

    event_gap_ms: float | None
    """Usual time between two events of one stream; None: not seen."""


class Ready(Record, frozen=True, kw_only=True, tag="ready"):
    """The connections are open."""


class Progress(Record, frozen=True, kw_only=True, tag="progress"):
    """Where the worker stands."""

    done: int
    failed: int
    chunks: int
    """Parts of response bodies so far: one a token for the usual server."""
    elapsed_s: float


class Finished(Record, frozen=True, kw_only=True, tag="finished"):
    """All records of this worker are on the disk."""

    facts: ClientFacts


class GaveUp(Record, frozen=True, kw_only=True, tag="gave-up"):
    """The load was not measured."""

    cause: str
    evidence: str


Message = Warm | Ready | Progress | Finished | GaveUp
