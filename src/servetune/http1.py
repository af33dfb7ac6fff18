"""HTTP/1.1 as servetune needs it: addresses, request bytes, response framing, and a small blocking client for probes.

The load client (`loadgen/`) frames its responses with ResponseFraming too, and shares what is said here about
proxies; this module must not know what is asked or why. Proxies that the environment names are never used.
"""

from __future__ import annotations

import base64
import re
import socket
import time
from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult, quote, unquote, urlsplit

import httptools
import msgspec

from servetune.errors import UserError
from servetune.masking import mask_proxy
from servetune.records import Record, Transport
from servetune.tls import tls_context, tls_problem

_DEFAULT_PORTS = {"http": 80, "https": 443}
_PATH_SIGNS = "/%:@!$&'()*+,;=~"
_READ_BYTES = 65536
_LONGEST_PROBE_BYTES = 16 * 1024 * 1024
_LONGEST_HEAD_BYTES = 65536
_LONGEST_UNIX_PATH_BYTES = 103
"""What every system can bind: Linux takes 107 bytes, macOS 103."""
_HOST_NAME = re.compile(r"[^\x00-\x20\x7f.]{1,63}(?:\.[^\x00-\x20\x7f.]{1,63})*\.?")
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)(?: ([^\r\n]*))?\r\n")
_HEAD_END = b"\r\n\r\n"


class Url(Record, frozen=True, kw_only=True):
    """Where a server is reached."""

    host: str
    """Name or address, IPv6 without its brackets."""
    port: int
    path: str
    """Without a slash at its end; "" for the root."""
    tls: bool = False
    """It is an https address."""

    @property
    def authority(self) -> str:
        """Value of the Host header."""
        name = self.server_name
        host = f"[{name}]" if ":" in name else name
        return f"{host}:{self.port}"

    @property
    def server_name(self) -> str:
        """The name that the server's certificate is checked for: the host without the zone of an IPv6 address."""
        return self.host.partition("%")[0]


class Proxy(Record, frozen=True, kw_only=True):
    """A proxy that is asked to CONNECT."""

    url: Url
    authorization: str | None
    """Value of the Proxy-Authorization header: a secret."""


def parse_url(text: str) -> Url:
    """Read an `http://` or `https://` address; without a scheme it is http. Raises UserError for anything else."""
    parts = _split(text, "URL", "http://127.0.0.1:8000")
    if parts.scheme not in _DEFAULT_PORTS:
        raise UserError(
            f"URL {mask_proxy(text)!r}", f"{parts.scheme} is not supported", "use an http:// or https:// address"
        )
    if "@" in parts.netloc:
        fix = "leave it out and give the key as the API key or with --header, e.g. --header 'Authorization=Basic ...'"
        raise UserError(f"URL {mask_proxy(text)!r}", "it holds a login", fix)
    return _url(parts)


def parse_proxy(transport: Transport) -> Proxy | None:
    """Read the proxy's address; None where no proxy is asked for. Raises UserError for an address it cannot use."""
    if transport.proxy is None:
        return None
    if transport.unix_socket is not None:
        raise UserError("--proxy", "a Unix socket is not reached through a proxy", "give --proxy or --unix-socket")
    parts = _split(transport.proxy, "--proxy", "http://127.0.0.1:3128")
    if parts.scheme != "http":
        problem = f"{parts.scheme} is not supported to a proxy"
        raise UserError(f"--proxy {mask_proxy(transport.proxy)!r}", problem, "use an http:// address")
    authorization = None
    if "@" in parts.netloc:
        login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(login.encode()).decode()}"
    return Proxy(url=_url(parts), authorization=authorization)


def _split(text: str, what: str, example: str) -> SplitResult:
    """Split an address and check its host and port."""
    shown = f"{what} {mask_proxy(text)!r}"
    fix = f"write it like {example}"
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host = parts.hostname
    except ValueError as bad:
        raise UserError(shown, "it is no address", fix) from bad
    try:
        port = parts.port
    except ValueError as bad:
        raise UserError(shown, "its port is not a number from 1 to 65535", fix) from bad
    if not host:
        raise UserError(shown, "it names no host", fix)
    if port == 0:
        raise UserError(shown, "its port is not a number from 1 to 65535", fix)
    try:
        name = host if host.isascii() else host.encode("idna").decode()
    except UnicodeError as bad:
        raise UserError(shown, "the name of its host cannot be used", fix) from bad
    if ":" not in name and not _HOST_NAME.fullmatch(name):
        raise UserError(shown, "the name of its host cannot be used", fix)
    return parts


