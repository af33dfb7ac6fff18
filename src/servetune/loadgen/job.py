"""What the parent and the load worker say to each other. Values only.

The job goes to the worker as a msgpack file; the worker answers with one JSON message a line.
"""

from __future__ import annotations

from typing import Any

from servetune.records import Api, ClientFacts, Record


class PreparedRequest(Record, frozen=True, kw_only=True):
    """One request, ready to be sent."""

    index: int
    wire: bytes
    """Head and body."""
    due_ns: int
    """Offset from the start of the load; 0 where the load has no rate."""
    requested_tokens: int
    local_prompt_tokens: int | None


class Target(Record, frozen=True, kw_only=True):
    """Socket address of the server."""

    family: int
    address: tuple[Any, ...]


class WorkerJob(Record, frozen=True, kw_only=True):
    """Everything a worker needs."""

    target: Target
    warmup: tuple[PreparedRequest, ...]
    requests: tuple[PreparedRequest, ...]
    """In order of `due_ns`."""
    max_in_flight: int | None
    has_rate: bool
    idle_timeout_s: float
    total_timeout_s: float
    keep_text: bool
    api: Api


class Progress(Record, frozen=True, kw_only=True, tag="progress"):
    """Where the worker stands."""

    done: int
    failed: int
    chunks: int
    """Parts of response bodies so far: one a token for the usual server."""
    elapsed_s: float


class Finished(Record, frozen=True, kw_only=True, tag="finished"):
    """All records are on the disk."""

    facts: ClientFacts


class GaveUp(Record, frozen=True, kw_only=True, tag="gave-up"):
    """The load was not measured."""

    cause: str
    evidence: str


Message = Progress | Finished | GaveUp
