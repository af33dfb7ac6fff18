"""Runs one load against one server: prepares the requests, starts the load workers, watches them, returns their facts.

This is the part of the load client that lives in servetune's own process. It never touches the sockets.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from servetune.errors import HostProblem, LoadFailed
from servetune.http1 import Url, parse_url, request_bytes
from servetune.limits import usable_cores
from servetune.loadgen.arrivals import offsets_ns
from servetune.loadgen.body import body_bytes, endpoint_path
from servetune.loadgen.job import (
    Begin,
    Finished,
    GaveUp,
    Message,
    Order,
    Prepare,
    PreparedRequest,
    Progress,
    Ready,
    Start,
    Stop,
    Warm,
    WorkerJob,
)
from servetune.loadgen.recordfile import RecordWriter, begin_records, read_records
from servetune.loadgen.resolve import ResolveFailed, routes
from servetune.loadgen.supply import Tickets
from servetune.loadgen.transport import Route
from servetune.records import (
    BodyRules,
    ClientFacts,
    Event,
    Load,
    LoadProgress,
    Record,
    Request,
    RequestError,
    RequestRecord,
    Transport,
)

__all__ = ["FirstWorker", "LoadJob", "first_worker", "read_records", "run_load"]

_LOOK_EVERY_S = 0.1
_DEAD_SERVER_GRACE_S = 1.0
_HAND_OVER_S = 15.0
_START_TOGETHER_NS = 20_000_000
_NS_PER_S = 1_000_000_000
_CHUNKS_PER_WORKER = 40_000
"""Chunks per second that one worker is trusted with; docs/measurements.md has what it can."""
_USUAL_GAP_MS = 20.0
_STOPPED = "servetune stopped the load"
_HEADERS = {"Content-Type": "application/json", "User-Agent": "servetune"}


class LoadJob(Record, frozen=True, kw_only=True):
    """One load: what is sent, where, and how."""

    url: str
    """Root of the server (`http://127.0.0.1:8000`); a path before the API's is kept."""
    requests: tuple[Request, ...]
    warmup: tuple[Request, ...] = ()
    """Sent first and not recorded; their prompts are not those of `requests`."""
    rules: BodyRules = BodyRules()
    load: Load = Load()
    arrival_seed: int = 0
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Added to each request (Authorization, ...)."""
    transport: Transport = Transport()
    keep_text: bool = False
    """Keep the visible text of each answer in its record."""
    endpoint: str | None = None
    """Path of the API where it is not the usual one."""


def run_load(
    job: LoadJob,
    *,
    out: Path,
    emit: Callable[[Event], None],
    cancelled: Callable[[], bool],
    server_alive: Callable[[], bool],
    first: FirstWorker | None = None,
) -> ClientFacts:
    """Run `job`, writing a record of each request to `out` as it ends, and return what the client says about itself.

    `first` is a worker that was started while the requests were made; without it one is started now. When `cancelled`
    turns true, or `server_alive` false while requests are pending, the requests that have not ended are recorded as
    failed and the load ends soon after; this is no error here. Raises LoadFailed with cause "warmup-failed" if no
    warm-up request was answered (evidence: why), "client-failed" if the workers could not do their work; HostProblem if
    the records cannot be written; UserError for an address, header or certificate that cannot be used.
    """
    url = parse_url(job.url)
    try:
        records = begin_records(out)
    except OSError as problem:
        raise HostProblem(f"the records cannot be written: {out}: {problem.strerror}") from problem
    with records:
        try:
            route = routes(url, job.transport)[0]
        except ResolveFailed as failed:
            return _unreachable(job, records, RequestError(kind=failed.kind, message=failed.message))
        with ExitStack() as stack:
            if first is None:
                first = stack.enter_context(first_worker())
            first.files.fill(job, url, route)
            crew = _Crew(first, out)
            stack.callback(crew.end)
            last = _Watch(crew, job, emit).follow(cancelled, server_alive)
            return _conclude(crew, last, out)


@contextmanager
def first_worker() -> Iterator[FirstWorker]:
    """Start a worker that gets its job later: its start-up takes place while the caller makes the requests."""
    with ExitStack() as stack:
        files = _Files(*(stack.enter_context(tempfile.TemporaryFile(prefix="servetune-")) for _ in range(3)))
        worker = FirstWorker(files)
        stack.callback(worker.process.end)
        yield worker


class _Files:
    """What the workers inherit: files without a name, since they hold prompts and perhaps a key."""

    def __init__(self, job: BinaryIO, wires: BinaryIO, tickets: BinaryIO) -> None:
        self.job = job
        self.wires = wires
        self.tickets = tickets

    def fill(self, job: LoadJob, url: Url, route: Route) -> None:
        """Write the job for the workers."""
        self.job.write(msgspec.msgpack.encode(_worker_job(job, url, route, self.wires)))
        Tickets.write(self.tickets, len(job.requests))
        for file in (self.job, self.wires):
            file.flush()


class FirstWorker:
    """A worker that waits for its job."""

    def __init__(self, files: _Files) -> None:
        self.files = files
        self.process = _Process(0, files)


def _unreachable(job: LoadJob, records: BinaryIO, error: RequestError) -> ClientFacts:
    """Record that nothing could be sent; a warm-up that was asked for has failed."""
    if job.warmup:
        raise LoadFailed("warmup-failed", f"{error.kind}: {error.message}")
    writer = RecordWriter(records.fileno())
    for request in job.requests:
        writer.add(
            RequestRecord(index=request.index, scheduled_ns=0, requested_tokens=request.output_tokens, error=error)
        )
    writer.close()
    return ClientFacts(
        stamps="user",
        workers=0,
        epoch_ns=time.time_ns(),
        duration_ns=0,
        clock_step_ns=0,
        cpu_share=0.0,
        max_loop_lag_ms=0.0,
        late_sends=0,
        multi_event_reads=0.0,
        unresolved_ttft=0.0,
        peak_open=0,
        api=job.rules.api,
    )


# --------------------------------------------------------------------------- preparation


def _worker_job(job: LoadJob, url: Url, route: Route, wires: BinaryIO) -> WorkerJob:
    load = job.load
    return WorkerJob(
        route=route,
        warmup=_prepared(job, url, job.warmup, (0,) * len(job.warmup), wires),
        requests=_prepared(job, url, job.requests, offsets_ns(len(job.requests), load, job.arrival_seed), wires),
        max_in_flight=load.max_concurrency,
        has_rate=load.request_rate is not None or load.ramp_up is not None,
        keeps_connections=load.connections == "keep",
        idle_timeout_s=load.idle_timeout_s,
        total_timeout_s=load.total_timeout_s,
        first_byte_timeout_s=load.first_byte_timeout_s,
        max_error_rate=load.max_error_rate,
        overrun_factor=load.overrun_factor,
        keep_text=job.keep_text,
        stream=job.rules.stream,
        api=job.rules.api,
    )


def _prepared(
    job: LoadJob, url: Url, requests: tuple[Request, ...], due_ns: tuple[int, ...], wires: BinaryIO
) -> tuple[PreparedRequest, ...]:
    """Write the bytes of each request; returns where they stand."""
    path = endpoint_path(url.path, job.rules, job.endpoint)
    accepts = "text/event-stream" if job.rules.stream else "application/json"
    headers: Mapping[str, str] = {"Accept": accepts, **_HEADERS, **job.headers}
    if job.load.connections == "new":
        headers = {"Connection": "close", **headers}
    prepared = []
    begin = wires.tell()
    for request, due in zip(requests, due_ns, strict=True):
        body = body_bytes(request, job.rules)
        wire = request_bytes("POST", path, authority=url.authority, headers=headers, body=body)
        wires.write(wire)
        prepared.append(
            PreparedRequest(
                index=request.index,
                begin=begin,
                size=len(wire),
                due_ns=due,
                requested_tokens=request.output_tokens,
                local_prompt_tokens=request.prompt_tokens,
            )
        )
        begin += len(wire)
    return tuple(prepared)


def workers_for(load: Load, requests: int, event_gap_ms: float | None, cores: int) -> int:
    """Return how many processes shall send.

    Each stream is expected to bring an event every `event_gap_ms` (None: 20 ms), and one worker to take 40,000 of them
    per second. One core is left to the rest of the machine, which may hold the server; there are never more workers
    than requests in flight.
    """
    if load.workers is not None:
        return max(1, min(load.workers, requests))
    streams = min(requests, load.max_concurrency or requests)
    expected = streams * 1000 / (event_gap_ms or _USUAL_GAP_MS)
    return max(1, min(cores - 1, streams, -(-int(expected) // _CHUNKS_PER_WORKER)))


# --------------------------------------------------------------------------- the worker processes


class _Process:
    """One worker, in a session of its own, so that the terminal's signals do not reach it."""

    def __init__(self, number: int, files: _Files) -> None:
        self._stderr = tempfile.TemporaryFile(prefix="servetune-")  # noqa: SIM115  # closed by `end`
        handed = (files.job.fileno(), files.wires.fileno(), files.tickets.fileno())
        self._worker = subprocess.Popen(
            [sys.executable, "-m", "servetune.loadgen.worker", *map(str, (number, *handed))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            pass_fds=handed,
            start_new_session=True,
        )
        self._text = b""
        self.said: list[Message] = []
        """Everything but its progress."""
        self.progress = Progress(done=0, failed=0, chunks=0, elapsed_s=0.0)
        self.has_ended = False

    @property
    def stdout(self) -> int:
        """Descriptor of its messages."""
        assert self._worker.stdout is not None
        return self._worker.stdout.fileno()

    def tell(self, order: Order) -> None:
        """Send an order; one that has ended hears nothing."""
        assert self._worker.stdin is not None
        try:
            self._worker.stdin.write(msgspec.json.encode(order) + b"\n")
            self._worker.stdin.flush()
        except (BrokenPipeError, ValueError):
            # Its messages tell how it ended.
            return

    def hear(self) -> None:
        """Take what it wrote."""
        data = os.read(self.stdout, 65536)
        self.has_ended = not data
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            message: Message = msgspec.json.decode(line, type=Message)
            if isinstance(message, Progress):
                self.progress = message
            else:
                self.said.append(message)

    def kill(self) -> None:
        """End it at once."""
        os.killpg(self._worker.pid, signal.SIGKILL)

    def end(self) -> None:
        """Let it hand over and end, and kill it if it does not; may be called again."""
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        with suppress(BrokenPipeError):
            self._worker.stdin.close()
        try:
            self._worker.wait(_HAND_OVER_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self._worker.wait()
        self._worker.stdout.close()
        self._stderr.close()

    def complaint(self) -> str:
        """Return how it ended, with the end of what it wrote to stderr."""
        code = self._worker.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode("utf-8", "replace").strip().splitlines()[-5:]
        return "\n".join([f"the load worker ended with exit code {code}", *lines])


class _Crew:
    """The workers of one load."""

    def __init__(self, first: FirstWorker, out: Path) -> None:
        self._files = first.files
        self._begin = Begin(records=str(out.absolute()))
        self.workers = [first.process]
        first.process.tell(self._begin)

    def grow(self, count: int) -> None:
        """Start as many more as are missing to `count`."""
        for number in range(len(self.workers), count):
            worker = _Process(number, self._files)
            self.workers.append(worker)
            worker.tell(self._begin)

    def tell(self, order: Order) -> None:
        """Send an order to all."""
        for worker in self.workers:
            worker.tell(order)

    def hear(self, timeout_s: float) -> None:
        """Take what the workers wrote meanwhile."""
        talking = {worker.stdout: worker for worker in self.workers if not worker.has_ended}
        ready, _, _ = select.select(list(talking), [], [], timeout_s)
        for fileno in ready:
            talking[fileno].hear()

    @property
    def has_ended(self) -> bool:
        """Whether all workers have."""
        return all(worker.has_ended for worker in self.workers)

    def count(self, kind: type[Message]) -> int:
        """How many workers have said this."""
        return sum(any(isinstance(message, kind) for message in worker.said) for worker in self.workers)

    def last(self) -> list[Message | None]:
        """Return the last message of each worker; None: it died without one."""
        final = (Finished, GaveUp)
        return [next((said for said in worker.said if isinstance(said, final)), None) for worker in self.workers]

    def end(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.end()


class _Watch:
    """Leads the workers through their phases, passes their progress on, and stops them when they should stop."""

    def __init__(self, crew: _Crew, job: LoadJob, emit: Callable[[Event], None]) -> None:
        self._crew = crew
        self._job = job
        self._emit = emit
        self._shown = (0, 0.0)
        self._stop_at: float | None = None
        self._kill_at: float | None = None
        self._stage = "warm-up"

    def follow(self, cancelled: Callable[[], bool], server_alive: Callable[[], bool]) -> list[Message | None]:
        """Return the last message of each worker once all have ended."""
        while not self._crew.has_ended:
            self._crew.hear(_LOOK_EVERY_S)
            self._advance()
            self._consider_stop(cancelled, server_alive)
        return self._crew.last()

    def _advance(self) -> None:
        crew = self._crew
        if self._stage == "warm-up" and crew.count(Warm):
            self._stage = "connecting"
            workers = self._workers_needed()
            crew.grow(workers)
            for number, worker in enumerate(crew.workers):
                worker.tell(Prepare(worker=number, workers=workers))
        if self._stage == "connecting" and crew.count(Ready) == len(crew.workers):
            self._stage = "load"
            # One worker begins at once; several need a moment that none of them has missed.
            ahead_ns = _START_TOGETHER_NS if len(crew.workers) > 1 else 0
            moment = time.monotonic_ns() + ahead_ns
            crew.tell(Start(monotonic_ns=moment, epoch_ns=time.time_ns() + ahead_ns))
        if self._stage == "load":
            self._show()
        if any(isinstance(message, GaveUp) for message in crew.last()):
            self._stop("another load worker gave up")
        elif any(worker.has_ended and last is None for worker, last in zip(crew.workers, crew.last(), strict=True)):
            self._stop("another load worker died")
        for message in crew.last():
            if isinstance(message, Finished) and message.facts.aborted:
                self._stop(f"the load was ended early: {message.facts.aborted}")

    def _workers_needed(self) -> int:
        gaps = [said.event_gap_ms for said in self._crew.workers[0].said if isinstance(said, Warm)]
        return workers_for(self._job.load, len(self._job.requests), gaps[0], usable_cores())

    def _show(self) -> None:
        parts = [worker.progress for worker in self._crew.workers]
        elapsed_s = max(part.elapsed_s for part in parts)
        chunks, at_s = self._shown
        if elapsed_s <= at_s:
            return
        total = sum(part.chunks for part in parts)
        self._shown = (total, elapsed_s)
        self._emit(
            LoadProgress(
                done=sum(part.done for part in parts),
                total=len(self._job.requests),
                failed=sum(part.failed for part in parts),
                chunks_per_s=max(0, total - chunks) / (elapsed_s - at_s),
                elapsed_s=elapsed_s,
            )
        )

    def _consider_stop(self, cancelled: Callable[[], bool], server_alive: Callable[[], bool]) -> None:
        now = time.monotonic()
        if self._kill_at is not None:
            if now > self._kill_at:
                for worker in self._crew.workers:
                    worker.kill()
            return
        if self._stop_at is None and not server_alive():
            # What the server sent before its death, and the resets that it causes, are still on their way.
            self._stop_at = now + _DEAD_SERVER_GRACE_S
        if cancelled() or (self._stop_at is not None and now > self._stop_at):
            self._stop(_STOPPED)

    def _stop(self, reason: str) -> None:
        if self._kill_at is None:
            self._crew.tell(Stop(reason=reason))
            self._kill_at = time.monotonic() + _HAND_OVER_S


def _conclude(crew: _Crew, last: Sequence[Message | None], out: Path) -> ClientFacts:
    """Merge the workers' facts, or raise what went wrong first."""
    for message in last:
        if isinstance(message, GaveUp) and message.cause == "records-not-written":
            raise HostProblem(f"the records cannot be written: {out}: {message.evidence}")
        if isinstance(message, GaveUp):
            raise LoadFailed(message.cause, message.evidence)
    for worker, message in zip(crew.workers, last, strict=True):
        if message is None:
            raise LoadFailed("client-failed", worker.complaint())
    return merged([message.facts for message in last if isinstance(message, Finished)])


def merged(parts: Sequence[ClientFacts]) -> ClientFacts:
    """Return the facts of one load from those of its workers: sums of what adds up, the worst of what does not.

    Shares of reads are weighted by each worker's chunks. A client with one worker keeps its facts.
    """
    if len(parts) == 1:
        return parts[0]
    chunks = sum(part.chunks for part in parts)

    def mean(name: str) -> float:
        return float(sum(getattr(part, name) * part.chunks for part in parts) / max(1, chunks))

    def worst(name: str) -> float:
        return float(max(getattr(part, name) for part in parts))

    epoch_ns = min(part.epoch_ns for part in parts)
    return ClientFacts(
        stamps="user" if any(part.stamps == "user" for part in parts) else "kernel",
        workers=len(parts),
        epoch_ns=epoch_ns,
        duration_ns=max(part.duration_ns for part in parts),
        clock_step_ns=max((part.clock_step_ns for part in parts), key=abs),
        cpu_share=sum(part.cpu_share for part in parts),
        max_loop_lag_ms=worst("max_loop_lag_ms"),
        late_sends=sum(part.late_sends for part in parts),
        multi_event_reads=mean("multi_event_reads"),
        unresolved_ttft=mean("unresolved_ttft"),
        peak_open=sum(part.peak_open for part in parts),
        api=parts[0].api,
        chunks=chunks,
        read_lag_p50_ms=worst("read_lag_p50_ms"),
        read_lag_p99_ms=worst("read_lag_p99_ms"),
        late_merged_reads=mean("late_merged_reads"),
        slot_gap_p99_ms=worst("slot_gap_p99_ms"),
        send_lag_p99_ms=worst("send_lag_p99_ms"),
        cpu_wait_share=worst("cpu_wait_share"),
        max_unread_bytes=max(part.max_unread_bytes for part in parts),
        nap_ms=worst("nap_ms"),
        retried=sum(part.retried for part in parts),
        aborted=next((part.aborted for part in parts if part.aborted), ""),
    )
