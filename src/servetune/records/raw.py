"""One run as it happened: the only truth, from which every figure is derived."""

from __future__ import annotations

from typing import Literal

from servetune.records.value import Record

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

Api = Literal["chat", "completions", "generate"]
"""`generate` is SGLang's native form."""

RequestErrorKind = Literal[
    "dns",
    "connect",
    "connect-refused",
    "connect-timeout",
    "proxy",
    "tls",
    "reset",
    "reset-before-answer",
    "first-byte-timeout",
    "idle-timeout",
    "total-timeout",
    "http-status",
    "rate-limited",
    "redirect",
    "content-type",
    "compressed",
    "protocol",
    "oversize",
    "stream-error",
    "invalid-json",
    "invalid-utf8",
    "overrun",
    "truncated",
    "no-output",
    "cancelled",
]
"""Why a request failed; `docs/load-client.md` has the table of them."""


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
    api: Api = "chat"
    """What was asked: the vllm definitions differ between them."""
    chunks: int = 0
    """Parts of answers: chunks of the transfer coding, one a token for the usual server."""
    read_lag_p50_ms: float = 0.0
    read_lag_p99_ms: float = 0.0
    """From the kernel's receive time of a read to the moment the client read it; 0 without kernel stamps."""
    late_merged_reads: float = 0.0
    """Share of the reads that completed more than one event because the client came late: by more than a quarter of the
    usual gap between events, at least 1 ms and at most 5 ms."""
    slot_gap_p99_ms: float = 0.0
    """From the end of an answer to the next request of its slot (closed loops)."""
    send_lag_p99_ms: float = 0.0
    """From the moment a request was due to its send (open loops)."""
    cpu_wait_share: float = 0.0
    """Time in which the client could run but had no processor / wall time (largest of the workers)."""
    max_unread_bytes: int = 0
    """Most bytes that were found waiting in one socket."""
    nap_ms: float = 0.0
    """Longest sleep between two polls that the loop allowed itself at the end of the run."""
    retried: int = 0
    """Requests that were sent a second time, on a new connection, because a kept one was already closed."""
    aborted: str = ""
    """Why the load was ended early (its declared error rate was exceeded); empty: it was not."""
