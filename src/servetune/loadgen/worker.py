"""A process that makes load: `python -m servetune.loadgen.worker NUMBER JOB REQUESTS TICKETS`.

The last three are inherited open files. The first worker warms the server up. Each opens its connections, begins when
the parent says so, writes a record of each request as it ends, and reports on stdout (`job.Message`). It stops when its
stdin ends: the parent died. It must stay light: no numpy, no tokenizers, nothing that delays its start.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from servetune.loadgen.client import Client
from servetune.loadgen.connection import KERNEL_STAMPS, raise_descriptor_limit
from servetune.loadgen.exchange import Exchange
from servetune.loadgen.job import (
    Begin,
    Finished,
    GaveUp,
    Message,
    Order,
    Prepare,
    Progress,
    Ready,
    Start,
    Stop,
    Warm,
    WorkerJob,
)
from servetune.loadgen.loop import Loop
from servetune.loadgen.measure import Processor, Pulse, Sample, clock_offset_ns
from servetune.loadgen.recordfile import RecordWriter
from servetune.loadgen.sse import Stream
from servetune.loadgen.supply import Schedule, Share, Tickets
from servetune.records import EVENT_OUTPUT, ClientFacts
from servetune.tls import tls_context

if TYPE_CHECKING:
    from ssl import SSLContext


_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_STDIN, _STDOUT = 0, 1
_REPORT_EVERY_NS = 250 * _NS_PER_MS
_DECODE_EVERY_NS = 4 * _NS_PER_MS
_DECODE_SLICE_NS = _NS_PER_MS
_BEHIND_NS = 2 * _NS_PER_MS
_MOST_WAITING_BYTES = 80 * 1024 * 1024
_BYTES_PER_READ = 100
_LATE_NS = 5 * _NS_PER_MS
_LAG_EVERY = 32
_SPARE_DESCRIPTORS = 32
_JUDGED_FROM = 20
_ORPHANED = "servetune stopped the load"


class Inherited(NamedTuple):
    """File descriptors that the parent hands over."""

    job: int
    wires: int
    tickets: int


class Recorder:
    """Decodes ended exchanges a little at a time, so that sends and reads are not held up, and writes their records."""

    def __init__(self, writer: RecordWriter, loop: Loop, max_error_rate: float | None) -> None:
        self._writer = writer
        self._loop = loop
        self._is_called = False
        self._max_error_rate = max_error_rate
        self.waiting: deque[Exchange] = deque()
        self._waiting_bytes = 0
        self.fails_too_often: Callable[[str], None] = _ignore
        """Called once when more requests failed than are accepted."""
        self.done = 0
        self.decoded = 0
        self.failed = 0
        self.parts = 0
        self.last_end_ns = 0
        self.user_stamps = False
        self.lags_ns = Sample()
        self._reads = 0
        self._merged_reads = 0
        self._late_merged_reads = 0
        self._answers = 0
        self._unresolved = 0

    def add(self, exchange: Exchange) -> None:
        """Take an exchange that ended; decodes at once where too much waits."""
        self.waiting.append(exchange)
        exchange.size_bytes = sum(map(len, exchange.reads)) + _BYTES_PER_READ * len(exchange.reads)
        self._waiting_bytes += exchange.size_bytes
        self.done += 1
        self.last_end_ns = max(self.last_end_ns, exchange.closed_ns or 0)
        while self._waiting_bytes > _MOST_WAITING_BYTES:
            self._decode_one()
        self._call_later()

    def _call_later(self) -> None:
        """Decode a slice soon, unless the loop, asleep between polls, has done it by then."""
        if self._is_called or not self.waiting:
            return
        self._is_called = True
        due_ns = time.monotonic_ns() + _DECODE_EVERY_NS

        def chore() -> None:
            self._is_called = False
            # Reads come first: not while the loop is behind.
            if time.monotonic_ns() - due_ns < _BEHIND_NS:
                self.work(_DECODE_SLICE_NS)
            self._call_later()

        self._loop.later(_DECODE_EVERY_NS, chore)

    def work(self, slice_ns: int) -> bool:
        """Decode what waits for about `slice_ns`; returns whether anything waited."""
        if not self.waiting:
            return False
        until = time.monotonic_ns() + slice_ns
        while self.waiting and time.monotonic_ns() < until:
            self._decode_one()
        return True

    def finish(self) -> None:
        """Decode and write all that is left."""
        while self.waiting:
            self._decode_one()
        self._writer.close()

    def flush(self) -> None:
        """Hand the written records to the system."""
        self._writer.flush()

    def facts(self, facts: ClientFacts) -> ClientFacts:
        """Add what the reads tell."""
        kernel = KERNEL_STAMPS and not self.user_stamps
        return msgspec.structs.replace(
            facts,
            stamps="kernel" if kernel else "user",
            multi_event_reads=_share(self._merged_reads, self._reads),
            late_merged_reads=_share(self._late_merged_reads, self._reads),
            unresolved_ttft=_share(self._unresolved, self._answers),
            read_lag_p50_ms=self.lags_ns.quantile(0.5) / _NS_PER_MS if kernel else 0.0,
            read_lag_p99_ms=self.lags_ns.quantile(0.99) / _NS_PER_MS if kernel else 0.0,
            chunks=self.parts,
        )

    def _decode_one(self) -> None:
        exchange = self.waiting.popleft()
        self._waiting_bytes -= exchange.size_bytes
        record, stream = exchange.record()
        self._writer.add(record)
        self.parts += len(exchange.framing.parts)
        self.decoded += 1
        self.failed += record.error is not None
        self.user_stamps = self.user_stamps or exchange.has_user_stamps
        self._count_reads(exchange, stream)
        self._judge()

    def _judge(self) -> None:
        limit = self._max_error_rate
        if limit is None or self.decoded < _JUDGED_FROM or self.failed <= limit * self.decoded:
            return
        self._max_error_rate = None
        self.fails_too_often(f"{self.failed} of {self.decoded} requests failed, more than {limit:.0%}")

    def _count_reads(self, exchange: Exchange, stream: Stream) -> None:
        polls, stamps, bringers = exchange.polls, exchange.stamps_ns, exchange.bringers
        for at in range(0, len(polls), _LAG_EVERY):
            self.lags_ns.add(polls[at] - stamps[at])
        if len(stream.read_events) == len(stream.flags):
            # One event a read, as is usual: nothing merged.
            outputs = _outputs(stream.flags)
            self._reads += outputs
            self._answers += outputs > 0
            return
        at = 0
        is_first = True
        late_ns = _late_ns(stamps, len(stream.flags))
        for number, events in zip(stream.reads, stream.read_events, strict=True):
            read = bringers[number]
            count = _outputs(stream.flags[at : at + events])
            at += events
            if not count:
                continue
            self._reads += 1
            if count > 1:
                self._merged_reads += 1
                self._late_merged_reads += polls[read] - stamps[read] > late_ns
            if is_first:
                is_first = False
                self._answers += 1
                self._unresolved += count > 1


class Worker:
    """One job on one loop."""

    def __init__(self, number: int, files: Inherited) -> None:
        self._number = number
        self._files = files
        self._loop = Loop()
        self._context: SSLContext | None = None
        self._phase: Client | None = None
        self._orders: deque[Order] = deque()
        self._text = b""
        self._stop_reason = ""
        self._aborted = ""

    def run(self) -> Message:
        """Do the whole job and return the last message."""
        self._loop.watch(_STDIN, self._hear)
        begin = self._next_order()
        if not isinstance(begin, Begin):
            return GaveUp(cause="client-failed", evidence=self._stop_reason)
        self._job = _read_job(self._files.job)
        self._wires = _mapped(self._files.wires)
        self._collect_no_garbage()
        if self._job.route.tls:
            self._context = tls_context(self._job.route.transport)
        if refusal := self._too_few_descriptors():
            return GaveUp(cause="client-failed", evidence=refusal)
        if self._number == 0 and (refusal := self._warm_up()):
            return GaveUp(cause="warmup-failed", evidence=refusal)
        try:
            return self._measure(begin.records)
        except OSError as problem:
            return GaveUp(cause="records-not-written", evidence=problem.strerror or str(problem))

    # ------------------------------------------------------------------ orders

    def _hear(self, _: int) -> None:
        while data := _read_stdin():
            *lines, self._text = (self._text + data).split(b"\n")
            for line in lines:
                order: Order = msgspec.json.decode(line, type=Order)
                if isinstance(order, Stop):
                    self._stop(order.reason)
                else:
                    self._orders.append(order)
        if data is not None:
            self._loop.forget(_STDIN)
            self._stop(_ORPHANED)
        self._loop.stop()

    def _stop(self, reason: str) -> None:
        self._stop_reason = self._stop_reason or reason
        if self._phase is not None:
            self._phase.cancel(reason)
        self._loop.stop()

    def _next_order(self) -> Order | None:
        """Wait for the next order; None: told to stop."""
        while not self._orders and not self._stop_reason:
            self._loop.run()
        return None if self._stop_reason else self._orders.popleft()

    # ------------------------------------------------------------------ phases

    def _collect_no_garbage(self) -> None:
        # The collector would stop the loop for milliseconds; what this process drops holds no cycles.
        gc.collect()
        gc.freeze()
        gc.disable()

    def _too_few_descriptors(self) -> str:
        job = self._job
        limit = raise_descriptor_limit()
        at_once = len(job.requests) if job.max_in_flight is None else job.max_in_flight
        needed = min(at_once, len(job.requests)) + _SPARE_DESCRIPTORS
        if needed <= limit or job.has_rate:
            return ""
        return f"{needed} open files are needed and {limit} allowed: raise `ulimit -n` or set a concurrency limit"

    def _warm_up(self) -> str:
        """Send the warm-up requests; returns why all of them failed, or ""."""
        warmup = self._job.warmup
        ended: list[Exchange] = []
        if warmup and not self._stop_reason:
            job = msgspec.structs.replace(self._job, has_rate=False)
            slots = min(len(warmup), self._job.max_in_flight or len(warmup))
            client = self._new_client(job, Share(Schedule(warmup), slots), ended.append)
            pulse = Pulse(self._loop, client, naps=False)
            pulse.start()
            client.connect()
            client.run(time.time_ns(), time.monotonic_ns())
            pulse.stop()
            self._phase = None
            gap_ns = pulse.event_gap_ns
        else:
            gap_ns = None
        errors = [exchange.record()[0].error for exchange in ended]
        if not self._stop_reason and errors and all(errors):
            reasons = dict.fromkeys(
                f"{error.kind}: {' '.join(error.message.split())[:300]}" for error in errors if error is not None
            )
            return "\n".join(list(reasons)[:3])
        _say(Warm(event_gap_ms=None if gap_ns is None else gap_ns / _NS_PER_MS))
        return ""

    def _measure(self, records: str) -> Message:
        job = self._job
        prepare = self._next_order()
        worker, workers = (prepare.worker, prepare.workers) if isinstance(prepare, Prepare) else (self._number, 1)
        recorder = Recorder(RecordWriter(os.open(records, os.O_WRONLY | os.O_APPEND)), self._loop, job.max_error_rate)
        client = self._new_client(job, self._share(worker, workers), recorder.add)
        recorder.fails_too_often = self._abort
        naps = KERNEL_STAMPS and job.route.family != socket.AF_UNIX
        pulse = Pulse(self._loop, client, naps=naps)
        if self._stop_reason:
            client.cancel(self._stop_reason)
        client.connect()
        _say(Ready())
        start = self._next_order()
        offset_ns = clock_offset_ns()
        processor = Processor()
        self._loop.idle = recorder.work
        self._loop.sleeps_to_the_point = naps and job.has_rate
        self._report(client, recorder)
        pulse.start()
        if isinstance(start, Start):
            client.run(start.epoch_ns, start.monotonic_ns)
        nap_ns = self._loop.nap_ns
        pulse.stop()
        recorder.finish()
        cpu_share, cpu_wait_share = processor.shares()
        lags = Sample()
        for lag_ns in client.lags_ns:
            lags.add(lag_ns)
        lag_ms = lags.quantile(0.99) / _NS_PER_MS
        facts = ClientFacts(
            stamps="user",
            workers=1,
            epoch_ns=client.epoch_ns,
            duration_ns=max(0, recorder.last_end_ns - client.epoch_ns),
            clock_step_ns=clock_offset_ns() - offset_ns,
            cpu_share=cpu_share,
            max_loop_lag_ms=pulse.max_lag_ns / _NS_PER_MS,
            late_sends=client.late_sends,
            multi_event_reads=0.0,
            unresolved_ttft=0.0,
            peak_open=client.peak_open,
            api=job.api,
            slot_gap_p99_ms=0.0 if job.has_rate else lag_ms,
            send_lag_p99_ms=lag_ms if job.has_rate else 0.0,
            cpu_wait_share=cpu_wait_share,
            max_unread_bytes=pulse.max_unread_bytes,
            nap_ms=nap_ns / _NS_PER_MS,
            retried=client.retried,
            aborted=self._aborted,
        )
        return Finished(facts=recorder.facts(facts))

    def _share(self, worker: int, workers: int) -> Share:
        """Return this worker's part of the requests and of the slots."""
        job = self._job
        requests = job.requests
        slots = min(len(requests), job.max_in_flight or len(requests))
        own_slots = slots // workers + (worker < slots % workers)
        if job.has_rate:
            return Share(Schedule(requests[worker::workers]), own_slots)
        if workers == 1:
            return Share(Schedule(requests), slots)
        return Share(Tickets(requests, self._files.tickets), own_slots)

    def _new_client(self, job: WorkerJob, share: Share, ended: Callable[[Exchange], None]) -> Client:
        self._phase = Client(self._loop, job, share, self._wires, context=self._context, ended=ended)
        return self._phase

    def _abort(self, reason: str) -> None:
        self._aborted = reason
        self._loop.soon(lambda: self._stop(f"the load was ended early: {reason}"))

    # ------------------------------------------------------------------ chores

    def _report(self, client: Client, recorder: Recorder) -> None:
        def chore() -> None:
            recorder.flush()
            unread = sum(len(exchange.reads) for exchange in (*client.running, *recorder.waiting))
            elapsed_s = (time.time_ns() - client.epoch_ns) / _NS_PER_S if client.epoch_ns else 0.0
            progress = Progress(
                done=recorder.done, failed=recorder.failed, chunks=recorder.parts + unread, elapsed_s=elapsed_s
            )
            # A parent that does not read must not stop the load: this line is then left out.
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(_STDOUT, msgspec.json.encode(progress) + b"\n")
            self._report(client, recorder)

        self._loop.later(_REPORT_EVERY_NS, chore)


