"""TCP connections to the server under load, and the pool that opens them ahead of need.

Sockets are our own, on the loop's readers: only `recvmsg` returns the time at which the kernel received the data. This
module knows nothing of HTTP; what arrives is handed to `readable`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable

from servetune.loadgen.job import Target

KERNEL_STAMPS = sys.platform == "linux"
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@ll")
_NS_PER_S = 1_000_000_000
_MOST_OPENING = 128
CONNECT_TIMEOUT_S = 10.0

Ancillary = Iterable[tuple[int, int, bytes]]


def kernel_stamp_ns(ancillary: Ancillary) -> int | None:
    """Return the kernel's receive time (CLOCK_REALTIME, ns) of a `recvmsg`; None where it gave none."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            return int(seconds * _NS_PER_S + nanoseconds)
    return None


class Connection:
    """One open connection; `user` is whoever waits for bytes from it."""

    __slots__ = ("blocked", "fileno", "opened_ns", "socket", "used", "user")

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.fileno = opened.fileno()
        self.opened_ns = time.time_ns()
        self.used = False
        self.blocked = False
        """The socket takes no more for now; a writer waits."""
        self.user: object | None = None


Opened = Callable[[Connection | None, str], None]
"""Called with the connection, or with None and the reason."""


class Pool:
    """Open connections that wait for a request, and those on their way.

    At most 128 are being opened at a time, so that a server's queue of new connections is not flooded.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, target: Target, readable: Callable[[Connection], None]) -> None:
        self._loop = loop
        self._target = target
        self._readable = readable
        self._queue: deque[Opened] = deque()
        self._connecting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._open: set[Connection] = set()
        self.idle: list[Connection] = []

    @property
    def opening(self) -> int:
        """Connections on their way."""
        return len(self._queue) + len(self._connecting)

    def take(self) -> Connection | None:
        """Return a connection that waits, the last used first."""
        return self.idle.pop() if self.idle else None

    def open(self, opened: Opened) -> None:
        """Open one connection and call `opened` from the loop, never from here."""
        self._queue.append(opened)
        self._loop.call_soon(self._connect_next)

    def close(self, connection: Connection) -> None:
        """Close an open connection, whoever holds it."""
        if connection not in self._open:
            return
        self._open.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
        self._loop.remove_reader(connection.fileno)
        self._loop.remove_writer(connection.fileno)
        connection.user = None
        connection.socket.close()

    def holder(self, user: object) -> Connection | None:
        """Return the connection on which `user` waits."""
        return next((connection for connection in self._open if connection.user is user), None)

    def close_all(self) -> None:
        """Close everything and forget what was asked for."""
        self._queue.clear()
        for pending in list(self._connecting):
            self._stop_connecting(pending)
            pending.close()
        for connection in list(self._open):
            self.close(connection)

    def _connect_next(self) -> None:
        if not self._queue or len(self._connecting) >= _MOST_OPENING:
            return
        opened = self._queue.popleft()
        try:
            pending = self._new_socket()
        except OSError as problem:
            self._refused(opened, problem.strerror or str(problem))
            return
        code = pending.connect_ex(self._target.address)
        if code not in (0, errno.EINPROGRESS):
            pending.close()
            self._refused(opened, os.strerror(code))
            return
        timer = self._loop.call_later(CONNECT_TIMEOUT_S, self._connected, pending, opened, errno.ETIMEDOUT)
        self._connecting[pending] = timer
        self._loop.add_writer(pending.fileno(), self._connected, pending, opened, 0)

    def _new_socket(self) -> socket.socket:
        new = socket.socket(self._target.family, socket.SOCK_STREAM)
        new.setblocking(False)
        new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if KERNEL_STAMPS:
            new.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        return new

    def _stop_connecting(self, pending: socket.socket) -> None:
        self._connecting.pop(pending).cancel()
        self._loop.remove_writer(pending.fileno())

    def _refused(self, opened: Opened, reason: str) -> None:
        self._loop.call_soon(self._connect_next)
        opened(None, reason)

    def _connected(self, pending: socket.socket, opened: Opened, code: int) -> None:
        self._stop_connecting(pending)
        code = code or pending.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            pending.close()
            self._refused(opened, os.strerror(code))
            return
        self._loop.call_soon(self._connect_next)
        connection = Connection(pending)
        self._open.add(connection)
        self._loop.add_reader(connection.fileno, self._readable, connection)
        opened(connection, "")


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft
