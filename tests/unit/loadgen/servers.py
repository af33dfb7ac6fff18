"""Servers behind every kind of transport, on real sockets and threads: TLS, an HTTP proxy, a Unix socket, IPv6.

Each server answers POST with a short streamed completion and GET with a list of models, on kept connections.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme

_LOOK_EVERY_S = 0.05
_PATIENCE_S = 10.0


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


HAS_IPV6 = _has_ipv6()
"""This machine can listen on ::1."""


# --------------------------------------------------------------------------- certificates


class PrivateCa:
    """An authority that nobody trusts by default, with a client's certificate; all files lie in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self.ca_file = str(folder / "ca.pem")
        self.client_cert = str(folder / "client.pem")
        self.client_key = str(folder / "client.key")
        self.both = str(folder / "both.pem")
        """The client's certificate and key in one file."""
        client = self._ca.issue_cert("client@servetune.example")
        self._ca.cert_pem.write_to_path(self.ca_file)
        client.cert_chain_pems[0].write_to_path(self.client_cert)
        client.private_key_pem.write_to_path(self.client_key)
        client.private_key_and_cert_chain_pem.write_to_path(self.both)

    def issue(self, name: str, folder: Path) -> str:
        """Write a server's key and certificate for `name` to one file and return its path."""
        path = str(folder / "server.pem")
        self._ca.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(path)
        return path

    def server_context(
        self, *names: str, asks_for_certificate: bool = False, newest: ssl.TLSVersion | None = None
    ) -> ssl.SSLContext:
        """TLS of a server that is called `names`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert(*names).configure_cert(context)
        if newest is not None:
            context.maximum_version = newest
        if asks_for_certificate:
            context.verify_mode = ssl.CERT_REQUIRED
            self._ca.configure_trust(context)
        return context


# --------------------------------------------------------------------------- what is answered


def completion(tokens: int) -> list[bytes]:
    """The pieces of a streamed chat completion, each to be sent by itself."""
    messages: list[Any] = [
        {"choices": [{"index": 0, "delta": {"content": f"w{number} "}, "finish_reason": None}]}
        for number in range(tokens)
    ]
    messages += [
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]},
        {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}},
    ]
    events = [f"data: {text}\n\n".encode() for text in [*map(json.dumps, messages), "[DONE]"]]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head, *(b"%x\r\n%s\r\n" % (len(event), event) for event in events), b"0\r\n\r\n"]


MODELS = b'{"object": "list", "data": [{"id": "test-model"}]}'
_MODELS_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(MODELS),
    MODELS,
)


@dataclass
class Endpoint:
    """A server that runs; `heads` grows with each request."""

    url: str
    heads: list[bytes] = field(default_factory=list)
    """Request line and headers of each request."""
    connections: int = 0
    """Accepted so far."""


def _answer(connection: socket.socket, endpoint: Endpoint, tokens: int) -> None:
    while request := _request(connection):
        endpoint.heads.append(request)
        for piece in [_MODELS_ANSWER] if request.startswith(b"GET ") else completion(tokens):
            connection.sendall(piece)


def _request(connection: socket.socket) -> bytes:
    """Read a whole request and return its head; b"" where the client has closed."""
    data = _head(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    left = int(length[1]) - len(body) if length else 0
    while left > 0 and (more := connection.recv(65536)):
        left -= len(more)
    return head


def _head(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b""
        data += more
    return data


# --------------------------------------------------------------------------- running


@contextmanager
def _running(listener: socket.socket, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Accept on `listener` and call `serve` for each connection in a thread of its own."""
    stopping = threading.Event()
    threads: list[threading.Thread] = []
    accepted: list[socket.socket] = []

    def attend(connection: socket.socket, handle: socket.socket) -> None:
        with suppress(OSError):
            serve(connection)
        connection.close()
        with suppress(OSError):
            # Bytes left unread would turn the close into a reset, which may overtake the last words.
            handle.shutdown(socket.SHUT_WR)
            while handle.recv(65536):
                pass
        handle.close()

    def accept() -> None:
        while not stopping.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(_PATIENCE_S)
            # A second handle: TLS takes the first one over.
            accepted.append(connection.dup())
            accepted[-1].settimeout(_PATIENCE_S)
            threads.append(threading.Thread(target=attend, args=(connection, accepted[-1])))
            threads[-1].start()

    with listener:
        listener.settimeout(_LOOK_EVERY_S)
        threads.append(threading.Thread(target=accept))
        threads[0].start()
        try:
            yield
        finally:
            stopping.set()
            threads[0].join()
            for connection in accepted:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(_PATIENCE_S)
                assert not thread.is_alive()


