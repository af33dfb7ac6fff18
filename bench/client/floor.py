"""The least that a load client in plain Python can do: epoll, and the kernel's receive times in place of the clock.

`floor.py PORT CONCURRENCY REQUESTS TOKENS [RATE]`. A floor to compare clients with, not a client: no errors, no usage,
no texts, no records. RATE (requests/s): Poisson arrivals, on connections opened before; else a closed loop. Prints one
JSON line, in ms. Linux only.
"""

from __future__ import annotations

import gc
import json
import random
import resource
import select
import socket
import struct
import sys
import time
from array import array
from itertools import pairwise

_SO_TIMESTAMPNS = 35
_EVENT = b"data: {"
_END = b"0\r\n\r\n"
_KEPT = len(_EVENT) - 1
_NS_PER_S = 1_000_000_000
_seconds_ns = struct.Struct("qq").unpack


class Connection:
    """One keep-alive connection, and what was read of its present answer."""

    __slots__ = ("events", "kept", "receive", "send", "sent_ns", "socket", "times_ns")

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self.receive = self.socket.recvmsg_into
        self.send = self.socket.send
        self.sent_ns = 0
        self.times_ns: list[int] = []
        self.events: list[int] = []
        self.kept = b""
        """The end of the previous read, where it ended within an event."""


class Floor:
    """All connections, and the answers that were read."""

    def __init__(self, port: int, concurrency: int, wanted: int, tokens: int) -> None:
        body = json.dumps(
            {
                "model": "stub-model",
                "prompt": "x" * 256,
                "max_tokens": tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
                "ignore_eos": True,
            }
        ).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        self._wanted = wanted
        self._sent = 0
        self._done: list[tuple[int, list[int], list[int]]] = []
        self._poller = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._idle: list[Connection] = []
        for _ in range(concurrency):
            connection = Connection(port)
            self._connections[connection.socket.fileno()] = connection
            self._poller.register(connection.socket.fileno(), select.EPOLLIN)

    def _start(self, connection: Connection) -> None:
        self._sent += 1
        connection.times_ns = []
        connection.events = []
        connection.sent_ns = time.time_ns()
        connection.send(self._request)

    def _send_due(self, due_s: float, rate: float) -> float:
        """Send what is due by now; returns when the next request is."""
        while due_s <= time.monotonic() and self._sent < self._wanted and self._idle:
            self._start(self._idle.pop())
            due_s += random.expovariate(rate)
        return due_s

    def _end(self, connection: Connection, rate: float) -> None:
        self._done.append((connection.sent_ns, connection.times_ns, connection.events))
        if rate:
            self._idle.append(connection)
        elif self._sent < self._wanted:
            self._start(connection)

    def run(self, rate: float) -> list[tuple[int, list[int], list[int]]]:
        """Send all requests; returns of each answer the time of the send, and time and events of each read."""
        self._idle = list(self._connections.values())
        due_s = time.monotonic()
        if not rate:
            for connection in self._idle[: self._wanted]:
                self._start(connection)
        buffer = bytearray(262144)
        buffers, count, ends, connections = [buffer], buffer.count, buffer.endswith, self._connections
        done, wanted, poll = self._done, self._wanted, self._poller.poll
        while len(done) < wanted:
            wait_s = 10.0
            if rate and self._sent < wanted:
                due_s = self._send_due(due_s, rate)
                wait_s = max(0.0, due_s - time.monotonic())
            for descriptor, _ in poll(wait_s, 4096):
                connection = connections[descriptor]
                size, ancillary, _, _ = connection.receive(buffers, 64)
                if not size:
                    sys.exit("floor: the server closed a connection")
                seconds, ns = _seconds_ns(ancillary[0][2])
                connection.times_ns.append(seconds * _NS_PER_S + ns)
                events = count(_EVENT, 0, size)
                if connection.kept:
                    events += (connection.kept + buffer[: min(size, _KEPT)]).count(_EVENT)
                    connection.kept = b""
                connection.events.append(events)
                if ends(_END, max(0, size - len(_END)), size):
                    self._end(connection, rate)
                elif not ends(b"\n", size - 1, size):
                    connection.kept = bytes(buffer[max(0, size - _KEPT) : size])
        return done


def _distribution(values: array[float]) -> dict[str, float]:
    import numpy as np  # noqa: PLC0415 - after the run: it would only slow the start

    return {
        "mean": float(np.mean(values)),
        "median": float(np.median(values)),
        "p99": float(np.percentile(values, 99)),
    }


def main() -> None:
    """Measure and print."""
    port, concurrency, wanted, tokens = (int(text) for text in sys.argv[1:5])
    rate = float(sys.argv[5]) if len(sys.argv) > 5 else 0.0
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    floor = Floor(port, concurrency, wanted, tokens)
    gc.freeze()
    begin_ns = time.monotonic_ns()
    answers = floor.run(rate)
    wall_s = (time.monotonic_ns() - begin_ns) / _NS_PER_S
    ttft, tpot, itl = array("d"), array("d"), array("d")
    for sent_ns, times_ns, events in answers:
        stamps = [stamp for stamp, count in zip(times_ns, events, strict=True) for _ in range(count)][:tokens]
        if len(stamps) < tokens:
            continue
        ttft.append((stamps[0] - sent_ns) / 1e6)
        if tokens > 1:
            tpot.append((stamps[-1] - stamps[0]) / 1e6 / (tokens - 1))
            itl.extend((later - earlier) / 1e6 for earlier, later in pairwise(stamps))
    figures = {"ttft": ttft, "tpot": tpot, "itl": itl}
    latencies = {name: _distribution(values) for name, values in figures.items() if values}
    print(json.dumps({"completed": len(answers), "wall_s": wall_s, **latencies}))


if __name__ == "__main__":
    main()