def _url(parts: SplitResult) -> Url:
    host = parts.hostname or ""
    if ":" in host:
        host = unquote(host)
    elif not host.isascii():
        host = host.encode("idna").decode()
    return Url(
        host=host,
        port=parts.port or _DEFAULT_PORTS[parts.scheme],
        path=quote(parts.path.rstrip("/"), safe=_PATH_SIGNS),
        tls=parts.scheme == "https",
    )


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

    __slots__ = (
        "_parser",
        "_whole",
        "complete",
        "head_complete",
        "headers",
        "keep_alive",
        "may_keep_alive",
        "on_body",
        "parts",
        "status",
    )

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.on_body = self.parts.append
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._whole = 0
        """Parts of the complete body."""
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
        return self.feed_each((data,))[1]

    def feed_each(self, reads: Sequence[bytes | memoryview]) -> tuple[list[int], str | None]:
        """Take the next bytes as they were read.

        Returns the number of `parts` after each read, as far as they belong to this answer, and what is wrong or None.
        """
        counts: list[int] = []
        if self._parser is None:
            return counts, "the server sent more bytes after the end of its answer"
        if self.complete:
            self.keep_alive = False
            return counts, None
        feed, parts, problem = self._parser.feed_data, self.parts, None
        try:
            for data in reads:
                feed(data)
                counts.append(len(parts))
                if self.complete:
                    break
        except httptools.HttpParserUpgrade:
            problem = "the server switched to another protocol"
        except httptools.HttpParserError as bad:
            problem = f"not HTTP/1.1: {bad}"
        if problem is not None:
            counts.append(len(parts))
        if not self.complete:
            return counts, problem
        # Bytes behind a complete answer do not spoil it; the connection is not used again.
        self.keep_alive = self.keep_alive and problem is None and len(counts) == len(reads)
        del parts[self._whole :]
        return [*counts[:-1], len(parts)], None

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

    def on_message_begin(self) -> None:
        """Notice another answer behind the complete one."""
        if self.complete:
            self.keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header; those behind the body say nothing that is asked."""
        if not self.head_complete:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Read the status; an interim answer (1xx) is only the first of two heads."""
        assert self._parser is not None
        if self.complete:
            return
        self.status = self._parser.get_status_code()
        self.head_complete = self.status >= 200
        if not self.head_complete:
            self.headers.clear()
        self.may_keep_alive = self.head_complete and self._parser.should_keep_alive()

    def on_message_complete(self) -> None:
        """Note the end of the response."""
        assert self._parser is not None
        if self.head_complete and not self.complete:
            self.complete = True
            self._whole = len(self.parts)
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
    method: str,
    url: str,
    *,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 5.0,
    transport: Transport = Transport(),  # noqa: B008  # frozen
) -> Response | NoAnswer:
    """Send one request on a connection of its own and wait for the whole answer, `timeout_s` in total.

    Raises UserError for an address, a header, a certificate file or a proxy that cannot be used.
    """
    target = parse_url(url)
    query = quote(urlsplit(url if "://" in url else f"http://{url}").query, safe=_PATH_SIGNS + "?")
    path = f"{target.path or '/'}?{query}" if query else target.path
    wire = request_bytes(
        method, path, authority=target.authority, headers={"Connection": "close", **(headers or {})}, body=body
    )
    context = tls_context(transport) if target.tls else None
    deadline = time.monotonic() + timeout_s
    try:
        with _connected(target, transport, timeout_s) as raw:
            if refusal := _tunnel(raw, target, transport, deadline):
                return NoAnswer(reason=refusal)
            if context is None:
                return _exchange(raw, wire, deadline)
            raw.settimeout(_left(deadline))
            with context.wrap_socket(raw, server_hostname=target.server_name) as connection:
                return _exchange(connection, wire, deadline)
    except TimeoutError:
        return NoAnswer(reason=f"no answer within {timeout_s:g} s")
    except OSError as problem:
        return NoAnswer(reason=_reason(problem, target))


def get(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 5.0,
    transport: Transport = Transport(),  # noqa: B008  # frozen
) -> Response | NoAnswer:
    """`send` for GET."""
    return send("GET", url, headers=headers, timeout_s=timeout_s, transport=transport)


def get_json(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 5.0,
    transport: Transport = Transport(),  # noqa: B008  # frozen
) -> object | None:
    """Return the JSON value that `url` answers with; None where there is no answer, an error status or no JSON."""
    answer = get(url, headers=headers, timeout_s=timeout_s, transport=transport)
    if isinstance(answer, NoAnswer) or answer.status != 200:
        return None
    try:
        value: object = msgspec.json.decode(answer.body)
    except msgspec.DecodeError:
        return None
    return value


