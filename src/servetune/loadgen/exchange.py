"""One request and what came back: raw while it runs, a RequestRecord once it ended.

On the hot path only times and bytes are kept; framing is looked at where a read may have ended the answer, and the body
is decoded by `record` after that.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import accumulate, compress
from typing import Literal

from servetune.http1 import ResponseFraming
from servetune.loadgen.connection import MARK_BYTES, Connection, stamps_ns
from servetune.loadgen.job import PreparedRequest, WorkerJob
from servetune.loadgen.sse import Stream, decode
from servetune.records import (
    EVENT_DONE,
    EVENT_FINISH,
    EVENT_INVALID,
    EVENT_OUTPUT,
    RequestError,
    RequestErrorKind,
    RequestRecord,
)

BIG_BYTES = 16 * 1024
"""A larger read is looked at when it comes."""
_LONGEST_MESSAGE_BYTES = 1024
_LONGEST_REFUSAL_BYTES = 64 * 1024
_LONGEST_LINE_BYTES = 1024 * 1024
_LONGEST_ANSWER_BYTES = 8 * 1024 * 1024
_LONGEST_EVENT_BYTES = 16 * 1024
_FEWEST_EVENTS = 64
_EVENT = b"data:"
_LAST_EVENT = b"data: [DONE]"
_FAULTS_IN_SPITE_OF_DONE = ("protocol", "overrun", "oversize")
_FAR_TOO_LONG = ("overrun", "oversize")
_BYTES_OF_TOO_LONG = 128 * 1024
_DONE_CHUNK = b"data: [DONE]\n\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_DONE_AND_LAST_CHUNK = _DONE_CHUNK + _LAST_CHUNK


class Exchange:
    """State of one request. Times are ns of CLOCK_REALTIME until `record` makes them relative."""

    __slots__ = (
        "_checked_parts",
        "_events",
        "_fed",
        "_look_at_bytes",
        "_look_at_reads",
        "_read_ends",
        "_size",
        "bringers",
        "bytes_sent",
        "closed_ns",
        "connection",
        "epoch_ns",
        "error",
        "framing",
        "has_user_stamps",
        "heard_ns",
        "heard_reads",
        "is_streaming",
        "job",
        "look_again_ns",
        "marks",
        "most_events",
        "polls",
        "reads",
        "request",
        "retries",
        "reused",
        "runnable_ns",
        "scheduled_ns",
        "sent_done_ns",
        "sent_ns",
        "size_bytes",
        "stamps_ns",
        "started_ns",
        "was_queued",
        "wire",
    )

    def __init__(self, request: PreparedRequest, wire: memoryview, job: WorkerJob) -> None:
        self.request = request
        self.wire = wire
        self.job = job
        self.epoch_ns = 0
        """Time 0 of its record."""
        self.scheduled_ns = 0
        self.runnable_ns = 0
        """When it was due and allowed to start: later than `scheduled_ns` if it waited for a free slot."""
        self.sent_ns: int | None = None
        self.retries = 0
        self.closed_ns: int | None = None
        self.error: RequestError | None = None
        self.reused = False
        self.was_queued = False
        """It was due while no slot was free."""
        self.size_bytes = 0
        """About how much memory its answer takes; set by who keeps it."""
        self.has_user_stamps = False
        """The kernel gave no receive time for some of its reads."""
        self.started_ns = 0
        """When it was sent, on the steady clock that time-outs use."""
        self.most_events = max(_FEWEST_EVENTS, math.ceil(job.overrun_factor * request.requested_tokens))
        self.connection: Connection | None = None
        self._begin()

    def begin_again(self) -> None:
        """Forget what a broken connection brought; the first start stays."""
        self.framing.release()
        self.retries += 1
        self._begin()

    def _begin(self) -> None:
        self.framing = ResponseFraming()
        self.reads: list[bytes] = []
        """What each read brought."""
        self.marks = bytearray()
        """The time of each, as the kernel gives it; one flat piece of memory, since it lies there for a while."""
        self.polls = array("q")
        """When the loop had polled before each."""
        self.is_streaming = False
        """The answer is a stream in chunks, of which only the last one needs a look."""
        self.bytes_sent = 0
        self.sent_done_ns: int | None = None
        self.heard_reads = 0
        self.heard_ns = 0
        """When a look at this exchange first saw `heard_reads` reads, on the steady clock."""
        self.look_again_ns = 0
        self._fed = 0
        self.stamps_ns: list[int] = []
        """Receive times of all reads; known once they were decoded."""
        self.bringers: list[int] = []
        """Numbers of the reads that brought a part of the body."""
        self._read_ends: list[int] = []
        self._size = 0
        self._checked_parts = 0
        self._events = 0
        self._look_at_reads = self.most_events
        self._look_at_bytes = _LONGEST_LINE_BYTES

    @property
    def answered(self) -> bool:
        """Whether any byte came back."""
        return bool(self.reads)

    @property
    def over(self) -> bool:
        """Whether nothing more is to come."""
        return self.framing.complete or self.error is not None

    def ends_plainly(self) -> bool:
        """Tell from the last bytes alone that a streamed answer is complete; False says nothing.

        `[DONE]`, the end of its chunk and the last chunk cannot follow each other inside a stream. Most streams end
        so, and what is left to do for them can wait; `record` checks the framing all the same.
        """
        last = self.reads[-1]
        if last == _LAST_CHUNK and len(self.reads) > 1:
            return self.reads[-2].endswith(_DONE_CHUNK)
        return last.endswith(_DONE_AND_LAST_CHUNK)

    def feed(self) -> None:
        """Look through the reads that were not looked at yet."""
        framing, reads = self.framing, self.reads
        new = reads[self._fed :] if self._fed else reads
        before = len(framing.parts)
        counts, problem = framing.feed_each(new)
        self._size += sum(map(len, new))
        numbers: Sequence[int] = range(self._fed, len(reads))
        if counts != list(range(before + 1, before + len(new) + 1)):
            # Not one part a read: those without any are left out.
            grown = [after > count for count, after in zip([before, *counts], counts, strict=False)]
            numbers = list(compress(numbers, grown))
            counts = list(compress(counts, grown))
        self.bringers += numbers
        self._read_ends += counts
        if problem:
            self.fail("protocol", problem)
        self._fed = len(reads)
        if not self.is_streaming and framing.head_complete and not framing.complete:
            self.is_streaming = framing.status == 200 and "transfer-encoding" in framing.headers
        if self._fed >= self._look_at_reads or self._size >= self._look_at_bytes:
            self._check_size()
        if self._size > _LONGEST_REFUSAL_BYTES and framing.head_complete and framing.status != 200:
            self.fail("oversize", "more of the refusal than anybody reads")

    @property
    def needs_look(self) -> bool:
        """Whether so many reads came that the answer may be an endless one."""
        return len(self.reads) >= self._look_at_reads

    def _check_size(self) -> None:
        """Cut an answer that is far longer than what was asked for."""
        new = self.framing.parts[self._checked_parts :]
        self._checked_parts += len(new)
        self._events += sum(part.count(_EVENT) for part in new)
        self._look_at_reads = self._fed + _FEWEST_EVENTS
        self._look_at_bytes = self._size + _LONGEST_LINE_BYTES
        if self._events > self.most_events:
            self.fail("overrun", f"{self._events} events came for {self.request.requested_tokens} tokens asked for")
        elif self._size > (most_bytes := max(_LONGEST_ANSWER_BYTES, self.most_events * _LONGEST_EVENT_BYTES)):
            self.fail("oversize", f"the answer is longer than {most_bytes >> 20} MiB")
        elif sum(map(len, new)) > _LONGEST_LINE_BYTES and not any(b"\n" in part for part in new):
            self.fail("oversize", f"a line of the answer is longer than {_LONGEST_LINE_BYTES >> 20} MiB")

    @property
    def has_said_done(self) -> bool:
        """Whether the last part of the body is the stream's own end mark."""
        return any(_LAST_EVENT in part for part in self.framing.parts[-2:])

    def fail(self, kind: RequestErrorKind, message: str) -> None:
        """Note the first reason for failure."""
        if self.error is None:
            self.error = RequestError(kind=kind, message=message)

    def end(self, now_ns: int) -> None:
        """Note the end of the response."""
        self.closed_ns = now_ns
        self.connection = None

    def last_stamp_ns(self) -> int:
        """Receive time of the last read."""
        return stamps_ns(self.marks[-MARK_BYTES:])[0]

    def record(self) -> tuple[RequestRecord, Stream]:
        """Decode the body and return the finished record, with times from the epoch, and what the stream held."""
        self.feed()
        self.framing.release()
        if self.error is None and not self.framing.complete:
            self.fail("protocol", "bytes that end an answer stood in the middle of it")
        epoch_ns = self.epoch_ns
        status = self.framing.status
        stream = self._decoded() if status == 200 and self.bringers else Stream()
        times, bringers = stamps_ns(self.marks), self.bringers
        self.stamps_ns = times
        record = RequestRecord(
            index=self.request.index,
            scheduled_ns=self.scheduled_ns - epoch_ns,
            sent_ns=_since(epoch_ns, self.sent_ns),
            sent_done_ns=_since(epoch_ns, self.sent_done_ns),
            reads_ns=tuple([times[bringers[read]] - epoch_ns for read in stream.reads]),
            read_events=stream.read_events,
            event_flags=stream.flags,
            event_tokens=stream.tokens,
            closed_ns=_since(epoch_ns, self.closed_ns),
            requested_tokens=self.request.requested_tokens,
            local_prompt_tokens=self.request.local_prompt_tokens,
            usage_prompt_tokens=stream.prompt_tokens,
            usage_output_tokens=stream.output_tokens,
            usage_cached_tokens=stream.cached_tokens,
            text=stream.text,
            status=status,
            retries=self.retries,
            reused_connection=self.reused,
            error=self._verdict(stream),
        )
        return record, stream

    def _decoded(self) -> Stream:
        job, parts, read_ends = self.job, self.framing.parts, self._read_ends
        if self.error is not None and self.error.kind in _FAR_TOO_LONG:
            # The beginning tells what it was; all of it would hold up the answers of others.
            sizes = list(accumulate(map(len, parts)))
            read_ends = [end for end in read_ends if sizes[end - 1] <= _BYTES_OF_TOO_LONG]
            parts = parts[: read_ends[-1]] if read_ends else []
        form: Literal["events", "json"] = "events" if job.stream else "json"
        return decode(parts, read_ends, keep_text=job.keep_text, form=form, api=job.api)

    # ------------------------------------------------------------------ verdict

    def _verdict(self, stream: Stream) -> RequestError | None:
        """Name the reason for failure that says most; None: the answer is whole."""
        seen = stream.seen
        if refusal := self._refusal():
            return refusal
        if stream.fault == "stream-error":
            return RequestError(kind=stream.fault, message=stream.problem)
        if seen & EVENT_DONE and seen & EVENT_OUTPUT and stream.fault is None:
            # All of the answer came; how the connection ended afterwards is of no matter.
            return self.error if self.error is not None and self.error.kind in _FAULTS_IN_SPITE_OF_DONE else None
        if self.error is None and stream.fault is not None:
            kind = "truncated" if self._breaks_off(stream) else stream.fault
            return RequestError(kind=kind, message=stream.problem)
        return self.error or _unfinished(seen)

    def _breaks_off(self, stream: Stream) -> bool:
        """Whether the event that could not be read is one that the end of the body cut."""
        cut = not self.framing.parts[-1].endswith((b"\n", b"\r"))
        return cut and bool(stream.flags[-1] & EVENT_INVALID) and stream.flags.count(stream.flags[-1]) == 1

    def _refusal(self) -> RequestError | None:
        framing = self.framing
        status = framing.status
        if status is None or not framing.head_complete:
            return None
        if status != 200:
            return RequestError(kind=_status_kind(status), message=self._status_message(status))
        coding = framing.headers.get("content-encoding", "identity")
        if coding != "identity":
            return RequestError(
                kind="compressed", message=f"the answer is compressed ({coding}), which was not asked for"
            )
        form = framing.headers.get("content-type", "")
        is_wrong = "html" in form or ("json" in form) == self.job.stream if form else False
        if is_wrong:
            asked = "an event stream" if self.job.stream else "JSON"
            return RequestError(kind="content-type", message=f"the answer is {form}, not {asked}: {self._beginning()}")
        return None

    def _status_message(self, status: int) -> str:
        headers = self.framing.headers
        notes = [f"{name}: {headers[name.lower()]}" for name in ("Retry-After", "Location") if name.lower() in headers]
        advice = f" ({', '.join(notes)})" if notes else ""
        return f"HTTP {status}{advice}: {self._beginning()}"

    def _beginning(self) -> str:
        beginning = b"".join(self.framing.parts[:_LONGEST_MESSAGE_BYTES])[:_LONGEST_MESSAGE_BYTES]
        return beginning.decode("utf-8", "replace")


def _status_kind(status: int) -> RequestErrorKind:
    if status == 429:
        return "rate-limited"
    return "redirect" if 300 <= status < 400 else "http-status"


def _unfinished(seen: int) -> RequestError | None:
    if not seen & EVENT_OUTPUT:
        return RequestError(kind="no-output", message="the answer ended without any output")
    if not seen & (EVENT_DONE | EVENT_FINISH):
        return RequestError(kind="truncated", message="the answer ended without a finish_reason or [DONE]")
    return None


def _since(epoch_ns: int, moment_ns: int | None) -> int | None:
    return None if moment_ns is None else moment_ns - epoch_ns
