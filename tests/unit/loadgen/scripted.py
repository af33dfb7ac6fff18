"""Servers that do exactly what a test says, on real sockets, and a load that is sent to them."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from servetune.loadgen.run import LoadJob, read_records, run_load
from servetune.records import ClientFacts, Event, Load, Request, RequestRecord

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunk(body: bytes) -> bytes:
    """One chunk of the transfer coding."""
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


def event(message: Any) -> bytes:
    """One server-sent event in a chunk of its own."""
    data = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    return chunk(f"data: {data}\n\n".encode())


def token(text: str = "x", **more: Any) -> bytes:
    """One visible token."""
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more})


def usage(tokens: int) -> bytes:
    """The message that counts the tokens."""
    return event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}})


DONE = event("[DONE]")
GOOD = HEAD + token("a") + token("b") + usage(2) + DONE + LAST
"""A whole answer of two tokens."""


class Peer:
    """One connection to the scripted server."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.connection = connection
        self.number = number
        """Of the connection, from 0."""
        self.requests = 0
        """Requests on this connection before the present one."""

    def send(self, *parts: bytes, gap_s: float = 0.0) -> None:
        """Send each part by itself."""
        for part in parts:
            self.connection.sendall(part)
            if gap_s:
                time.sleep(gap_s)

    def reset(self) -> None:
        """Break the connection with a TCP reset."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def close(self) -> None:
        """Close the connection in order."""
        self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


Script = Callable[[Peer, bytes], None]
"""Called with the peer and the body of each request."""


class ScriptedServer:
    """Runs a script for each request, each connection in a thread of its own."""

    def __init__(self, script: Script, family: socket.AddressFamily = socket.AF_INET) -> None:
        self.script = script
        host = "127.0.0.1" if family == socket.AF_INET else "::1"
        self.listener = socket.create_server((host, 0), family=family, backlog=256)
        self.port = self.listener.getsockname()[1]
        self.url = f"http://{host}:{self.port}" if family == socket.AF_INET else f"http://[{host}]:{self.port}"
        self.peers: list[Peer] = []
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.threads: list[threading.Thread] = []
        self.answers_get = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        """What each GET request is answered with."""
        self.stopping = threading.Event()
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            peer = Peer(connection, len(self.peers))
            self.peers.append(peer)
            self._start(self._serve, peer)

    def _serve(self, peer: Peer) -> None:
        with suppress(OSError):
            while body := self._request(peer):
                self.script(peer, body)
                peer.requests += 1
        peer.connection.close()

    def _request(self, peer: Peer) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            received = peer.connection.recv(65536)
            if not received:
                return b""
            data += received
        if data.startswith(b"GET "):
            peer.send(self.answers_get)
            return b""
        head, _, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        assert length is not None
        while len(body) < int(length[1]):
            body += peer.connection.recv(65536)
        self.heads.append(head)
        self.bodies.append(body)
        return body

    def stop(self) -> None:
        """End all threads."""
        self.stopping.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for peer in self.peers:
            with suppress(OSError):
                peer.connection.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(5)
            assert not thread.is_alive()


@contextmanager
def serving(script: Script, **about: Any) -> Iterator[ScriptedServer]:
    """A scripted server that is stopped at the end."""
    server = ScriptedServer(script, **about)
    try:
        yield server
    finally:
        server.stop()


def good(peer: Peer, body: bytes) -> None:
    """Answer with two tokens."""
    peer.send(GOOD)


def requests(count: int, prompt: str = "hello", first: int = 0) -> tuple[Request, ...]:
    """Requests for two tokens."""
    return tuple(
        Request(index=first + number, prompt=f"{prompt} {number}", prompt_tokens=2, output_tokens=2)
        for number in range(count)
    )


def load(url: str, out: Path, count: int = 1, **changes: Any) -> tuple[list[RequestRecord], ClientFacts, list[Event]]:
    """Send `count` requests; returns the records by index, the client's facts, and what was emitted.

    `cancelled` and `server_alive` may be given; idle_timeout_s and the like go into the Load.
    """
    watch = {name: changes.pop(name, default) for name, default in _WATCH.items()}
    in_load = {name: changes.pop(name) for name in list(changes) if name in Load.__struct_fields__}
    job = LoadJob(**{"url": url, "requests": requests(count), "load": Load(**in_load), **changes})
    events: list[Event] = []
    facts = run_load(job, out=out, emit=events.append, **watch)
    return sorted(read_records(out), key=lambda record: record.index), facts, events


_WATCH: dict[str, Callable[[], bool]] = {"cancelled": lambda: False, "server_alive": lambda: True}
