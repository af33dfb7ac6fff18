"""A server that does nothing but answer, for measuring what the load client itself can do and adds.

`python -m servetune.loadgen.noop_server [--events-per-write N] [--interval-ms MS]` prints its port as a line on stdout
and serves `/v1/completions` on 127.0.0.1 until its stdin ends. Each answer has as many events as `max_tokens` asks for;
they go out as fast as the sockets take them, in turn, or one each MS. One thread, no options of an engine, no model.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import socket
import sys
import time
from collections import deque

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_ASKED = re.compile(rb'"max_(?:completion_)?tokens": ?(\d+)')
_BODY = '{"id":"cmpl-0","object":"text_completion","created":0,"model":"noop","choices":[%s],"usage":%s}'
_CHOICE = '{"index":0,"text":" word","logprobs":null,"finish_reason":null}'
_STDIN = 0
_READ_BYTES = 65536
_NS_PER_MS = 1_000_000


def _chunk(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


_EVENT = _chunk(_BODY % (_CHOICE, "null"))


class _Answer:
    """One answer on its way."""

    def __init__(self, connection: socket.socket, asked: int) -> None:
        self.connection = connection
        self.left = asked
        self.due_ns = 0
        self.unsent = memoryview(_HEAD)
        usage = f'{{"prompt_tokens":1,"completion_tokens":{asked},"total_tokens":{asked + 1}}}'
        self.end = _chunk(_BODY % ("", usage)) + _chunk("[DONE]") + b"0\r\n\r\n"

    def write(self, events: int) -> bool:
        """Write what is left over, else the next events; returns whether the answer goes on."""
        if not self.unsent:
            now = min(events, self.left)
            self.left -= now
            self.unsent = memoryview(_EVENT * now if self.left else _EVENT * now + self.end)
        try:
            self.unsent = self.unsent[self.connection.send(self.unsent) :]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return bool(self.left or self.unsent)


class _Server:
    """All connections on one poll."""

    def __init__(self, events_per_write: int, interval_ns: int) -> None:
        self._events_per_write = events_per_write
        self._interval_ns = interval_ns
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listener.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._listener, select.POLLIN)
        self._poll.register(_STDIN, select.POLLIN)
        self._open: dict[int, socket.socket] = {}
        self._heard: dict[int, bytes] = {}
        self._answers: deque[_Answer] = deque()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def serve(self) -> None:
        """Serve until stdin ends."""
        while True:
            for fileno, _ in self._poll.poll(self._wait_ms()):
                if fileno == _STDIN:
                    if not os.read(_STDIN, _READ_BYTES):
                        return
                elif fileno == self._listener.fileno():
                    self._accept()
                else:
                    self._hear(fileno)
            self._write()

    def _wait_ms(self) -> int | None:
        if not self._answers:
            return None
        return max(0, (self._answers[0].due_ns - time.monotonic_ns()) // _NS_PER_MS)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open[connection.fileno()] = connection
        self._poll.register(connection, select.POLLIN)

    def _hear(self, fileno: int) -> None:
        connection = self._open[fileno]
        try:
            data = connection.recv(_READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self._poll.unregister(fileno)
            self._heard.pop(fileno, None)
            self._open.pop(fileno).close()
            return
        data = self._heard.pop(fileno, b"") + data
        head, blank, body = data.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not blank or (length and len(body) < int(length[1])):
            self._heard[fileno] = data
            return
        asked = _ASKED.search(body)
        self._answers.append(_Answer(connection, int(asked[1]) if asked else 1))

    def _write(self) -> None:
        """Give each answer that is due its turn."""
        now = time.monotonic_ns()
        for _ in range(len(self._answers)):
            if self._answers[0].due_ns > now:
                break
            answer = self._answers.popleft()
            if answer.write(self._events_per_write):
                answer.due_ns = now + self._interval_ns
                self._answers.append(answer)


def main() -> None:
    """Serve as the command line says."""
    parser = argparse.ArgumentParser(description="Answers at once, for calibrating the load client.")
    parser.add_argument("--events-per-write", type=int, default=1)
    parser.add_argument("--interval-ms", type=float, default=0.0)
    options = parser.parse_args()
    server = _Server(options.events_per_write, int(options.interval_ms * _NS_PER_MS))
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.serve()


if __name__ == "__main__":
    main()
