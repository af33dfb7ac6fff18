"""One request and what came back: raw while it runs, a RequestRecord once it ended.

On the hot path only times and bytes are kept; the body is decoded by `record` after the stream has ended.
"""

from __future__ import annotations

from servetune.http1 import ResponseFraming
from servetune.loadgen.job import PreparedRequest
from servetune.loadgen.sse import Stream, decode
from servetune.records import (
    EVENT_DONE,
    EVENT_ERROR,
    EVENT_FINISH,
    EVENT_INVALID,
    EVENT_OUTPUT,
    RequestError,
    RequestErrorKind,
    RequestRecord,
)

_LONGEST_MESSAGE_BYTES = 1024


class Exchange:
    """State of one request. Times are ns of CLOCK_REALTIME until `record` makes them relative."""

    __slots__ = (
        "bytes_sent",
        "closed_ns",
        "epoch_ns",
        "error",
        "framing",
        "last_ns",
        "queued",
        "read_ends",
        "request",
        "retries",
        "reused",
        "runnable_ns",
        "scheduled_ns",
        "sent_done_ns",
        "sent_ns",
        "stamps_ns",
    )

    def __init__(self, request: PreparedRequest) -> None:
        self.request = request
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
        self.queued = False
        """It was due while no slot was free."""
        self._begin()

    def begin_again(self) -> None:
        """Forget what a broken connection brought; the first start stays."""
        self.framing.release()
        self.retries += 1
        self._begin()

    def _begin(self) -> None:
        self.framing = ResponseFraming()
        self.stamps_ns: list[int] = []
        self.read_ends: list[int] = []
        self.bytes_sent = 0
        self.sent_done_ns: int | None = None
        self.last_ns = 0

    @property
    def answered(self) -> bool:
        """Whether any byte came back."""
        return self.last_ns > 0

    def feed(self, data: memoryview, stamp_ns: int) -> None:
        """Take what one read brought."""
        framing = self.framing
        before = len(framing.parts)
        problem = framing.feed(data)
        self.last_ns = stamp_ns
        if len(framing.parts) > before:
            self.stamps_ns.append(stamp_ns)
            self.read_ends.append(len(framing.parts))
        if problem:
            self.fail("protocol", problem)

    def fail(self, kind: RequestErrorKind, message: str) -> None:
        """Note the first reason for failure."""
        if self.error is None:
            self.error = RequestError(kind=kind, message=message)

    @property
    def over(self) -> bool:
        """Whether nothing more is to come."""
        return self.framing.complete or self.error is not None

    def end(self, now_ns: int) -> None:
        """Note the end of the response and give up the parser."""
        self.closed_ns = now_ns
        self.framing.release()

    def record(self, *, keep_text: bool) -> RequestRecord:
        """Decode the body and return the finished record, with times from the epoch."""
        epoch_ns = self.epoch_ns
        status = self.framing.status
        streamed = status == 200
        stream = (
            decode(self.framing.parts, self.read_ends, keep_text=keep_text) if streamed and self.stamps_ns else Stream()
        )
        return RequestRecord(
            index=self.request.index,
            scheduled_ns=self.scheduled_ns - epoch_ns,
            sent_ns=_since(epoch_ns, self.sent_ns),
            sent_done_ns=_since(epoch_ns, self.sent_done_ns),
            reads_ns=tuple(self.stamps_ns[read] - epoch_ns for read in stream.reads),
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

    def _verdict(self, stream: Stream) -> RequestError | None:
        """Name the reason for failure that says most; None: the answer is whole."""
        seen = stream.seen
        if refusal := self._refusal():
            return refusal
        if seen & EVENT_ERROR:
            return RequestError(kind="stream-error", message=stream.problem)
        if seen & EVENT_DONE and seen & EVENT_OUTPUT and not seen & EVENT_INVALID:
            # All of the answer came; how the connection ended afterwards is of no matter.
            return self.error if self.error is not None and self.error.kind == "protocol" else None
        if self.error is None and seen & EVENT_INVALID:
            return RequestError(kind="protocol", message=stream.problem)
        return self.error or _unfinished(seen)

    def _refusal(self) -> RequestError | None:
        status = self.framing.status
        if status is None or not self.framing.head_complete:
            return None
        if status != 200:
            return RequestError(kind="http-status", message=self._status_message(status))
        problem = self._wrong_form()
        return RequestError(kind="protocol", message=problem) if problem else None

    def _status_message(self, status: int) -> str:
        wait = self.framing.headers.get("retry-after")
        advice = f" (Retry-After: {wait})" if wait else ""
        return f"HTTP {status}{advice}: {self._beginning()}"

    def _wrong_form(self) -> str:
        """Tell why an answer with status 200 is not an event stream; "" if it is one, or if it says nothing."""
        headers = self.framing.headers
        coding = headers.get("content-encoding", "identity")
        if coding != "identity":
            return f"the answer is compressed ({coding}), which was not asked for"
        form = headers.get("content-type", "")
        if "json" in form or "html" in form:
            return f"the answer is {form}, not an event stream: {self._beginning()}"
        return ""

    def _beginning(self) -> str:
        return b"".join(self.framing.parts)[:_LONGEST_MESSAGE_BYTES].decode("utf-8", "replace")


def _unfinished(seen: int) -> RequestError | None:
    if not seen & EVENT_OUTPUT:
        return RequestError(kind="no-output", message="the answer ended without any output")
    if not seen & (EVENT_DONE | EVENT_FINISH):
        return RequestError(kind="truncated", message="the answer ended without a finish_reason or [DONE]")
    return None


def _since(epoch_ns: int, moment_ns: int | None) -> int | None:
    return None if moment_ns is None else moment_ns - epoch_ns
