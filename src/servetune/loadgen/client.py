"""Sends the requests of one load on its schedule over a pool of connections, and receives the answers.

One object is one phase (the warm-up or the measured load) on the worker's loop. It decides nothing about files,
processes or progress: each ended Exchange is handed to `ended`. Nothing here decodes a body.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from servetune.loadgen.connection import CONNECT_TIMEOUT_S, Connection, Pool, own_mark
from servetune.loadgen.exchange import BIG_BYTES, Exchange
from servetune.loadgen.job import WorkerJob
from servetune.loadgen.loop import READ, WRITE, Handler, Loop, Timer
from servetune.loadgen.supply import Schedule, Share
from servetune.records import RequestError

if TYPE_CHECKING:
    from ssl import SSLContext


_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000
_READ_BYTES = 32 * 1024
_ANCILLARY_BYTES = 64
_MOST_READS_IN_TURN = 4
_SHORT_BYTES = 8
_END = b"\r\n\r\n"
"""Every chunked answer ends so; most parts of it do not."""
_OPEN_AHEAD_NS = 50 * _NS_PER_MS
"""How long before its due time a request's connection is opened."""
_OPEN_AGAIN_NS = 10 * _NS_PER_MS
_STALE_NS = _NS_PER_S
"""A connection that waited this long unused may have been given up by the server."""
_LATE_NS = 5 * _NS_PER_MS
_DONE_GRACE_NS = _NS_PER_S
"""How long the end of the message is awaited after the stream's own end mark."""


