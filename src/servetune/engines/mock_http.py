"""HTTP/1.1 connections of the mock engine on its own sockets: only they give the kernel's time of arrival.

Knows bytes, requests and responses; nothing of the API or of generation.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable

from servetune.records import Record

_SO_TIMESTAMPNS = 35
"""Linux on x86 and arm64; Python 3.11 has no name for it."""
_LARGEST_REQUEST_BYTES = 64 * 1024 * 1024
_READ_BYTES = 256 * 1024
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 413: "Content Too Large",
            429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip


class HttpRequest(Record, frozen=True, kw_only=True):
    """One request; times are CLOCK_REALTIME ns of the kernel."""

    method: str
    path: str
    body: bytes
    arrival_ns: int
    """When its first bytes arrived."""
    complete_ns: int
    """When its last bytes arrived."""


class Connection:
    """One client's connection: requests in, bytes out, one request at a time."""

    _buffer = bytearray(_READ_BYTES)

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        endpoint: socket.socket,
        on_request: Callable[[Connection, HttpRequest], None],
    ) -> None:
        self.on_gone: Callable[[], None] | None = None
        """Called once if the client goes away before the response is complete."""
        self.is_open = True
        self._loop = loop
        self._socket = endpoint
        self._on_request = on_request
        self._received = bytearray()
        self._unsent = bytearray()
        self._arrival_ns = 0
        self._last_ns = 0
        self._is_answering = False
        self._closes_after = False
        loop.add_reader(endpoint, self._readable)

    def _readable(self) -> None:
        try:
            size, ancillary, _, _ = self._socket.recvmsg_into([self._buffer], 256)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self.close()
            return
        self._last_ns = _kernel_ns(ancillary)
        if not self._received:
            self._arrival_ns = self._last_ns
        self._received += memoryview(self._buffer)[:size]
        self._take_request()

    def _take_request(self) -> None:
        head_end = self._received.find(b"\r\n\r\n")
        if self._is_answering or head_end < 0:
            return
        line, *fields = self._received[:head_end].decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        end = head_end + 4 + int(headers.get("content-length", "0"))
        self._closes_after = headers.get("connection", "").lower() == "close"
        if end > _LARGEST_REQUEST_BYTES:
            self._closes_after = True
            self.respond(413, b"{}")
        if not self.is_open or len(self._received) < end:
            return
        body = bytes(self._received[head_end + 4 : end])
        del self._received[:end]
        method, path, *_ = [*line.split(" "), "", ""]
        request = HttpRequest(
            method=method, path=path, body=body, arrival_ns=self._arrival_ns, complete_ns=self._last_ns
        )
        self._arrival_ns = self._last_ns
        self._is_answering = True
        self._on_request(self, request)

    def send(self, data: bytes) -> int:
        """Hand `data` to the kernel, or queue it behind what is queued; return the time right before, in ns."""
        before_ns = time.time_ns()
        if not self.is_open:
            return before_ns
        if self._unsent:
            self._unsent += data
            return before_ns
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return before_ns
        if sent < len(data):
            self._unsent += data[sent:]
            self._loop.add_writer(self._socket, self._writable)
        return before_ns

    def _writable(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._socket)
            if self._closes_after and not self._is_answering:
                self.close()

    def respond(self, status: int, body: bytes, *, media: str = "application/json", extra: str = "") -> None:
        """Send a whole response and be ready for the next request."""
        fields = f"Content-Type: {media}\r\nContent-Length: {len(body)}\r\n{extra}"
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\n{fields}\r\n"
        self.send(head.encode() + body)
        self.end_response()

    def begin_stream(self) -> None:
        """Send the head of an event stream."""
        self.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
        )

    def end_response(self) -> None:
        """Say that the response is complete: close if the client wants it, else take the next request."""
        self._is_answering = False
        self.on_gone = None
        if self._closes_after and not self._unsent:
            self.close()
        elif self._received:
            self._take_request()

    def close(self) -> None:
        """Close the connection; tells `on_gone` if a response was under way."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        gone, self.on_gone = self.on_gone, None
        if gone is not None:
            gone()


def chunk(data: bytes) -> bytes:
    """Return `data` as one chunk of the chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def _kernel_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Return the kernel's receive time, or the time now where the kernel gave none."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) >= 16:
            seconds, nanoseconds = struct.unpack_from("qq", data)
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return time.time_ns()


class Listener:
    """Accepts connections on one port of loopback."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        port: int,
        on_request: Callable[[Connection, HttpRequest], None],
    ) -> None:
        """Listen; raises OSError (EADDRINUSE) if the port is taken."""
        self._loop = loop
        self._on_request = on_request
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # not Linux: arrival is then stamped when it is read
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.setblocking(False)
        try:
            self._socket.bind(("127.0.0.1", port))
            self._socket.listen(4096)
        except OSError:
            self._socket.close()
            raise
        loop.add_reader(self._socket, self._acceptable)

    def _acceptable(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            for _ in range(64):
                endpoint, _ = self._socket.accept()
                endpoint.setblocking(False)
                endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                Connection(self._loop, endpoint, self._on_request)
