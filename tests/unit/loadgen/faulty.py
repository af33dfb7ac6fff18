"""A server that misbehaves on purpose: the first word of each prompt names what is done to its request.

It runs on an event loop and a thread of its own, on real sockets. `FAULTS` says for each kind of misbehaviour how the
load client must call it; `refusing` and the like make those that happen before a request can say anything.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from servetune.records import ClientFacts, Request, RequestErrorKind, RequestRecord
from tests.unit.loadgen.scripted import DONE, HEAD, LAST, chunk, event, token, usage

SOUND = "sound"
TOKENS = 8
"""Tokens of a sound answer, and asked for by each request of `ask`."""
GAP_S = 0.01
"""Between two tokens of a sound answer."""
_LENGTH = re.compile(rb"content-length: (\d+)")
_TOLERANCE_NS = 1_000_000
_RESET = struct.pack("ii", 1, 0)


def ask(names: Sequence[str], padding: int = 0) -> tuple[Request, ...]:
    """One request for each name of a fault, in this order, with `padding` more bytes in the prompt."""
    return tuple(
        Request(index=index, prompt=f"{name} {index} {'.' * padding}", prompt_tokens=4, output_tokens=TOKENS)
        for index, name in enumerate(names)
    )


class Visit:
    """One request at the server."""

    def __init__(self, server: FaultyServer, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self.server = server
        self.reader, self.writer = streams
        self.name = ""
        self.index = 0
        self.earlier = 0
        """Requests on this connection before the present one."""

    async def say(self, *parts: bytes, gap_s: float = 0.0) -> None:
        """Send each part by itself."""
        for part in parts:
            if self.writer.is_closing():
                raise ConnectionResetError
            self.writer.write(part)
            await self.writer.drain()
            if gap_s:
                await asyncio.sleep(gap_s)

    async def reset(self) -> None:
        """Break the connection with a TCP reset, once what was sent has gone."""
        await asyncio.sleep(0.02)
        _reset(self.writer)

    async def close(self) -> None:
        """Close the connection in order."""
        self.writer.close()

    async def silence(self) -> None:
        """Say nothing until the client gives up."""
        with suppress(OSError):
            await self.reader.read()

    def words(self) -> list[bytes]:
        """The tokens of this request's answer: its index is the first."""
        return [token(f"<{self.index}>"), *[token(f" w{at}") for at in range(1, TOKENS)]]

    def body(self) -> bytes:
        """The events of a whole answer without a transfer coding."""
        return plain_events(*[f"<{self.index}>", *[f" w{at}" for at in range(1, TOKENS)]])


Act = Callable[[Visit], Awaitable[None]]


class Fault(NamedTuple):
    """One way to misbehave, and what the client must make of it."""

    act: Act
    kind: RequestErrorKind | None
    """None: the answer is whole in spite of it."""
    says: str = ""
    """A part of the message."""


# --------------------------------------------------------------------------- answers