def _read_stdin() -> bytes | None:
    """Return what is there; None: nothing is, b"": nothing will be."""
    try:
        return os.read(_STDIN, 65536)
    except BlockingIOError:
        return None


def _ignore(_: str) -> None:
    """Nobody listens yet."""


def _outputs(flags: Sequence[int]) -> int:
    """Count the events with output."""
    return sum(flags.count(kind) for kind in set(flags) if kind & EVENT_OUTPUT)


def _late_ns(stamps: Sequence[int], events: int) -> int:
    """Return the lag of a read from which on it is the client that let events of this stream merge."""
    gap_ns = (stamps[-1] - stamps[0]) // max(1, events - 1)
    return max(_NS_PER_MS, min(_LATE_NS, gap_ns // 4))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _read_job(fileno: int) -> WorkerJob:
    size = os.fstat(fileno).st_size
    return msgspec.msgpack.decode(os.pread(fileno, size, 0), type=WorkerJob)


def _mapped(fileno: int) -> memoryview:
    """Map the requests' bytes: all workers share one copy of them."""
    size = os.fstat(fileno).st_size
    return memoryview(mmap.mmap(fileno, size, prot=mmap.PROT_READ)) if size else memoryview(b"")


def _say(message: Message) -> None:
    os.set_blocking(_STDOUT, True)
    with suppress(BrokenPipeError):
        os.write(_STDOUT, msgspec.json.encode(message) + b"\n")
    os.set_blocking(_STDOUT, False)


def main() -> None:
    """Run the job of the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    number, *files = map(int, sys.argv[1:])
    os.set_blocking(_STDIN, False)
    _say(Worker(number, Inherited(*files)).run())


if __name__ == "__main__":
    main()
