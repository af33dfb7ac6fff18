"""What lies between a connected socket and HTTP in the load worker: a proxy's answer, and TLS.

The load client reads its sockets itself, since only that gives the kernel's receive times. So TLS works on bytes in
memory here, and nothing in this module waits.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from servetune.http1 import PROXY_CLOSED, more_of_head, tunnel_refusal
from servetune.records import Record, RequestErrorKind, Transport
from servetune.tls import tls_problem

if TYPE_CHECKING:
    from ssl import SSLContext  # heavy, and most loads are plain

_READ_BYTES = 65536
_RECORD_BYTES = 16384


class Route(Record, frozen=True, kw_only=True):
    """One address of the server, of its proxy or of its Unix socket, and what is to be done once it is connected."""

    family: int
    address: tuple[str | int, ...] | str
    tls: bool
    server_name: str
    """The name that the certificate is checked for."""
    connect_request: bytes = b""
    """Sent to the proxy first, with its login; empty: there is no proxy."""
    transport: Transport = Transport()


class OpeningFailed(Exception):
    """The proxy or TLS did not let us through."""

    def __init__(self, kind: RequestErrorKind, message: str) -> None:
        self.kind = kind
        self.message = message
        super().__init__(message)


def needs_opening(route: Route) -> bool:
    """Whether a connected socket is not yet the server's plain HTTP."""
    return route.tls or bool(route.connect_request)


class Opening:
    """Asks the proxy for the server and makes TLS on one connected, non-blocking socket.

    It reads no byte of the proxy's that belongs to the server: such bytes stay in the socket.
    """

    __slots__ = ("_context", "_head", "_is_through", "_route", "_socket", "_unsent", "stream")

    def __init__(self, route: Route, sock: socket.socket, context: SSLContext | None) -> None:
        """`context` is needed where the route is TLS."""
        self._route = route
        self._socket = sock
        self._context = context
        self._unsent = memoryview(route.connect_request)
        self._is_through = not route.connect_request
        self._head = b""
        self.stream: TlsStream | None = None
        """TLS on this connection, to be used after "done"; None: plain."""

    def advance(self) -> Literal["read", "write", "done"]:
        """Go as far as the socket allows and return what must be possible on it before the next call.

        Raises OpeningFailed with kind "proxy" or "tls".
        """
        if not self._is_through:
            try:
                waits_for = self._ask_proxy()
            except OSError as problem:
                reason = f"the proxy broke the connection: {problem.strerror or problem}"
                raise OpeningFailed("proxy", reason) from problem
            if waits_for is not None:
                return waits_for
            self._is_through = True
        if not self._route.tls:
            return "done"
        if self.stream is None:
            assert self._context is not None
            self.stream = TlsStream(self._context, self._route.server_name)
        return self._shake_hands(self.stream)

    def _ask_proxy(self) -> Literal["read", "write"] | None:
        if self._unsent:
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
            except BlockingIOError:
                return "write"
            if self._unsent:
                return "write"
        while (refusal := tunnel_refusal(self._head)) is None:
            try:
                more = more_of_head(self._socket, self._head)
            except BlockingIOError:
                return "read"
            if not more:
                raise OpeningFailed("proxy", PROXY_CLOSED)
            self._head += more
        if refusal:
            raise OpeningFailed("proxy", refusal)
        return None

    def _shake_hands(self, stream: TlsStream) -> Literal["read", "write", "done"]:
        try:
            while True:
                if not self._flush(stream):
                    return "write"
                if stream.is_open:
                    return "done"
                try:
                    received = self._socket.recv(_READ_BYTES)
                except BlockingIOError:
                    return "read"
                if not received:
                    raise OpeningFailed("tls", "the server closed the connection before TLS was agreed")
                stream.shake_hands(received)
        except OSError as problem:
            reason = tls_problem(problem, stream.server_name)
            if reason:
                # What OpenSSL has to say about it is the server's only way to know.
                with suppress(OSError):
                    self._flush(stream)
            else:
                reason = f"the connection broke before TLS was agreed: {problem.strerror or problem}"
            raise OpeningFailed("tls", reason) from problem

    def _flush(self, stream: TlsStream) -> bool:
        while rest := stream.pending():
            try:
                stream.written(self._socket.send(rest))
            except BlockingIOError:
                return False
        return True


class TlsStream:
    """TLS between bytes in memory: the caller moves the ciphertext from and to the socket."""

    __slots__ = (
        "_incoming",
        "_outgoing",
        "_plain",
        "_tls",
        "_unsent",
        "_want_read",
        "ended",
        "is_open",
        "problem",
        "server_name",
    )

    def __init__(self, context: SSLContext, server_name: str) -> None:
        """Prepare the first bytes of the handshake."""
        import ssl  # noqa: PLC0415  # see above

        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._want_read: type[Exception] = ssl.SSLWantReadError
        self._plain = memoryview(b"")
        self._unsent = memoryview(b"")
        self.server_name = server_name
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self.is_open = False
        """The handshake is over."""
        self.ended = False
        """The server sends no more: it said so, or `problem` says what it did."""
        self.problem = ""
        self.shake_hands(b"")

    def shake_hands(self, ciphertext: bytes) -> None:
        """Take the server's next bytes of the handshake; what follows them is kept. Raises ssl.SSLError."""
        self._incoming.write(ciphertext)
        with suppress(self._want_read):
            self._tls.do_handshake()
            self.is_open = True

    def receive(self, ciphertext: bytes | memoryview) -> bytes:
        """Take the next bytes from the socket and return the plaintext that is complete; never raises.

        TLS may have something to answer: look at `pending` afterwards.
        """
        incoming, tls = self._incoming, self._tls
        incoming.write(ciphertext)
        parts: list[bytes] = []
        try:
            while not self.ended:
                part = tls.read(_RECORD_BYTES)
                if part:
                    parts.append(part)
                    if not incoming.pending and not tls.pending():
                        break
                else:
                    self.ended = True
        except self._want_read:
            pass
        except OSError as problem:
            self.ended = True
            self.problem = tls_problem(problem, self.server_name)
        if self._plain:
            self._encrypt()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def send(self, plaintext: bytes | memoryview) -> None:
        """Encrypt; the bytes for the socket are then `pending`. Never raises: a broken stream `ended`."""
        self._plain = memoryview(b"".join((self._plain, plaintext))) if self._plain else memoryview(plaintext)
        self._encrypt()

    def _encrypt(self) -> None:
        try:
            while self._plain:
                self._plain = self._plain[self._tls.write(self._plain) :]
        except self._want_read:
            # The server asked for new keys: the rest goes out once it has answered.
            pass
        except OSError as problem:
            self.ended = True
            self.problem = self.problem or tls_problem(problem, self.server_name)

    def pending(self) -> memoryview:
        """Return the ciphertext that waits to be written to the socket."""
        if self._outgoing.pending:
            self._unsent = memoryview(b"".join((self._unsent, self._outgoing.read())))
        return self._unsent

    def written(self, size: int) -> None:
        """Note that the first `size` bytes of what is `pending` went out."""
        self._unsent = self._unsent[size:]
