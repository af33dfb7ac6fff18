"""Connections to the server under load, and the pool that opens them ahead of need.

Sockets are our own, on the worker's loop: only `recvmsg` returns the time at which the kernel received the data. This
module knows nothing of HTTP; what happens on an open connection is told to the handler that `serve` makes for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from servetune.loadgen.loop import READ, WRITE, Handler, Loop, Timer
from servetune.loadgen.transport import Opening, OpeningFailed, Route, TlsStream, needs_opening
from servetune.records import RequestError

if TYPE_CHECKING:
    from ssl import SSLContext


KERNEL_STAMPS = sys.platform == "linux"
CONNECT_TIMEOUT_S = 10.0
MARK_BYTES = 16
"""Length of the kernel's receive time, a timespec."""
_NUMBER_BYTES = 8
_SO_TIMESTAMPNS = 35
_IP_BIND_ADDRESS_NO_PORT = 24
_NS_PER_S = 1_000_000_000
_MOST_OPENING = 128
_AGAIN_NS = 5_000_000
_LOOPBACK = "127."
_SOURCES = 200
"""Source addresses (127.0.0.2 and up) that are tried once the ports of the usual one are used up."""


def stamps_ns(marks: bytes | bytearray) -> list[int]:
    """Return receive times (CLOCK_REALTIME, ns) from the timespecs that reads kept, one behind the other."""
    numbers = iter(struct.unpack(f"@{len(marks) // _NUMBER_BYTES}q", marks))
    return [seconds * _NS_PER_S + nanoseconds for seconds, nanoseconds in zip(numbers, numbers, strict=True)]


def own_mark() -> bytes:
    """Return the present time in the kernel's form, for a read that it gave none."""
    return struct.pack("@2q", *divmod(time.time_ns(), _NS_PER_S))


class Connection:
    """One open connection; `user` is whoever waits for bytes from it."""

    __slots__ = ("blocked", "fileno", "is_closed", "is_ending", "opened_ns", "socket", "stream", "used", "user")

    def __init__(self, opened: socket.socket, stream: TlsStream | None) -> None:
        self.socket = opened
        self.fileno = opened.fileno()
        self.stream = stream
        self.opened_ns = time.time_ns()
        self.used = False
        self.blocked = False
        """The socket takes no more for now."""
        self.is_ending = False
        """The server has closed its side."""
        self.is_closed = False
        self.user: Any = None


Opened = Callable[[Connection | None, RequestError | None], None]
"""Called with the connection, or with the reason why there is none."""


