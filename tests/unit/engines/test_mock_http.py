"""Connections of the mock engine over a pair of sockets: nothing is lost, and every end is noticed."""

from __future__ import annotations

import asyncio
import socket
import time

from servetune.engines.mock_http import Connection, HttpRequest, chunk

REQUEST = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


class Both:
    """A connection and the client's end of it."""

    def __init__(self) -> None:
        self.client, server = socket.socketpair()
        server.setblocking(False)
        self.requests: list[HttpRequest] = []
        self.connection = Connection(
            asyncio.get_running_loop(), server, lambda _connection, request: self.requests.append(request)
        )

    async def receive(self, size: int) -> bytes:
        """Read exactly `size` bytes at the client, without blocking the loop."""
        data = b""
        while len(data) < size:
            data += await asyncio.to_thread(self.client.recv, 65536)
        return data

    async def pause(self) -> None:
        """Let the loop see what has happened."""
        for _ in range(20):
            await asyncio.sleep(0.002)

    def close(self) -> None:
        """Close both ends."""
        self.client.close()
        self.connection.close()


def test_what_the_kernel_does_not_take_is_sent_later_in_order() -> None:
    """A reader that pauses gets every byte; what is sent meanwhile waits behind."""

    async def scenario() -> None:
        both = Both()
        first, second = b"a" * 3_000_000, b"b" * 1000
        both.connection.send(first)
        both.connection.send(second)
        await both.pause()
        assert await both.receive(3_001_000) == first + second
        both.close()

    asyncio.run(scenario())


def test_a_connection_that_closes_after_its_answer_sends_it_all_first() -> None:
    """Also where the kernel could not take it at once."""

    async def scenario() -> None:
        both = Both()
        both.client.sendall(REQUEST.replace(b"Host: x", b"Connection: close"))
        await both.pause()
        both.connection.respond(200, b"c" * 3_000_000)
        data = await both.receive(3_000_000)
        while more := await asyncio.to_thread(both.client.recv, 65536):
            data += more
        assert data.endswith(b"c" * 3_000_000)
        assert not both.connection.is_open
        both.close()

    asyncio.run(scenario())


def test_a_client_that_goes_away_is_noticed_once() -> None:
    """By its end of file, by a failed send, and by a failed send of what was left; later sends do nothing."""

    async def scenario(pending: int) -> None:
        both, gone = Both(), []
        both.client.sendall(REQUEST)
        await both.pause()
        both.connection.on_gone = lambda: gone.append(1)
        both.connection.send(b"d" * pending)
        both.client.close()
        both.connection.send(b"more")
        await both.pause()
        both.connection.send(b"more")
        assert not both.connection.is_open
        assert gone == [1]

    asyncio.run(scenario(0))
    asyncio.run(scenario(3_000_000))


def test_requests_are_stamped_and_taken_one_after_the_other() -> None:
    """A second request waits for the first answer; without the kernel's stamps the time of reading stands."""

    async def scenario() -> None:
        both = Both()
        before_ns = time.time_ns()
        both.client.sendall(REQUEST + REQUEST[:10])
        await both.pause()
        both.client.sendall(REQUEST[10:])
        await both.pause()
        assert len(both.requests) == 1
        both.connection.respond(200, b"{}")
        assert [(request.method, request.path) for request in both.requests] == [("GET", "/health")] * 2
        first, second = both.requests
        assert before_ns <= first.arrival_ns == first.complete_ns <= second.arrival_ns <= second.complete_ns
        both.close()

    asyncio.run(scenario())


def test_chunks_have_their_size_in_front() -> None:
    """In hexadecimal."""
    assert chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"
