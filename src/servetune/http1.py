"""HTTP/1.1 as servetune needs it: addresses, request bytes, response framing, and a small blocking client for probes.

The load client (`loadgen/`) frames its responses with ResponseFraming too; this module must not know what is asked or
why. TLS and proxies are not spoken yet.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import httptools
import msgspec

from servetune.errors import UserError
from servetune.records import Record

_DEFAULT_PORT = 80
_READ_BYTES = 65536
_LONGEST_PROBE_BYTES = 16 * 1024 * 1024


class Url(Record, frozen=True, kw_only=True):
    """Where a server is reached."""

    host: str
    """Name or address, IPv6 without its brackets."""
    port: int
    path: str
    """Without a slash at its end; "" for the root."""

    @property
    def authority(self) -> str:
        """Value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_url(text: str) -> Url:
    """Read an `http://` address; raises UserError for anything else."""
    whole = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(whole)
        port = parts.port or _DEFAULT_PORT
    except ValueError as bad:
        raise UserError(f"URL {text!r}", str(bad), "write it like http://127.0.0.1:8000") from bad
    if parts.scheme != "http":
        raise UserError(f"URL {text!r}", f"{parts.scheme} is not supported", "use an http:// address")
    if not parts.hostname:
        raise UserError(f"URL {text!r}", "it names no host", "write it like http://127.0.0.1:8000")
    return Url(host=parts.hostname, port=port, path=parts.path.rstrip("/"))


def request_bytes(
    method: str, path: str, *, authority: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> bytes:
    """Write one request; raises UserError for a header that would break the framing."""
    lines = [f"{method} {path or '/'} HTTP/1.1", f"Host: {authority}"]
    for name, value in (headers or {}).items():
        if any(sign in name + value for sign in "\r\n\0") or not name.isascii():
            raise UserError(f"header {name!r}", "it contains a line end or a sign outside ASCII", "remove it")
        lines.append(f"{name}: {value}")
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class ResponseFraming:
    """Finds head, body parts and end of one response in bytes that arrive in any pieces.

    `parts` collects the body with the transfer coding removed; a caller compares its length before and after `feed`.
    """

    __slots__ = ("_parser", "complete", "head_complete", "headers", "keep_alive", "may_keep_alive", "on_body", "parts", "status")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.on_body = self.parts.append
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self.headers: dict[str, str] = {}
        self.status: int | None = None
        self.head_complete = False
        self.complete = False
        self.keep_alive = False
        """The answer is complete and the connection may be used again."""
        self.may_keep_alive = False
        """The head allows that."""

    def feed(self, data: bytes | memoryview) -> str | None:
        """Take the next bytes; returns what is wrong with them, or None."""
        if self._parser is None:
            return "the server sent more bytes after the end of its answer"
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as bad:
            # Bytes behind a complete answer do not spoil it; the connection is not used again.
            self.keep_alive = False
            return None if self.complete else f"not HTTP/1.1: {bad}"
        return None

    def end_of_file(self) -> bool:
        """Tell whether the response is complete now that the connection ended: such a body has no other end."""
        until_close = not {"content-length", "transfer-encoding"} & self.headers.keys()
        if self.head_complete and until_close:
            self.complete = True
        self.keep_alive = False
        return self.complete

    def release(self) -> None:
        """Give up the parser: it and this object hold each other, and the load client runs without the collector."""
        self._parser = None

    # Called by httptools while it parses.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Read the status; an interim answer (1xx) is only the first of two heads."""
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        self.head_complete = self.status >= 200
        if not self.head_complete:
            self.headers.clear()
        self.may_keep_alive = self.head_complete and self._parser.should_keep_alive()

    def on_message_complete(self) -> None:
        """Note the end of the response."""
        assert self._parser is not None
        if self.head_complete:
            self.complete = True
            self.keep_alive = self._parser.should_keep_alive()


class Response(Record, frozen=True, kw_only=True):
    """A whole answer to a probe."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


class NoAnswer(Record, frozen=True, kw_only=True):
    """There was no whole answer."""

    reason: str


def send(
    method: str, url: str, *, body: bytes = b"", headers: Mapping[str, str] | None = None, timeout_s: float = 5.0
) -> Response | NoAnswer:
    """Send one request on a connection of its own and wait for the whole answer, `timeout_s` in total.

    Raises UserError for an address or a header that cannot be used.
    """
    target = parse_url(url)
    query = urlsplit(url if "://" in url else f"http://{url}").query
    path = f"{target.path or '/'}?{query}" if query else target.path
    wire = request_bytes(
        method, path, authority=target.authority, headers={"Connection": "close", **(headers or {})}, body=body
    )
    deadline = time.monotonic() + timeout_s
    try:
        with socket.create_connection((target.host, target.port), timeout=timeout_s) as connection:
            connection.sendall(wire)
            return _receive(connection, deadline)
    except TimeoutError:
        return NoAnswer(reason=f"no answer within {timeout_s:g} s")
    except OSError as problem:
        return NoAnswer(reason=problem.strerror or str(problem))


def get(url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 5.0) -> Response | NoAnswer:
    """`send` for GET."""
    return send("GET", url, headers=headers, timeout_s=timeout_s)


def get_json(url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 5.0) -> object | None:
    """Return the JSON value that `url` answers with; None where there is no answer, an error status or no JSON."""
    answer = get(url, headers=headers, timeout_s=timeout_s)
    if isinstance(answer, NoAnswer) or answer.status != 200:
        return None
    try:
        value: object = msgspec.json.decode(answer.body)
    except msgspec.DecodeError:
        return None
    return value


def _receive(connection: socket.socket, deadline: float) -> Response | NoAnswer:
    framing = ResponseFraming()
    received = 0
    while not framing.complete:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        data = connection.recv(_READ_BYTES)
        received += len(data)
        if received > _LONGEST_PROBE_BYTES:
            return NoAnswer(reason=f"the answer is longer than {_LONGEST_PROBE_BYTES} bytes")
        if not data and not framing.end_of_file():
            return NoAnswer(reason="the server closed the connection before its answer was complete")
        if data and (problem := framing.feed(data)):
            return NoAnswer(reason=problem)
    framing.release()
    return Response(status=framing.status or 0, headers=framing.headers, body=b"".join(framing.parts))