class Pool:
    """Open connections that wait for a request, and those on their way.

    At most 128 are being opened at a time, so that a server's queue of new connections is not flooded.
    """

    def __init__(
        self,
        loop: Loop,
        route: Route,
        context: SSLContext | None,
        serve: Callable[[Connection], Handler],
        timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._loop = loop
        self._route = route
        self._context = context
        self._serve = serve
        self._timeout_s = timeout_s
        self._queue: deque[Opened] = deque()
        self._pending: dict[socket.socket, Timer] = {}
        self._open: set[Connection] = set()
        self._source = 0
        self.idle: dict[Connection, None] = {}
        """In the order in which they were freed."""

    @property
    def opening(self) -> int:
        """Connections on their way."""
        return len(self._queue) + len(self._pending)

    def take(self) -> Connection | None:
        """Return a connection that waits, the last used first."""
        return self.idle.popitem()[0] if self.idle else None

    def give_back(self, connection: Connection) -> None:
        """Let a connection wait for its next request."""
        connection.user = None
        self.idle[connection] = None

    def open(self, opened: Opened) -> None:
        """Open one connection and call `opened` from the loop, never from here."""
        self._queue.append(opened)
        self._loop.soon(self._connect_next)

    def close(self, connection: Connection) -> None:
        """Close an open connection, whoever holds it."""
        if connection not in self._open:
            return
        self._open.discard(connection)
        self.idle.pop(connection, None)
        self._loop.forget(connection.fileno)
        connection.user = None
        connection.is_closed = True
        connection.socket.close()

    def close_oldest_idle(self) -> None:
        """Close the connection that has waited longest."""
        self.close(next(iter(self.idle)))

    def close_all(self) -> None:
        """Close everything and forget what was asked for."""
        self._queue.clear()
        for pending in list(self._pending):
            self._drop(pending)
        for connection in list(self._open):
            self.close(connection)

    # ------------------------------------------------------------------ opening

    def _connect_next(self) -> None:
        if not self._queue or len(self._pending) >= _MOST_OPENING:
            return
        opened = self._queue.popleft()
        try:
            pending = self._new_socket()
        except OSError as problem:
            self._refused(opened, _connect_error(problem.errno or 0, problem.strerror or str(problem)))
            return
        until = time.monotonic() + self._timeout_s
        too_late = RequestError(kind="connect-timeout", message=f"no connection within {self._timeout_s:g} s")
        self._pending[pending] = self._loop.later(
            int(self._timeout_s * _NS_PER_S), lambda: self._fail(pending, opened, too_late)
        )
        self._connect(pending, opened, until)

    def _connect(self, pending: socket.socket, opened: Opened, until: float) -> None:
        """Connect; a Unix socket whose queue is full says so at once, and is asked again."""
        if pending not in self._pending:
            return
        code = pending.connect_ex(self._route.address)
        if code == errno.EAGAIN and time.monotonic() < until:
            self._loop.later(_AGAIN_NS, lambda: self._connect(pending, opened, until))
        elif code == errno.EADDRNOTAVAIL and self._next_source():
            self._drop(pending)
            self._queue.appendleft(opened)
            self._loop.soon(self._connect_next)
        elif code in (0, errno.EINPROGRESS):
            self._loop.watch(pending.fileno(), lambda _: self._connected(pending, opened), WRITE)
        else:
            self._fail(pending, opened, _connect_error(code))

    def _new_socket(self) -> socket.socket:
        route = self._route
        new = socket.socket(route.family, socket.SOCK_STREAM)
        new.setblocking(False)
        if route.family != socket.AF_UNIX:
            new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if KERNEL_STAMPS:
                new.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        if self._source:
            if KERNEL_STAMPS:
                new.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            new.bind((f"127.0.0.{self._source + 1}", 0))
        return new

    def _next_source(self) -> bool:
        """Move to another source address, where the target is this machine and there is one left."""
        route = self._route
        is_local = route.family == socket.AF_INET and str(route.address[0]).startswith(_LOOPBACK)
        if not is_local or self._source >= _SOURCES:
            return False
        self._source += 1
        return True

    def _connected(self, pending: socket.socket, opened: Opened) -> None:
        if code := pending.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._fail(pending, opened, _connect_error(code))
        elif needs_opening(self._route):
            opening = Opening(self._route, pending, self._context)
            self._loop.hand_over(pending.fileno(), lambda _: self._advance(pending, opening, opened), READ | WRITE)
            self._advance(pending, opening, opened)
        else:
            self._stands(pending, opened, None)

    def _advance(self, pending: socket.socket, opening: Opening, opened: Opened) -> None:
        """Go on with a proxy's or TLS's handshake."""
        try:
            waits_for = opening.advance()
        except OpeningFailed as failed:
            self._fail(pending, opened, RequestError(kind=failed.kind, message=failed.message))
            return
        if waits_for == "done":
            self._stands(pending, opened, opening.stream)
        else:
            # Readiness is reported once only: asking again reports what came meanwhile.
            self._loop.change(pending.fileno(), WRITE if waits_for == "write" else READ)

    def _stands(self, pending: socket.socket, opened: Opened, stream: TlsStream | None) -> None:
        self._pending.pop(pending).cancel()
        self._loop.soon(self._connect_next)
        connection = Connection(pending, stream)
        self._open.add(connection)
        self._loop.hand_over(connection.fileno, self._serve(connection))
        opened(connection, None)

    def _fail(self, pending: socket.socket, opened: Opened, error: RequestError) -> None:
        if pending in self._pending:
            self._drop(pending)
            self._refused(opened, error)

    def _drop(self, pending: socket.socket) -> None:
        self._pending.pop(pending).cancel()
        self._loop.forget(pending.fileno())
        pending.close()

    def _refused(self, opened: Opened, error: RequestError) -> None:
        self._loop.soon(self._connect_next)
        if self._route.connect_request and error.kind.startswith("connect"):
            error = RequestError(kind="proxy", message=f"no connection to the proxy: {error.message}")
        opened(None, error)


def _connect_error(code: int, message: str = "") -> RequestError:
    words = message or os.strerror(code)
    if code == errno.ECONNREFUSED:
        return RequestError(kind="connect-refused", message=words)
    if code == errno.ETIMEDOUT:
        return RequestError(kind="connect-timeout", message=words)
    return RequestError(kind="connect", message=words)


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft
