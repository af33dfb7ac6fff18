"""Sends the requests of one load on its schedule over a pool of connections, and receives the answers.

One object is one phase (the warm-up or the measured load) on a running event loop. It decides nothing about files,
processes or progress: each ended Exchange is handed to `ended`. Nothing here decodes a body.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from servetune.loadgen.connection import CONNECT_TIMEOUT_S, Connection, Pool, kernel_stamp_ns
from servetune.loadgen.exchange import Exchange
from servetune.loadgen.job import PreparedRequest, WorkerJob

_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000
_BUFFER_BYTES = 256 * 1024
_ANCILLARY_BYTES = 64
_OPEN_AHEAD_NS = 50 * _NS_PER_MS
"""How long before its due time a request's connection is opened."""
_STALE_NS = _NS_PER_S
"""A connection that waited this long unused may have been given up by the server."""
_LATE_NS = 5 * _NS_PER_MS


class Client:
    """One phase of a load."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        job: WorkerJob,
        requests: tuple[PreparedRequest, ...],
        ended: Callable[[Exchange], None],
    ) -> None:
        self._loop = loop
        self._job = job
        self._ended = ended
        self._pool = Pool(loop, job.target, self._readable)
        self._upcoming = deque(Exchange(request) for request in requests)
        self._due: deque[Exchange] = deque()
        self._active: set[Exchange] = set()
        self._retrying: set[Exchange] = set()
        self._limit = min(len(requests), job.max_in_flight or len(requests))
        self._buffer = bytearray(_BUFFER_BYTES)
        self._buffers = [self._buffer]
        self._view = memoryview(self._buffer)
        self._offset_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._freed_ns: deque[int] = deque()
        self._last_byte_ns = 0
        self._left = len(requests)
        self._done: asyncio.Future[None] = loop.create_future()
        self._connected: asyncio.Future[None] = loop.create_future()
        self._to_open = 0
        self.epoch_ns = 0
        self.chunks = 0
        self.late_sends = 0
        self.peak_open = 0
        self.user_stamps = 0

    async def connect(self) -> None:
        """Open the connections that the first requests need; a server that refuses is met again by the requests."""
        first = sum(1 for exchange in self._upcoming if exchange.request.due_ns <= _OPEN_AHEAD_NS)
        self._to_open = min(first, self._limit)
        for _ in range(self._to_open):
            self._pool.open(self._opened)
        if self._to_open:
            await asyncio.wait([self._connected], timeout=CONNECT_TIMEOUT_S)

    async def run(self) -> None:
        """Start the clock, send everything on its schedule, and return when every request has ended."""
        self._start_clock()
        watch = self._loop.create_task(self._watch_silence())
        self._pump()
        try:
            if self._left:
                await self._done
        finally:
            watch.cancel()
            if self._timer is not None:
                self._timer.cancel()
            self._pool.close_all()

    def cancel(self, reason: str) -> None:
        """End every request that has not ended, sent or not."""
        self._start_clock()
        if not self._connected.done():
            self._connected.set_result(None)
        pending = [*self._active, *self._retrying, *self._due, *self._upcoming]
        self._due.clear()
        self._upcoming.clear()
        self._retrying.clear()
        self._active.clear()
        self._pool.close_all()
        for exchange in pending:
            exchange.fail("cancelled", reason)
            self._end(exchange)

    @property
    def in_flight(self) -> int:
        """Requests that were started and have not ended."""
        return len(self._active) + len(self._retrying)

    def _start_clock(self) -> None:
        if self.epoch_ns:
            return
        self.epoch_ns = self._last_byte_ns = time.time_ns()
        self._offset_ns = self.epoch_ns - time.monotonic_ns()
        for exchange in self._upcoming:
            exchange.epoch_ns = self.epoch_ns
            exchange.scheduled_ns = self.epoch_ns + exchange.request.due_ns

    def _now_ns(self) -> int:
        """CLOCK_REALTIME as it would be had nobody set it since the start: the schedule must not jump with it."""
        return time.monotonic_ns() + self._offset_ns

    # ------------------------------------------------------------------ schedule

    def _pump(self) -> None:
        """Start what is due and allowed, open connections for what comes next, and set the alarm for it."""
        now = self._now_ns()
        upcoming, due = self._upcoming, self._due
        while upcoming and upcoming[0].scheduled_ns <= now:
            upcoming[0].queued = self.in_flight + len(due) >= self._limit
            due.append(upcoming.popleft())
        while due and self.in_flight < self._limit:
            connection = self._pool.take()
            if connection is None:
                break
            self._start(due.popleft(), connection)
        if not due:
            self._freed_ns.clear()
        self._balance(now)
        if upcoming and self._timer is None:
            wake = min(upcoming[0].scheduled_ns, self._next_opening_ns(now))
            self._timer = self._loop.call_later(max(0, wake - now) / _NS_PER_S, self._alarm)

    def _alarm(self) -> None:
        self._timer = None
        self._pump()

    def _balance(self, now: int) -> None:
        """Hold as many connections as requests wait or are due soon, no more: idle ones bind a server's threads."""
        wanted = min(len(self._due) + self._due_soon(now), self._limit - self.in_flight)
        missing = wanted - len(self._pool.idle) - self._pool.opening
        for _ in range(missing):
            self._pool.open(self._opened)
        for _ in range(min(-missing, len(self._pool.idle))):
            self._pool.close(self._pool.idle[0])

    def _due_soon(self, now: int) -> int:
        count = 0
        for exchange in self._upcoming:
            if exchange.scheduled_ns > now + _OPEN_AHEAD_NS:
                break
            count += 1
        return count

    def _next_opening_ns(self, now: int) -> int:
        soon = self._due_soon(now)
        if soon == len(self._upcoming):
            return self._upcoming[-1].scheduled_ns
        return self._upcoming[soon].scheduled_ns - _OPEN_AHEAD_NS

    # ------------------------------------------------------------------ connections

    def _opened(self, connection: Connection | None, reason: str) -> None:
        if connection is not None:
            self._pool.idle.append(connection)
        if not self.epoch_ns:
            self._opened_ahead(refused=connection is None)
        elif connection is None and self._due and self.in_flight < self._limit:
            exchange = self._due.popleft()
            self._active.add(exchange)
            exchange.fail("connect", reason)
            self._finish(exchange)
        else:
            self._pump()

    def _opened_ahead(self, *, refused: bool) -> None:
        self._to_open -= 1
        if (refused or self._to_open == 0) and not self._connected.done():
            self._connected.set_result(None)

    def _opened_again(self, exchange: Exchange, connection: Connection | None, reason: str) -> None:
        if exchange not in self._retrying:
            return
        self._retrying.discard(exchange)
        if connection is not None:
            self._start(exchange, connection)
            return
        self._active.add(exchange)
        exchange.fail("connect", f"after the server closed a kept connection: {reason}")
        self._finish(exchange)

    def _broken(self, connection: Connection, reason: str) -> None:
        """Handle the end of a connection, by close (reason "") or by error."""
        exchange, stale = connection.user, self._may_be_stale(connection)
        self._pool.close(connection)
        if not isinstance(exchange, Exchange):
            return
        if not exchange.answered and exchange.retries == 0 and stale:
            self._active.discard(exchange)
            self._retrying.add(exchange)
            exchange.begin_again()
            self._pool.open(partial(self._opened_again, exchange))
            return
        if reason or not exchange.framing.end_of_file():
            self._explain_break(exchange, reason)
        self._finish(exchange)

    def _may_be_stale(self, connection: Connection) -> bool:
        exchange = connection.user
        if connection.used or not isinstance(exchange, Exchange) or exchange.sent_ns is None:
            return connection.used
        return exchange.sent_ns - connection.opened_ns > _STALE_NS

    def _explain_break(self, exchange: Exchange, reason: str) -> None:
        if not exchange.answered:
            exchange.fail("reset", f"the server closed the connection before it answered {reason}".rstrip())
        elif reason:
            exchange.fail("reset", f"the connection broke in the middle of the answer: {reason}")
        else:
            exchange.fail("truncated", "the server closed the connection in the middle of the answer")

    # ------------------------------------------------------------------ one exchange

    def _start(self, exchange: Exchange, connection: Connection) -> None:
        exchange.reused = connection.used
        connection.user = exchange
        self._active.add(exchange)
        self.peak_open = max(self.peak_open, self.in_flight)
        if exchange.retries == 0:
            self._settle_schedule(exchange)
        self._send(exchange, connection)
        if self._job.has_rate and exchange.retries == 0 and exchange.sent_ns is not None:
            self.late_sends += exchange.sent_ns - exchange.runnable_ns > _LATE_NS

    def _settle_schedule(self, exchange: Exchange) -> None:
        """In a closed loop a request is due when a slot is free; with a rate it stays due when it was."""
        exchange.runnable_ns = exchange.scheduled_ns
        if exchange.queued and self._freed_ns:
            exchange.runnable_ns = max(exchange.scheduled_ns, self._freed_ns.popleft())
        if not self._job.has_rate:
            exchange.scheduled_ns = exchange.runnable_ns

    def _send(self, exchange: Exchange, connection: Connection) -> None:
        wire = exchange.request.wire
        begin = exchange.bytes_sent
        now = time.time_ns()
        if exchange.sent_ns is None:
            exchange.sent_ns = now
        try:
            exchange.bytes_sent += connection.socket.send(memoryview(wire)[begin:] if begin else wire)
        except BlockingIOError:
            pass
        except OSError:
            # The reader tells what happened, and perhaps brings an answer that was sent before the close.
            self._loop.remove_writer(connection.fileno)
            return
        if exchange.bytes_sent == len(wire):
            exchange.sent_done_ns = time.time_ns()
            if connection.blocked:
                connection.blocked = False
                self._loop.remove_writer(connection.fileno)
        elif not connection.blocked:
            connection.blocked = True
            self._loop.add_writer(connection.fileno, self._send, exchange, connection)

    def _readable(self, connection: Connection) -> None:
        try:
            size, ancillary, _, _ = connection.socket.recvmsg_into(self._buffers, _ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError as problem:
            self._broken(connection, problem.strerror or str(problem))
            return
        exchange = connection.user
        if not size or not isinstance(exchange, Exchange):
            # Bytes that nobody asked for make a waiting connection as useless as its end does.
            self._broken(connection, "")
            return
        stamp_ns = kernel_stamp_ns(ancillary)
        if stamp_ns is None:
            stamp_ns = time.time_ns()
            self.user_stamps += 1
        before = len(exchange.framing.parts)
        exchange.feed(self._view[:size], stamp_ns)
        self.chunks += len(exchange.framing.parts) - before
        self._last_byte_ns = stamp_ns
        if exchange.over:
            self._release(connection, exchange)
            self._finish(exchange)

    def _release(self, connection: Connection, exchange: Exchange) -> None:
        whole = exchange.bytes_sent == len(exchange.request.wire)
        if exchange.framing.keep_alive and exchange.error is None and whole:
            connection.used = True
            connection.user = None
            self._pool.idle.append(connection)
        else:
            self._pool.close(connection)

    def _finish(self, exchange: Exchange) -> None:
        self._active.discard(exchange)
        self._freed_ns.append(exchange.last_ns or time.time_ns())
        self._pump()
        self._end(exchange)

    def _end(self, exchange: Exchange) -> None:
        exchange.end(exchange.last_ns if exchange.framing.complete else time.time_ns())
        self._ended(exchange)
        self._left -= 1
        if self._left == 0 and not self._done.done():
            self._done.set_result(None)

    # ------------------------------------------------------------------ time-outs

    async def _watch_silence(self) -> None:
        shortest = min(self._job.idle_timeout_s, self._job.total_timeout_s)
        while True:
            await asyncio.sleep(min(0.25, shortest / 4))
            now = self._now_ns()
            for exchange in [each for each in self._active if self._timed_out(each, now)]:
                self._cut(exchange)

    def _timed_out(self, exchange: Exchange, now: int) -> bool:
        """Note the time-out of a request, if it has one.

        A queued request may wait long for its first output while the server serves others, so until the second piece
        of its answer it is only silent when the whole server is.
        """
        started = exchange.sent_ns or now
        heard = exchange.last_ns if len(exchange.stamps_ns) > 1 else max(started, self._last_byte_ns)
        if now - started > self._job.total_timeout_s * _NS_PER_S:
            exchange.fail("total-timeout", f"not finished after {self._job.total_timeout_s:g} s")
        elif now - heard > self._job.idle_timeout_s * _NS_PER_S:
            exchange.fail("idle-timeout", f"nothing received for {self._job.idle_timeout_s:g} s")
        return exchange.error is not None

    def _cut(self, exchange: Exchange) -> None:
        connection = self._pool.holder(exchange)
        if connection is not None:
            self._pool.close(connection)
        self._finish(exchange)