class Client:
    """One phase of a load."""

    def __init__(
        self,
        loop: Loop,
        job: WorkerJob,
        share: Share,
        wires: memoryview,
        *,
        context: SSLContext | None,
        ended: Callable[[Exchange], None],
    ) -> None:
        self._loop = loop
        self._job = job
        self._supply, self._slots = share
        self._schedule = share.supply if isinstance(share.supply, Schedule) and job.has_rate else None
        self._wires = wires
        self._ended = ended
        self._connect_timeout_s = min(CONNECT_TIMEOUT_S, job.total_timeout_s)
        self._pool = Pool(loop, job.route, context, self._handler, self._connect_timeout_s)
        self._due: deque[Exchange] = deque()
        self._active: set[Exchange] = set()
        self._retrying: set[Exchange] = set()
        self._buffers = [bytearray(_READ_BYTES)]
        self._view = memoryview(self._buffers[0])
        self._offset_ns = 0
        self._alarm: Timer | None = None
        self._watch: Timer | None = None
        self._opens_again: Timer | None = None
        self._freed_ns: deque[int] = deque()
        self._heard_ns = 0
        self._is_running = False
        self._is_over = False
        self._to_open = 0
        self.epoch_ns = 0
        self.late_sends = 0
        self.lags_ns = array("q")
        """From due (and allowed) to sent; the first requests of a closed loop are left out."""
        self.peak_open = 0
        self.retried = 0

    # ------------------------------------------------------------------ life

    def connect(self) -> None:
        """Open the connections that the first requests need; a server that refuses is met again by the requests."""
        self._to_open = self._first_wave()
        if not self._to_open or self._is_over:
            return
        for _ in range(self._to_open):
            self._pool.open(self._opened_ahead)
        timer = self._loop.later(int(self._connect_timeout_s * _NS_PER_S), self._connected_enough)
        while self._to_open and not self._is_over:
            self._loop.run()
        timer.cancel()

    def run(self, epoch_ns: int, monotonic_ns: int) -> None:
        """Send everything on its schedule, from time 0 at `monotonic_ns` on, and return when all requests have ended.

        Until `cancel` is called, that is.
        """
        self._start_clock(epoch_ns, monotonic_ns)
        self._is_running = True
        self._look_for_silence()
        self._loop.later(monotonic_ns - time.monotonic_ns(), self._pump)
        while not self._is_over:
            self._loop.run()
        for timer in (self._alarm, self._watch, self._opens_again):
            if timer is not None:
                timer.cancel()
        self._pool.close_all()

    def cancel(self, reason: str) -> None:
        """End every request that has not ended, sent or not, and let `run` return."""
        if self._is_over:
            return
        if not self.epoch_ns:
            self._start_clock(time.time_ns(), time.monotonic_ns())
        self._is_over = True
        pending = [*self._active, *self._retrying, *self._due]
        for held in (self._due, self._active, self._retrying):
            held.clear()
        while (exchange := self._next()) is not None:
            pending.append(exchange)
        self._pool.close_all()
        for exchange in pending:
            exchange.fail("cancelled", reason)
            exchange.end(self._now_ns())
            self._ended(exchange)
        self._loop.stop()

    @property
    def in_flight(self) -> int:
        """Requests that were started and have not ended."""
        return len(self._active) + len(self._retrying)

    @property
    def running(self) -> set[Exchange]:
        """The exchanges on open connections, to be looked at only."""
        return self._active

    def _first_wave(self) -> int:
        at_once = self._supply.remaining() if self._schedule is None else self._schedule.due_before(_OPEN_AHEAD_NS)
        return min(at_once, self._slots)

    def _start_clock(self, epoch_ns: int, monotonic_ns: int) -> None:
        self.epoch_ns = epoch_ns
        self._offset_ns = epoch_ns - monotonic_ns
        self._heard_ns = time.monotonic_ns()

    def _now_ns(self) -> int:
        """CLOCK_REALTIME as it would be had nobody set it since the start: the schedule must not jump with it."""
        return time.monotonic_ns() + self._offset_ns

    def _next(self) -> Exchange | None:
        """Take the next request."""
        request = self._supply.take()
        if request is None:
            return None
        wire = self._wires[request.begin : request.begin + request.size]
        exchange = Exchange(request, wire, self._job)
        exchange.epoch_ns = self.epoch_ns
        exchange.scheduled_ns = exchange.runnable_ns = self.epoch_ns + request.due_ns
        return exchange

    # ------------------------------------------------------------------ schedule

    def _pump(self) -> None:
        """Start what is due and allowed, open connections for what comes next, and set the alarm for it."""
        if self._is_over or not self._is_running:
            return
        if self._schedule is None:
            self._fill_slots()
        else:
            self._follow(self._schedule)
        if not (self.in_flight or self._due or self._supply.remaining()):
            self._is_over = True
            self._loop.stop()

    def _fill_slots(self) -> None:
        """Give each free slot the next request."""
        pool = self._pool
        while self.in_flight < self._slots:
            connection = pool.take()
            if connection is None:
                break
            exchange = self._next()
            if exchange is None:
                pool.give_back(connection)
                break
            if self._freed_ns:
                exchange.runnable_ns = exchange.scheduled_ns = max(exchange.scheduled_ns, self._freed_ns.popleft())
                exchange.was_queued = True
            self._start(exchange, connection)
        self._balance(min(self._slots - self.in_flight, self._supply.remaining()))

    def _follow(self, schedule: Schedule) -> None:
        """Start what is due as far as slots are free."""
        now = self._now_ns()
        while (due_ns := schedule.due_ns()) is not None and self.epoch_ns + due_ns <= now:
            exchange = self._next()
            assert exchange is not None
            exchange.was_queued = self.in_flight + len(self._due) >= self._slots
            self._due.append(exchange)
        while self._due and self.in_flight < self._slots:
            connection = self._pool.take()
            if connection is None:
                break
            exchange = self._due.popleft()
            if exchange.was_queued and self._freed_ns:
                exchange.runnable_ns = max(exchange.scheduled_ns, self._freed_ns.popleft())
            self._start(exchange, connection)
        if not self._due:
            self._freed_ns.clear()
        soon = schedule.due_before(now - self.epoch_ns + _OPEN_AHEAD_NS)
        self._balance(min(len(self._due) + soon, self._slots - self.in_flight))
        self._set_alarm(schedule, soon, now)

    def _set_alarm(self, schedule: Schedule, soon: int, now: int) -> None:
        """Wake up when the next request is due, or when the next connection is to be opened for one behind it."""
        next_due_ns = schedule.due_ns()
        if next_due_ns is None:
            return
        later_ns = schedule.first_due_after(soon)
        wake_ns = next_due_ns if later_ns is None else min(next_due_ns, later_ns - _OPEN_AHEAD_NS)
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.later(self.epoch_ns + wake_ns - now, self._pump)

    def _balance(self, wanted: int) -> None:
        """Hold as many connections as requests wait or are due soon, no more: idle ones bind a server's threads."""
        missing = wanted - len(self._pool.idle) - self._pool.opening
        for _ in range(missing):
            self._pool.open(self._opened)
        for _ in range(min(-missing, len(self._pool.idle))):
            self._pool.close_oldest_idle()

    # ------------------------------------------------------------------ connections

    def _opened_ahead(self, connection: Connection | None, error: RequestError | None) -> None:
        if self._is_running:
            self._opened(connection, error)
            return
        if connection is not None:
            self._pool.give_back(connection)
        self._to_open -= 1
        if error is not None or self._to_open <= 0:
            self._connected_enough()

    def _connected_enough(self) -> None:
        self._to_open = 0
        self._loop.stop()

    def _opened(self, connection: Connection | None, error: RequestError | None) -> None:
        if connection is not None:
            self._pool.give_back(connection)
        elif error is not None and self.in_flight < self._slots:
            exchange = self._due.popleft() if self._schedule is not None and self._due else None
            if exchange is None and self._schedule is None:
                exchange = self._next()
            if exchange is not None:
                if self._schedule is None and self._freed_ns:
                    exchange.scheduled_ns = exchange.runnable_ns = self._freed_ns.popleft()
                exchange.error = error
                self._finish(exchange, self._now_ns())
            else:
                # It was for a request that is not due yet: a server that is down is not asked without a pause.
                self._pump_later()
            return
        self._pump()

    def _pump_later(self) -> None:
        if self._opens_again is None:
            self._opens_again = self._loop.later(_OPEN_AGAIN_NS, self._pump_again)

    def _pump_again(self) -> None:
        self._opens_again = None
        self._pump()

    def _opened_again(self, exchange: Exchange, connection: Connection | None, error: RequestError | None) -> None:
        if exchange not in self._retrying:
            return
        self._retrying.discard(exchange)
        if connection is not None:
            self._start(exchange, connection)
            return
        assert error is not None
        exchange.fail(error.kind, f"after the server closed a kept connection: {error.message}")
        self._finish(exchange, self._now_ns())

    def _broken(self, connection: Connection, reason: str) -> None:
        """Handle the end of a connection, by close (reason "") or by error."""
        exchange: Exchange | None = connection.user
        stale = self._may_be_stale(connection)
        self._pool.close(connection)
        if exchange is None:
            self._pump()
            return
        if not exchange.answered and exchange.retries == 0 and stale and exchange.error is None:
            self._active.discard(exchange)
            self._retrying.add(exchange)
            self.retried += 1
            exchange.begin_again()
            self._pool.open(partial(self._opened_again, exchange))
            return
        exchange.feed()
        if not exchange.framing.complete and (reason or not exchange.framing.end_of_file()):
            self._explain_break(exchange, reason)
        self._finish(exchange, self._now_ns())

    def _may_be_stale(self, connection: Connection) -> bool:
        exchange: Exchange | None = connection.user
        if connection.used or exchange is None or exchange.sent_ns is None:
            return connection.used
        return exchange.sent_ns - connection.opened_ns > _STALE_NS

    def _explain_break(self, exchange: Exchange, reason: str) -> None:
        if not exchange.answered:
            exchange.fail(
                "reset-before-answer", f"the server closed the connection before it answered {reason}".rstrip()
            )
        elif reason:
            exchange.fail("reset", f"the connection broke in the middle of the answer: {reason}")
        else:
            exchange.fail("truncated", "the server closed the connection in the middle of the answer")

    # ------------------------------------------------------------------ sending

    def _start(self, exchange: Exchange, connection: Connection) -> None:
        exchange.reused = connection.used
        exchange.connection = connection
        exchange.started_ns = exchange.started_ns or time.monotonic_ns()
        connection.user = exchange
        self._active.add(exchange)
        self.peak_open = max(self.peak_open, self.in_flight)
        if connection.stream is not None:
            connection.stream.send(exchange.wire)
        self._send(exchange, connection)
        if exchange.retries == 0 and exchange.sent_ns is not None and (self._job.has_rate or exchange.was_queued):
            lag_ns = exchange.sent_ns - exchange.runnable_ns
            self.lags_ns.append(lag_ns)
            self.late_sends += self._job.has_rate and lag_ns > _LATE_NS

    def _send(self, exchange: Exchange, connection: Connection) -> None:
        """Hand the rest of the request to the kernel, as far as it takes it."""
        stream, wire = connection.stream, exchange.wire
        rest = wire[exchange.bytes_sent :] if stream is None else stream.pending()
        now = time.time_ns()
        if exchange.sent_ns is None:
            exchange.sent_ns = now
        try:
            sent = connection.socket.send(rest)
        except BlockingIOError:
            sent = 0
        except OSError:
            # The reader tells what happened, and perhaps brings an answer that was sent before the close.
            self._wait_to_write(connection, waits=False)
            return
        if stream is None:
            exchange.bytes_sent += sent
        else:
            stream.written(sent)
            if sent == len(rest):
                exchange.bytes_sent = len(wire)
        if sent == len(rest):
            exchange.sent_done_ns = time.time_ns()
        self._wait_to_write(connection, waits=sent < len(rest))

    def _wait_to_write(self, connection: Connection, *, waits: bool) -> None:
        if connection.blocked != waits:
            connection.blocked = waits
            self._loop.change(connection.fileno, READ | WRITE if waits else READ)

    # ------------------------------------------------------------------ receiving

    def _handler(self, connection: Connection) -> Handler:
        """Make the function that reads one connection; names are bound here since it runs for every packet."""
        if connection.stream is not None:
            return partial(self._ready, connection)
        receive, polled_ns = connection.socket.recvmsg_into, self._loop.polled_ns
        buffers, view = self._buffers, self._view
        look, ready, broken = self._look, self._ready, self._broken

        def read(mask: int) -> None:
            if mask != READ:
                ready(connection, mask)
                return
            try:
                size, ancillary, _, _ = receive(buffers, _ANCILLARY_BYTES)
            except BlockingIOError:
                return
            except OSError as problem:
                broken(connection, problem.strerror or str(problem))
                return
            exchange = connection.user
            if not size or exchange is None:
                # Bytes that nobody asked for make a waiting connection as useless as its end does.
                broken(connection, "")
                return
            data = view[:size].tobytes()
            exchange.reads.append(data)
            exchange.polls.append(polled_ns[0])
            if ancillary:
                exchange.marks += ancillary[0][2]
            else:
                exchange.marks += own_mark()
                exchange.has_user_stamps = True
            if not exchange.is_streaming or data.endswith(_END) or not _SHORT_BYTES <= size <= BIG_BYTES:
                look(connection, exchange)
                if size == _READ_BYTES:
                    ready(connection, READ)

        return read

    def _ready(self, connection: Connection, mask: int) -> None:
        """Serve a connection in any case: write what waits, and read, but not so much that others wait long."""
        exchange: Exchange | None = connection.user
        connection.is_ending = connection.is_ending or bool(mask & ~(READ | WRITE))
        if mask & WRITE and exchange is not None and connection.blocked:
            self._send(exchange, connection)
        for _ in range(_MOST_READS_IN_TURN):
            if not self._read_once(connection):
                return
        # What is left is reported anew.
        if not connection.is_closed:
            self._loop.change(connection.fileno, READ | WRITE if connection.blocked else READ)

    def _read_once(self, connection: Connection) -> bool:
        """Read what is there; False: nothing more is, for now or for ever."""
        if connection.is_closed:
            return False
        try:
            data, ancillary, _, _ = connection.socket.recvmsg(_READ_BYTES, _ANCILLARY_BYTES)
        except BlockingIOError:
            return False
        except OSError as problem:
            self._broken(connection, problem.strerror or str(problem))
            return False
        mark = ancillary[0][2] if ancillary else own_mark()
        stream = connection.stream
        is_ended = not data
        if stream is not None and data:
            # TLS has messages of its own, also on a connection that waits for a request.
            data = stream.receive(data)
            is_ended = stream.ended
            if not connection.blocked and stream.pending():
                self._flush(connection)
        if data:
            exchange: Exchange | None = connection.user
            if exchange is None:
                self._broken(connection, "")
                return False
            exchange.reads.append(data)
            exchange.polls.append(self._loop.polled_ns[0])
            exchange.marks += mark
            exchange.has_user_stamps = exchange.has_user_stamps or not ancillary
            self._look(connection, exchange)
        if is_ended and not connection.is_closed:
            current: Exchange | None = connection.user
            if current is not None and stream is not None and stream.problem:
                current.fail("tls", stream.problem)
            self._broken(connection, "")
        return not is_ended

    def _flush(self, connection: Connection) -> None:
        """Write what TLS itself has to say; what does not go out now goes with the next request."""
        stream = connection.stream
        assert stream is not None
        try:
            stream.written(connection.socket.send(stream.pending()))
        except BlockingIOError:
            return
        except OSError:
            # The next read tells.
            return

    def _look(self, connection: Connection, exchange: Exchange) -> None:
        """See whether the answer has ended."""
        ends = exchange.is_streaming and exchange.ends_plainly()
        if not ends:
            exchange.feed()
        if ends or exchange.over:
            closed_ns = exchange.last_stamp_ns()
            self._release(connection, exchange)
            self._finish(exchange, closed_ns)

    def _release(self, connection: Connection, exchange: Exchange) -> None:
        whole = exchange.bytes_sent == len(exchange.wire)
        framing = exchange.framing
        may_keep = framing.keep_alive if framing.complete else framing.may_keep_alive
        keeps = may_keep and self._job.keeps_connections and not connection.is_ending
        if keeps and exchange.error is None and whole:
            connection.used = True
            self._pool.give_back(connection)
        else:
            self._pool.close(connection)

    def _finish(self, exchange: Exchange, closed_ns: int) -> None:
        self._active.discard(exchange)
        exchange.end(closed_ns)
        self._freed_ns.append(closed_ns)
        self._ended(exchange)
        self._pump()

    # ------------------------------------------------------------------ time-outs

    def _look_for_silence(self) -> None:
        """End what is silent for too long or goes on for ever, and see to answers whose end is hidden."""
        job = self._job
        limits = [job.idle_timeout_s, job.total_timeout_s, job.first_byte_timeout_s or job.total_timeout_s]
        self._watch = self._loop.later(int(min(0.25, min(limits) / 4) * _NS_PER_S), self._look_for_silence)
        now = time.monotonic_ns()
        oldest_ns = now - int(job.total_timeout_s * _NS_PER_S)
        again_ns = now + min(_DONE_GRACE_NS, int(min(limits) / 4 * _NS_PER_S))
        quiet = []
        for exchange in self._active:
            reads = len(exchange.reads)
            if reads != exchange.heard_reads:
                exchange.heard_reads = reads
                exchange.heard_ns = self._heard_ns = now
                exchange.look_again_ns = again_ns
                if exchange.needs_look or exchange.started_ns < oldest_ns:
                    quiet.append(exchange)
            elif now >= exchange.look_again_ns:
                exchange.look_again_ns = again_ns
                quiet.append(exchange)
        for exchange in quiet:
            self._consider(exchange, now)

    def _consider(self, exchange: Exchange, now: int) -> None:
        connection = exchange.connection
        if exchange not in self._active or connection is None:
            return
        exchange.feed()
        waited_ns = now - exchange.heard_ns
        if exchange.framing.complete or (waited_ns > _DONE_GRACE_NS and exchange.has_said_done):
            # Bytes behind the end hid it, or the server never ends its message: the connection is of no more use.
            exchange.framing.complete = True
            self._pool.close(connection)
            self._finish(exchange, exchange.last_stamp_ns())
            return
        self._note_timeout(exchange, now)
        if exchange.error is not None:
            self._pool.close(connection)
            self._finish(exchange, self._now_ns())

    def _note_timeout(self, exchange: Exchange, now: int) -> None:
        """Note the time-out of a request, if it has one.

        A queued request may wait long for its first output while the server serves others, so until the second piece
        of its answer it is only silent when the whole server is.
        """
        job = self._job
        passed = now - exchange.started_ns
        heard = exchange.heard_ns if len(exchange.reads) > 1 else max(exchange.started_ns, self._heard_ns)
        first_byte_s = job.first_byte_timeout_s
        if first_byte_s is not None and not exchange.answered and passed > first_byte_s * _NS_PER_S:
            exchange.fail("first-byte-timeout", f"no answer within {first_byte_s:g} s")
        elif passed > job.total_timeout_s * _NS_PER_S:
            exchange.fail("total-timeout", f"not finished after {job.total_timeout_s:g} s")
        elif now - heard > job.idle_timeout_s * _NS_PER_S:
            exchange.fail("idle-timeout", f"nothing received for {job.idle_timeout_s:g} s")
