"""The process that makes the load: `python -m servetune.loadgen.worker JOBFILE RECORDFILE`.

Reads the job, warms the server up, runs the load, writes each record as its request ends, and reports on stdout, one
JSON message a line (`job.Message`). It stops when its stdin ends: on purpose, or because the parent died. It must stay
light: no numpy, no tokenizers, nothing that delays its start.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

import msgspec
import uvloop

from servetune.loadgen.client import Client
from servetune.loadgen.connection import KERNEL_STAMPS, raise_descriptor_limit
from servetune.loadgen.exchange import Exchange
from servetune.loadgen.job import Finished, GaveUp, Message, Progress, WorkerJob
from servetune.loadgen.recordfile import RecordWriter
from servetune.records import EVENT_OUTPUT, ClientFacts, RequestRecord

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_STDIN, _STDOUT = 0, 1
_REPORT_EVERY_S = 0.25
_DECODE_EVERY_S = 0.004
_DECODE_SLICE_NS = _NS_PER_MS
_BEHIND_NS = 2 * _NS_PER_MS
_MOST_WAITING = 2000
_BEAT_S = 0.02
_SPARE_DESCRIPTORS = 32
_STOPPED = "servetune stopped the load"


class Recorder:
    """Decodes ended exchanges a little at a time, so that sends and reads are not held up, and writes their records."""

    def __init__(self, writer: RecordWriter, *, keep_text: bool) -> None:
        self._writer = writer
        self._keep_text = keep_text
        self._waiting: deque[Exchange] = deque()
        self.done = 0
        self.failed = 0
        self.last_end_ns = 0
        self._reads = 0
        self._merged_reads = 0
        self._answers = 0
        self._unresolved = 0

    def add(self, exchange: Exchange) -> None:
        """Take an exchange that ended."""
        self._waiting.append(exchange)
        self.done += 1
        self.last_end_ns = max(self.last_end_ns, exchange.closed_ns or 0)

    @property
    def waiting(self) -> int:
        """Exchanges that ended and have no record yet."""
        return len(self._waiting)

    def work(self, slice_ns: int | None = None) -> None:
        """Decode and write what waits, for about `slice_ns` at most."""
        until = time.monotonic_ns() + slice_ns if slice_ns else None
        while self._waiting and (until is None or time.monotonic_ns() < until):
            record = self._waiting.popleft().record(keep_text=self._keep_text)
            self.failed += record.error is not None
            self._count_reads(record)
            self._writer.add(record)

    def flush(self) -> None:
        """Hand the written records to the system."""
        self._writer.flush()

    @property
    def multi_event_reads(self) -> float:
        """Share of the reads with output that held more than one event with output."""
        return self._merged_reads / self._reads if self._reads else 0.0

    @property
    def unresolved_ttft(self) -> float:
        """Share of the answers whose first read with output held more than one event with output."""
        return self._unresolved / self._answers if self._answers else 0.0

    def _count_reads(self, record: RequestRecord) -> None:
        outputs = []
        at = 0
        for events in record.read_events:
            count = sum(1 for flags in record.event_flags[at : at + events] if flags & EVENT_OUTPUT)
            at += events
            if count:
                outputs.append(count)
        self._reads += len(outputs)
        self._merged_reads += sum(1 for count in outputs if count > 1)
        self._answers += bool(outputs)
        self._unresolved += bool(outputs) and outputs[0] > 1


class Worker:
    """One job on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, job: WorkerJob, records: Path) -> None:
        self._loop = loop
        self._job = job
        self._records = records
        self._phase: Client | None = None
        self._cancelled = False
        self._max_lag_ms = 0.0

    async def run(self) -> Message:
        """Do the whole job and return the last message."""
        self._loop.add_reader(_STDIN, self._told_to_stop)
        self._collect_no_garbage()
        if refusal := self._too_few_descriptors():
            return GaveUp(cause="client-failed", evidence=refusal)
        if refusal := await self._warm_up():
            return GaveUp(cause="warmup-failed", evidence=refusal)
        try:
            return await self._measure()
        except OSError as problem:
            return GaveUp(cause="records-not-written", evidence=f"{self._records}: {problem.strerror or problem}")

    def _told_to_stop(self) -> None:
        self._loop.remove_reader(_STDIN)
        self._cancelled = True
        if self._phase is not None:
            self._phase.cancel(_STOPPED)

    def _collect_no_garbage(self) -> None:
        # The collector would stop the loop for milliseconds; what this process drops holds no cycles.
        gc.collect()
        gc.freeze()
        gc.disable()

    def _too_few_descriptors(self) -> str:
        limit = raise_descriptor_limit()
        at_once = len(self._job.requests) if self._job.max_in_flight is None else self._job.max_in_flight
        needed = min(at_once, len(self._job.requests)) + _SPARE_DESCRIPTORS
        if needed <= limit or self._job.has_rate:
            return ""
        return f"{needed} open files are needed and {limit} allowed: raise `ulimit -n` or set a concurrency limit"

    async def _warm_up(self) -> str:
        """Send the warm-up requests; returns why all of them failed, or ""."""
        if not self._job.warmup or self._cancelled:
            return ""
        ended: list[Exchange] = []
        warm = msgspec.structs.replace(self._job, has_rate=False)
        self._phase = Client(self._loop, warm, self._job.warmup, ended.append)
        await self._phase.connect()
        await self._phase.run()
        errors = [exchange.record(keep_text=False).error for exchange in ended]
        if self._cancelled or not all(errors):
            return ""
        reasons = dict.fromkeys(
            f"{error.kind}: {' '.join(error.message.split())[:300]}" for error in errors if error is not None
        )
        return "\n".join(list(reasons)[:3])

    async def _measure(self) -> Message:
        writer = RecordWriter(self._records)
        recorder = Recorder(writer, keep_text=self._job.keep_text)
        client = self._phase = Client(self._loop, self._job, self._job.requests, recorder.add)
        if self._cancelled:
            client.cancel(_STOPPED)
        await client.connect()
        offset_ns = _clock_offset_ns()
        cpu_s, wall_s = time.process_time(), time.monotonic()
        chores = [
            self._loop.create_task(self._record(recorder)),
            self._loop.create_task(self._report(client, recorder)),
        ]
        chores.append(self._loop.create_task(self._beat()))
        load = self._loop.create_task(client.run())
        await asyncio.wait([load, *chores], return_when=asyncio.FIRST_COMPLETED)
        cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
        for chore in chores:
            chore.cancel()
        await self._collect_errors(load, chores)
        recorder.work()
        writer.close()
        facts = self._facts(client, recorder)
        return Finished(
            facts=msgspec.structs.replace(
                facts, clock_step_ns=_clock_offset_ns() - offset_ns, cpu_share=cpu_s / wall_s if wall_s else 0.0
            )
        )

    async def _collect_errors(self, load: asyncio.Task[None], chores: list[asyncio.Task[None]]) -> None:
        """Raise what ended a task early: a full disk ends the load."""
        if not load.done():
            load.cancel()
        results = await asyncio.gather(load, *chores, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    def _facts(self, client: Client, recorder: Recorder) -> ClientFacts:
        return ClientFacts(
            stamps="kernel" if KERNEL_STAMPS and not client.user_stamps else "user",
            workers=1,
            epoch_ns=client.epoch_ns,
            duration_ns=max(0, recorder.last_end_ns - client.epoch_ns),
            clock_step_ns=0,
            cpu_share=0.0,
            max_loop_lag_ms=self._max_lag_ms,
            late_sends=client.late_sends,
            multi_event_reads=recorder.multi_event_reads,
            unresolved_ttft=recorder.unresolved_ttft,
            peak_open=client.peak_open,
            api=self._job.api,
        )

    async def _record(self, recorder: Recorder) -> None:
        while True:
            before = time.monotonic_ns()
            await asyncio.sleep(_DECODE_EVERY_S)
            late_ns = time.monotonic_ns() - before - _DECODE_EVERY_S * _NS_PER_S
            # Reads come first: a loop that is behind decodes only when much has piled up.
            if late_ns < _BEHIND_NS or recorder.waiting > _MOST_WAITING:
                recorder.work(_DECODE_SLICE_NS)

    async def _report(self, client: Client, recorder: Recorder) -> None:
        while True:
            await asyncio.sleep(_REPORT_EVERY_S)
            recorder.flush()
            elapsed_s = (time.time_ns() - client.epoch_ns) / _NS_PER_S
            progress = Progress(done=recorder.done, failed=recorder.failed, chunks=client.chunks, elapsed_s=elapsed_s)
            # A parent that does not read must not stop the load: this line is then left out.
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(_STDOUT, msgspec.json.encode(progress) + b"\n")

    async def _beat(self) -> None:
        while True:
            before = time.monotonic_ns()
            await asyncio.sleep(_BEAT_S)
            lag_ms = (time.monotonic_ns() - before) / _NS_PER_MS - _BEAT_S * 1000
            self._max_lag_ms = max(self._max_lag_ms, lag_ms)


def _clock_offset_ns() -> int:
    """CLOCK_REALTIME - CLOCK_MONOTONIC, from the quickest of a few readings."""
    readings = []
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        readings.append((after - before, wall - (before + after) // 2))
    return min(readings)[1]


def main() -> None:
    """Run the job of the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job_path, record_path = sys.argv[1:]
    job = msgspec.msgpack.decode(Path(job_path).read_bytes(), type=WorkerJob)
    # It holds prompts and perhaps a key, and the parent may be killed before it can remove it.
    Path(job_path).unlink()
    os.set_blocking(_STDOUT, False)
    loop = uvloop.new_event_loop()
    last = loop.run_until_complete(Worker(loop, job, Path(record_path)).run())
    os.set_blocking(_STDOUT, True)
    with suppress(BrokenPipeError):
        os.write(_STDOUT, msgspec.json.encode(last) + b"\n")
    loop.close()


if __name__ == "__main__":
    main()