@contextmanager
def _completing(
    listener: socket.socket, endpoint: Endpoint, context: ssl.SSLContext | None, tokens: int
) -> Iterator[Endpoint]:
    def serve(connection: socket.socket) -> None:
        endpoint.connections += 1
        if context is None:
            _answer(connection, endpoint, tokens)
            return
        with context.wrap_socket(connection, server_side=True) as secure:
            _answer(secure, endpoint, tokens)

    with _running(listener, serve):
        yield endpoint


def _listen(family: socket.AddressFamily) -> tuple[socket.socket, str]:
    host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    listener = socket.create_server((host, 0), family=family, backlog=256)
    port = listener.getsockname()[1]
    return listener, f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"


@contextmanager
def plain_server(*, family: socket.AddressFamily = socket.AF_INET, tokens: int = 3) -> Iterator[Endpoint]:
    """Plain HTTP on 127.0.0.1, or on [::1] with AF_INET6."""
    listener, authority = _listen(family)
    with _completing(listener, Endpoint(url=f"http://{authority}"), None, tokens) as endpoint:
        yield endpoint


@contextmanager
def ipv6_server(*, tokens: int = 3) -> Iterator[Endpoint]:
    """Plain HTTP on [::1]; only where HAS_IPV6."""
    with plain_server(family=socket.AF_INET6, tokens=tokens) as endpoint:
        yield endpoint


@contextmanager
def tls_server(
    ca: PrivateCa,
    *,
    names: tuple[str, ...] = ("localhost", "127.0.0.1", "::1"),
    asks_for_certificate: bool = False,
    newest: ssl.TLSVersion | None = None,
    family: socket.AddressFamily = socket.AF_INET,
    tokens: int = 3,
) -> Iterator[Endpoint]:
    """HTTPS with a certificate of `ca` for `names`; `newest` limits the version of TLS."""
    context = ca.server_context(*names, asks_for_certificate=asks_for_certificate, newest=newest)
    listener, authority = _listen(family)
    with _completing(listener, Endpoint(url=f"https://{authority}"), context, tokens) as endpoint:
        yield endpoint


@contextmanager
def unix_server(path: Path, *, context: ssl.SSLContext | None = None, tokens: int = 3) -> Iterator[Endpoint]:
    """HTTP, or HTTPS with `context`, on the Unix socket `path`; the URL's host is localhost."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(256)
    scheme = "http" if context is None else "https"
    with _completing(listener, Endpoint(url=f"{scheme}://localhost"), context, tokens) as endpoint:
        yield endpoint


# --------------------------------------------------------------------------- the proxy


@dataclass
class ProxyServer:
    """A proxy that runs."""

    url: str
    """Without a login."""
    targets: list[str] = field(default_factory=list)
    """What it was asked to connect to, in order."""


@contextmanager
def connect_proxy(*, login: str = "", answer: bytes = b"") -> Iterator[ProxyServer]:
    """A proxy for CONNECT.

    With `login` ("user:password") it answers 407 to everybody else; with `answer` it says that and closes. A target
    that refuses is answered with 502.
    """
    listener, authority = _listen(socket.AF_INET)
    proxy = ProxyServer(url=f"http://{authority}")
    expected = f"proxy-authorization: basic {base64.b64encode(login.encode()).decode()}".lower()

    def serve(connection: socket.socket) -> None:
        head = _head(connection).decode()
        target = head.split(" ")[1]
        proxy.targets.append(target)
        if answer:
            connection.sendall(answer)
        elif login and expected not in head.lower():
            connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        else:
            _relay(connection, target)

    with _running(listener, serve):
        yield proxy


def _relay(connection: socket.socket, target: str) -> None:
    host, _, port = target.rpartition(":")
    try:
        upstream = socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_S)
    except OSError:
        connection.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        return
    with closing(upstream):
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        back = threading.Thread(target=_copy, args=(upstream, connection))
        back.start()
        _copy(connection, upstream)
        back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