def plain_events(*texts: str) -> bytes:
    """Server-sent events as they are without a transfer coding."""
    messages = [json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}) for text in texts]
    messages.append(json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": len(texts)}}))
    return b"".join(f"data: {message}\n\n".encode() for message in [*messages, "[DONE]"])


def sized(status: str, body: bytes, *headers: str) -> bytes:
    """An answer with a length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def says(*parts: bytes) -> Act:
    """Send these parts and keep the connection."""

    async def act(visit: Visit) -> None:
        await visit.say(*parts)

    return act


def says_and(end: Callable[[Visit], Awaitable[None]], *parts: bytes, gap_s: float = 0.0) -> Act:
    """Send these parts and end the connection, or fall silent, in this way."""

    async def act(visit: Visit) -> None:
        await visit.say(*parts, gap_s=gap_s)
        await end(visit)

    return act


def forever(first: bytes, again: bytes, gap_s: float = 0.0) -> Act:
    """Send the same again and again, until the client hangs up."""

    async def act(visit: Visit) -> None:
        await visit.say(first)
        while True:
            await visit.say(again)
            await asyncio.sleep(gap_s)

    return act


async def sound(visit: Visit) -> None:
    """Stream the tokens one by one, noting when each is sent."""
    await visit.say(HEAD)
    sent = visit.server.sent_ns[visit.index] = []
    for word in visit.words():
        await asyncio.sleep(GAP_S)
        sent.append(time.time_ns())
        visit.writer.write(word)
    await asyncio.sleep(GAP_S)
    await visit.say(usage(TOKENS) + DONE + LAST)


async def _on_a_kept_one(visit: Visit, end: Callable[[Visit], Awaitable[None]]) -> None:
    if visit.earlier:
        await end(visit)
    else:
        await sound(visit)


async def reset_when_kept(visit: Visit) -> None:
    """Answer on a fresh connection, reset a kept one."""
    await _on_a_kept_one(visit, Visit.reset)


async def close_when_kept(visit: Visit) -> None:
    """Answer on a fresh connection, close a kept one."""
    await _on_a_kept_one(visit, Visit.close)


async def whole(visit: Visit, *, newline: bytes = b"\n") -> None:
    """A sound answer in one piece."""
    await visit.say(HEAD + chunk(visit.body().replace(b"\n", newline)) + LAST)


async def crlf(visit: Visit) -> None:
    """Lines end with CR LF."""
    await whole(visit, newline=b"\r\n")


async def one_packet_a_byte(visit: Visit) -> None:
    """Every byte of head, chunks and events by itself."""
    answer = HEAD + b"".join(visit.words()) + usage(TOKENS) + DONE + LAST
    for at in range(len(answer)):
        visit.writer.write(answer[at : at + 1])
        if at % 8 == 0:
            await asyncio.sleep(0)


async def slow_drip(visit: Visit) -> None:
    """A few bytes at a time, never silent for long."""
    answer = HEAD + chunk(visit.body()) + LAST
    for at in range(0, len(answer), 40):
        await visit.say(answer[at : at + 40], gap_s=0.01)


async def with_length(visit: Visit) -> None:
    """A length instead of chunks."""
    await visit.say(sized("200 OK", visit.body(), STREAM))


async def old_http(visit: Visit) -> None:
    """HTTP/1.0: the close of the connection is the end."""
    await visit.say(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + visit.body())
    await visit.close()


async def interim(visit: Visit) -> None:
    """100 Continue, 103 Early Hints, then the answer."""
    await visit.say(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", gap_s=0.02)
    await whole(visit)


async def extensions_and_trailers(visit: Visit) -> None:
    """Parts of the transfer coding that hardly anybody uses."""
    body = visit.body()
    begin = f"{len(body):X};name=value;flag\r\n".encode()
    await visit.say(HEAD + begin + body + b"\r\n", b"0;last\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n", gap_s=0.02)


async def junk_behind(visit: Visit) -> None:
    """More bytes behind the end of the answer, which look like the next one."""
    await whole_and(visit, sized("500 Not For You", b"junk", STREAM))


async def whole_and(visit: Visit, more: bytes) -> None:
    """A sound answer and other bytes in the same packet."""
    await visit.say(HEAD + chunk(visit.body()) + LAST + more)


async def junk_later(visit: Visit) -> None:
    """An answer to no request, while the connection waits."""
    await whole(visit)
    await asyncio.sleep(0.01)
    await visit.say(sized("500 Not For You", b"junk", STREAM))


async def never_ended(visit: Visit) -> None:
    """[DONE] comes, the end of the message does not."""
    await visit.say(HEAD + b"".join(visit.words()) + usage(TOKENS) + DONE)
    await visit.silence()


async def no_usage(visit: Visit) -> None:
    """Nobody counts the tokens."""
    await visit.say(HEAD + b"".join(visit.words()) + DONE + LAST)


async def no_done(visit: Visit) -> None:
    """A finish_reason is the end as well."""
    finish = event({"choices": [{"delta": {}, "finish_reason": "length"}]})
    await visit.say(HEAD + b"".join(visit.words()) + finish + usage(TOKENS) + LAST)


async def zipped(visit: Visit) -> None:
    """A compressed answer that nobody asked for."""
    head = HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    await visit.say(head + chunk(gzip.compress(visit.body())) + LAST)


STREAM = "Content-Type: text/event-stream"
JSON = "Content-Type: application/json"
LONG = b"z" * 1500
TWO = token("a") + token("b")
PAGE = b"<!doctype html><title>Sign in</title>" + LONG
ANSWER = b'{"object":"chat.completion","choices":[{"message":{"content":"a"}}]}'
HUGE = b'data: {"choices":[{"delta":{"content":"' + b"y" * 3 * 1024 * 1024 + b'"}}]}\n\n'
BAD_LETTER = chunk(b'data: {"choices":[{"delta":{"content":"\xff\xfe"}}]}\n\n')
COMMENT = chunk(b": still here\n\n")
FLOOD = token() * 500
COMMENTS = chunk(b": nothing\n\n" * 5000)

_HARMLESS: dict[str, Act] = {
    SOUND: sound,
    "reset-when-kept": reset_when_kept,
    "close-when-kept": close_when_kept,
    "crlf": crlf,
    "one-packet-a-byte": one_packet_a_byte,
    "slow-drip": slow_drip,
    "with-length": with_length,
    "old-http": old_http,
    "interim": interim,
    "extensions-and-trailers": extensions_and_trailers,
    "junk-behind": junk_behind,
    "never-ended": never_ended,
    "no-usage": no_usage,
    "no-done": no_done,
}
HARMLESS: dict[str, Fault] = {name: Fault(act, None) for name, act in _HARMLESS.items()}
"""Unusual, but nothing is missing."""
BROKEN: dict[str, Fault] = {
    "reset-before-answer": Fault(Visit.reset, "reset-before-answer", "before it answered"),
    "close-before-answer": Fault(Visit.close, "reset-before-answer", "before it answered"),
    "reset-in-head": Fault(says_and(Visit.reset, b"HTTP/1.1 200 OK\r\nConte"), "reset", "reset by peer"),
    "close-in-head": Fault(says_and(Visit.close, b"HTTP/1.1 200 OK\r\nConte"), "truncated", "in the middle"),
    "reset-mid-stream": Fault(says_and(Visit.reset, HEAD + TWO), "reset", "reset by peer"),
    "close-mid-stream": Fault(says_and(Visit.close, HEAD + TWO), "truncated", "in the middle"),
    "close-mid-chunk": Fault(says_and(Visit.close, HEAD + TWO + token()[:9]), "truncated", "in the middle"),
    "close-mid-length": Fault(
        says_and(Visit.close, sized("200 OK", plain_events("a", "b"), STREAM)[:-30]), "truncated", "in the middle"
    ),
    "stops-short": Fault(says(HEAD + TWO + LAST), "truncated", "without a finish_reason"),
    "stops-short-of-usage": Fault(says(HEAD + TWO + usage(2) + LAST), "truncated", "without a finish_reason"),
    "old-http-stops-short": Fault(
        says_and(Visit.close, b"HTTP/1.0 200 OK\r\n\r\n" + plain_events("a", "b")[:-60]), "truncated"
    ),
    "says-nothing": Fault(says(HEAD + LAST), "no-output", "without any output"),
    "only-done": Fault(says(HEAD + DONE + LAST), "no-output", "without any output"),
    "no-body": Fault(says(sized("200 OK", b"", STREAM)), "no-output", "without any output"),
    "status-400": Fault(says(sized("400 Bad Request", b"bad field" + LONG, JSON)), "http-status", "HTTP 400: bad"),
    "status-401": Fault(says(sized("401 Unauthorized", b"no key" + LONG, JSON)), "http-status", "HTTP 401: no key"),
    "status-404": Fault(says(sized("404 Not Found", b"no model" + LONG, JSON)), "http-status", "HTTP 404: no model"),
    "status-500": Fault(says(sized("500 Oh", b'{"error":"boom"}' + LONG)), "http-status", 'HTTP 500: {"error":"boom"}'),
    "status-503": Fault(
        says(HEAD.replace(b"200 OK", b"503 Busy") + chunk(b"busy" + LONG) + LAST), "http-status", "HTTP 503: busy"
    ),
    "status-503-cut": Fault(
        says_and(Visit.close, HEAD.replace(b"200 OK", b"503 Busy") + chunk(b"busy")), "http-status", "HTTP 503: busy"
    ),
    "status-500-flood": Fault(
        forever(HEAD.replace(b"200 OK", b"500 Oh"), chunk(b"boom" * 4096)), "http-status", "HTTP 500: boom"
    ),
    "status-429": Fault(
        says(sized("429 Too Many Requests", b"slow down", "Retry-After: 7")), "rate-limited", "Retry-After: 7"
    ),
    "status-302": Fault(says(sized("302 Found", b"", "Location: /elsewhere")), "redirect", "Location: /elsewhere"),
    "status-307": Fault(
        says(sized("307 Temporary Redirect", b"moved", "Location: https://other.invalid/v1")),
        "redirect",
        "Location: https://other.invalid/v1",
    ),
    "error-in-stream": Fault(
        says(HEAD + TWO + event({"error": {"message": "engine died", "code": 500}}) + DONE + LAST),
        "stream-error",
        "engine died",
    ),
    "error-alone": Fault(
        says(HEAD + event({"object": "error", "message": "too long"}) + LAST), "stream-error", "too long"
    ),
    "invalid-json": Fault(says(HEAD + TWO + event("{broken") + DONE + LAST), "invalid-json", "{broken"),
    "invalid-utf8": Fault(says(HEAD + TWO + BAD_LETTER + DONE + LAST), "invalid-utf8"),
    "html": Fault(says(sized("200 OK", PAGE, "Content-Type: text/html")), "content-type", "Sign in"),
    "json-not-stream": Fault(says(sized("200 OK", ANSWER, JSON)), "content-type", "application/json"),
    "zipped": Fault(zipped, "compressed", "gzip"),
    "huge-line": Fault(says(HEAD + TWO + chunk(HUGE) + DONE + LAST), "oversize"),
    "endless-line": Fault(forever(HEAD + TWO, chunk(b"y" * 65536)), "oversize"),
    "endless-head": Fault(forever(b"HTTP/1.1 200 OK\r\n", b"X-Filler: " + b"y" * 16384 + b"\r\n"), "oversize"),
    "flood": Fault(forever(HEAD, FLOOD), "overrun", f"{TOKENS} tokens"),
    "endless-tokens": Fault(forever(HEAD, token(), gap_s=0.002), "overrun", f"{TOKENS} tokens"),
    "endless-after-done": Fault(forever(HEAD + TWO + DONE, FLOOD), "overrun"),
    "endless-comments": Fault(forever(HEAD + TWO, COMMENTS), "oversize"),
    "not-http": Fault(says_and(Visit.close, b"SSH-2.0-OpenSSH_9\r\n"), "protocol", "not HTTP/1.1"),
    "noise": Fault(says_and(Visit.silence, bytes(range(256))), "protocol", "not HTTP/1.1"),
    "bad-chunk": Fault(says_and(Visit.silence, HEAD + TWO + b"zz\r\n"), "protocol", "not HTTP/1.1"),
}
"""Ends by itself, or is ended by the client, whatever the limits of time are."""
STUCK: dict[str, Fault] = {
    "silent": Fault(Visit.silence, "first-byte-timeout"),
    "silent-in-head": Fault(says_and(Visit.silence, b"HTTP/1.1 200 OK\r\nConte"), "idle-timeout"),
    "silent-after-head": Fault(says_and(Visit.silence, HEAD), "idle-timeout"),
    "silent-mid-stream": Fault(says_and(Visit.silence, HEAD, TWO, token(), gap_s=0.01), "idle-timeout"),
    "silent-mid-chunk": Fault(says_and(Visit.silence, HEAD, TWO, token()[:9], gap_s=0.01), "idle-timeout"),
    "endless-drip": Fault(forever(HEAD + b"fffff\r\n", b"y", gap_s=0.02), "total-timeout"),
    "endless-pings": Fault(forever(HEAD + TWO, COMMENT, gap_s=0.02), "total-timeout"),
    "endless-interim": Fault(forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", gap_s=0.02), "total-timeout"),
    "endless-slow-head": Fault(forever(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", gap_s=0.02), "total-timeout"),
}
"""Ended by a limit of time only."""
FAULTS: dict[str, Fault] = {**HARMLESS, **BROKEN, **STUCK, "junk-later": Fault(junk_later, None)}


# --------------------------------------------------------------------------- the server


class FaultyServer:
    """Does to each request what its prompt names."""

    def __init__(self) -> None:
        # Bound but not listening: it keeps the port ours while the server is down.
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.port: int = self._held.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.sent_ns: dict[int, list[int]] = {}
        """When each token of a sound answer was sent, by index of its request."""
        self.seen: list[tuple[int, str]] = []
        """(connection, name of the fault) of each request, in the order of their arrival."""
        self.connections = 0
        self._failures: list[BaseException] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._call(self._up())

    def restart(self, down_s: float) -> None:
        """Break all connections, refuse new ones for `down_s`, and listen again on the same port."""
        self._call(self._down())
        time.sleep(down_s)
        self._call(self._up())

    def stop(self) -> None:
        """End everything; an error of the server's own is raised here."""
        self._call(self._down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        assert not self._thread.is_alive()
        self._loop.close()
        self._held.close()
        assert self._failures == []

    def _call(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(5)

    async def _up(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=256)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)

    async def _down(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for writer in self._writers:
            _reset(writer)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                task = self._loop.create_task(self._serve(connection, self.connections))
                self.connections += 1
                self._tasks.add(task)
                task.add_done_callback(partial(self._ended, connection))

    def _ended(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        connection.close()
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failures.append(failure)

    async def _serve(self, connection: socket.socket, number: int) -> None:
        streams = await asyncio.open_connection(sock=connection)
        writer = streams[1]
        self._writers.add(writer)
        visit = Visit(self, streams)
        try:
            while await self._request(visit):
                self.seen.append((number, visit.name))
                await FAULTS[visit.name].act(visit)
                visit.earlier += 1
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _request(self, visit: Visit) -> bool:
        """Read the next request; False: there is none."""
        if visit.writer.is_closing():
            return False
        head = await visit.reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head.lower())
        assert length is not None
        body = json.loads(await visit.reader.readexactly(int(length[1])))
        visit.name, index, *_ = body["messages"][0]["content"].split()
        visit.index = int(index)
        return True


def timing(record: RequestRecord, server: FaultyServer, facts: ClientFacts) -> tuple[list[int], bool]:
    """How long after its send each exactly timed token of a sound answer was received (ns), and whether all times hold.

    A token has an exact time if it is the last of its read; the others lie between the read before and this one.
    """
    sent = server.sent_ns[record.index]
    lags, holds, at, before = [], True, 0, record.sent_ns or 0
    for read_ns, count in zip(record.reads_ns, record.read_events, strict=True):
        gone = [moment - facts.epoch_ns for moment in sent[at : at + count]]
        holds = holds and all(before - _TOLERANCE_NS <= moment <= read_ns + _TOLERANCE_NS for moment in gone)
        at += count
        before = read_ns
        if len(gone) == count:
            lags.append(read_ns - gone[-1])
    return lags, holds


def _reset(writer: asyncio.StreamWriter) -> None:
    if not writer.transport.is_closing():
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


@contextmanager
def faulty() -> Iterator[FaultyServer]:
    """A faulty server that is stopped at the end."""
    server = FaultyServer()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def refusing() -> Iterator[str]:
    """The address of a port with nothing behind it, which nobody else gets meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@contextmanager
def deaf() -> Iterator[str]:
    """The address of a server whose system accepts connections and bytes, and that never reads or answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def unreachable() -> Iterator[str]:
    """The address of a server whose queue of new connections is full: the system drops every further attempt."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        waiting = []
        try:
            for _ in range(4):
                more = socket.socket()
                waiting.append(more)
                more.setblocking(False)
                more.connect_ex(address)
            time.sleep(0.05)
            yield f"http://127.0.0.1:{address[1]}"
        finally:
            for more in waiting:
                more.close()