def _connected(target: Url, transport: Transport, timeout_s: float) -> socket.socket:
    """Connect to the Unix socket, the proxy or the server."""
    if (path := unix_path(transport)) is not None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            connection.connect(path)
        except BaseException:
            connection.close()
            raise
        return connection
    proxy = parse_proxy(transport)
    if proxy is None:
        return socket.create_connection((target.host, target.port), timeout=timeout_s)
    try:
        return socket.create_connection((proxy.url.host, proxy.url.port), timeout=timeout_s)
    except TimeoutError:
        raise
    except OSError as problem:
        reason = f"the proxy {proxy.url.authority} cannot be reached: {problem.strerror or problem}"
        raise OSError(problem.errno, reason) from problem


def _tunnel(connection: socket.socket, target: Url, transport: Transport, deadline: float) -> str:
    """Ask the proxy, if there is one, to connect to the target; returns why it did not."""
    proxy = parse_proxy(transport)
    if proxy is None:
        return ""
    connection.sendall(connect_bytes(proxy, target))
    head = b""
    while (refusal := tunnel_refusal(head)) is None:
        connection.settimeout(_left(deadline))
        more = more_of_head(connection, head)
        if not more:
            return PROXY_CLOSED
        head += more
    return refusal


def _reason(problem: OSError, target: Url) -> str:
    return (tls_problem(problem, target.server_name) if target.tls else "") or problem.strerror or str(problem)


def _exchange(connection: socket.socket, wire: bytes, deadline: float) -> Response | NoAnswer:
    connection.settimeout(_left(deadline))
    try:
        connection.sendall(wire)
    except TimeoutError:
        raise
    except OSError:
        pass  # a server that closed early has perhaps said why: reading tells
    return _receive(connection, deadline)


def _left(deadline: float) -> float:
    """Return the seconds left; raises TimeoutError where there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _receive(connection: socket.socket, deadline: float) -> Response | NoAnswer:
    framing = ResponseFraming()
    received = 0
    while not framing.complete:
        connection.settimeout(_left(deadline))
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


# --------------------------------------------------------------------------- ways to a server, for both clients

PROXY_CLOSED = "the proxy closed the connection before it answered"


def unix_path(transport: Transport) -> str | None:
    """Return the path of the Unix socket; raises UserError for one that no system can connect to."""
    path = transport.unix_socket
    if path is None:
        return None
    if not path or "\0" in path or len(path.encode("utf-8", "surrogateescape")) > _LONGEST_UNIX_PATH_BYTES:
        fix = f"give the path of a Unix socket, at most {_LONGEST_UNIX_PATH_BYTES} bytes long"
        raise UserError(f"--unix-socket {path!r}", "it cannot be the path of a socket", fix)
    return path


def connect_bytes(proxy: Proxy, target: Url) -> bytes:
    """Write the request that makes `proxy` connect to `target`."""
    headers = {} if proxy.authorization is None else {"Proxy-Authorization": proxy.authorization}
    return request_bytes("CONNECT", target.authority, authority=target.authority, headers=headers)


def tunnel_refusal(head: bytes) -> str | None:
    """Tell from the bytes that a proxy sent so far why it did not connect; "" where it did, None: too early to say."""
    if not head.startswith(b"HTTP/1."[: len(head)]) or len(head) > _LONGEST_HEAD_BYTES:
        return f"the proxy's answer is not HTTP/1.1: {_shown(head)}"
    if _HEAD_END not in head:
        return None
    line = _STATUS_LINE.match(head)
    if line is None:
        return f"the proxy's answer is not HTTP/1.1: {_shown(head)}"
    if line[1].startswith(b"2"):
        return ""
    hint = " (give --proxy as http://USER:PASSWORD@HOST:PORT)" if line[1] == b"407" else ""
    return f"the proxy did not connect: {_shown(head)}{hint}"


def more_of_head(connection: socket.socket, head: bytes) -> bytes:
    """Read what follows `head` up to the end of the head; what lies behind it is not the proxy's and stays unread."""
    seen = connection.recv(_READ_BYTES, socket.MSG_PEEK)
    end = (head + seen).find(_HEAD_END)
    return connection.recv(len(seen) if end < 0 else end + len(_HEAD_END) - len(head))


def _shown(head: bytes) -> str:
    return ascii(head.partition(b"\r\n")[0][:120].decode("latin-1"))
