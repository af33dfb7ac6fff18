"""A small blocking client over plain sockets: exact bytes, and many requests at once by threads."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from servetune.records import Record


class Reply(Record, frozen=True, kw_only=True):
    """One response as it came."""

    status: int
    head: bytes
    body: bytes
    packets: tuple[bytes, ...]
    received_ns: tuple[int, ...]

    @property
    def messages(self) -> list[bytes]:
        """The data of all SSE messages that are complete."""
        return [part[6:] for part in self.body.split(b"\n\n")[:-1]]

    @property
    def values(self) -> list[Any]:
        """The JSON of all messages but [DONE]."""
        return [json.loads(message) for message in self.messages if message != b"[DONE]"]


def post(port: int, body: dict[str, Any], path: str = "/v1/completions", timeout_s: float = 20.0) -> Reply:
    """Send one request on a connection of its own and read until the server closes."""
    return exchange(port, json.dumps(body).encode(), method="POST", path=path, timeout_s=timeout_s)


def exchange(
    port: int, body: bytes = b"", *, method: str = "GET", path: str = "/health", timeout_s: float = 20.0
) -> Reply:
    """Send one request and read until the server closes; a reset ends it as well."""
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    packets: list[bytes] = []
    times: list[int] = []
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        connection.sendall(head.encode() + body)
        while data := _receive(connection):
            packets.append(data)
            times.append(time.time_ns())
    top, _, rest = b"".join(packets).partition(b"\r\n\r\n")
    status = int(top.split(b" ")[1]) if top else 0
    plain = _dechunked(rest) if b"chunked" in top else rest
    return Reply(status=status, head=top, body=plain, packets=tuple(packets), received_ns=tuple(times))


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 20)
    except ConnectionResetError:
        return b""


def _dechunked(data: bytes) -> bytes:
    plain = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        plain += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return plain


def post_many(port: int, bodies: list[dict[str, Any]], concurrency: int) -> list[Reply]:
    """Send all requests, `concurrency` at a time."""
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda body: post(port, body), bodies))


def stream_body(output_tokens: int, prompt: str = "one two three", **more: Any) -> dict[str, Any]:
    """A streamed completion of exactly this length, with usage."""
    options = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    return {"model": "mock", "prompt": prompt, "max_tokens": output_tokens, **options, **more}
