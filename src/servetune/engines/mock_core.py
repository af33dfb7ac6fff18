"""Generation of the mock engine in real time: the scheduler's steps at their due times, tokens to their streams.

Steps are due at absolute times, so that delays of the machine do not add up; a core that falls behind by more than a
step goes on from now. What really happened is written to the truth file: one JSON line a request.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

from servetune.engines.mock_api import DONE, Answer, Generation
from servetune.engines.mock_failures import Failure
from servetune.engines.mock_http import LAST_CHUNK, Connection, HttpRequest
from servetune.engines.mock_law import Law, launch_factor, resolve, run_factor
from servetune.engines.mock_scheduler import Scheduler, Sequence
from servetune.records import Config

BUSY_GAP_S = 0.05
"""A pause of this length ends a busy period; the next one has its own noise."""


class Stream:
    """One request that is generated: its answer, its connection, and the times of what was written."""

    def __init__(self, number: int, connection: Connection, request: HttpRequest, answer: Answer) -> None:
        self.number = number
        self.connection = connection
        self.request = request
        self.answer = answer
        self.writes_ns: list[int] = []

    @property
    def generation(self) -> Generation:
        """What it asks for."""
        return self.answer.generation


class Core:
    """The engine's heart: takes streams, runs steps, writes tokens, fails on demand."""

    def __init__(self, config: Config, law: Law, *, launch: str, failure: Failure, truth: Path | None) -> None:
        """Raises mock_law.NoRoom if the config cannot start."""
        limits, costs = resolve(law, config)
        self.scheduler = Scheduler(limits, costs)
        self.failure = failure
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.finished = 0
        self._config = config
        self._launch = launch
        self._launch_factor = launch_factor(config, launch)
        self._sequences: dict[Stream, Sequence] = {}
        self._work = asyncio.Event()
        self._truth = None if truth is None else truth.open("a", encoding="utf-8")

    def submit(self, stream: Stream) -> None:
        """Generate `stream`; it must fit (scheduler.fits)."""
        generation = stream.generation
        sequence = Sequence(stream, generation.prompt_tokens, generation.output_tokens)
        self._sequences[stream] = sequence
        stream.connection.on_gone = lambda: self._forget(stream)
        if generation.stream:
            stream.connection.begin_stream()
            if generation.is_chat:
                stream.connection.send(stream.answer.role())
        self.scheduler.add(sequence)
        self._work.set()

    async def run(self) -> None:
        """Run steps whenever there is work; never returns."""
        period = 0
        idle_since_s = 0.0
        factor = 1.0
        due_s = 0.0
        while True:
            if self.scheduler.is_idle:
                idle_since_s = time.monotonic()
                self._work.clear()
                await self._work.wait()
                due_s = time.monotonic()
                if due_s - idle_since_s >= BUSY_GAP_S or not period:
                    period += 1
                    factor = self._launch_factor * run_factor(self._config, self._launch, period)
            step = self.scheduler.plan()
            duration_s = step.duration_s / factor
            due_s = max(due_s, time.monotonic() - duration_s) + duration_s
            await asyncio.sleep(due_s - time.monotonic())
            for sequence in self.scheduler.finish(step):
                assert isinstance(sequence.key, Stream)
                if sequence.key.connection.is_open:
                    self._emit(sequence.key, sequence.generated)
            if self.failure.mode == "hang-load" and self._strikes(step.takes):
                await asyncio.Event().wait()

    def _strikes(self, takes: dict[Sequence, int]) -> bool:
        return any(
            self.failure.ends_at(sequence.key.number, sequence.generated)
            for sequence in takes
            if isinstance(sequence.key, Stream)
        )

    def _emit(self, stream: Stream, generated: int) -> None:
        """Write token number `generated` (from 1), and what ends the answer after the last one."""
        is_last = generated == stream.generation.output_tokens
        self.output_tokens += 1
        if stream.generation.stream:
            self._write(stream, stream.answer.token(generated - 1))
            if self._spoils(stream, generated):
                return
        self._end_if_told(stream, generated)
        if is_last:
            self._complete(stream)

    def _write(self, stream: Stream, message: bytes) -> None:
        connection = stream.connection
        if self.failure.mode == "split-utf8":
            cut = 1 + next(index for index, byte in enumerate(message) if byte >= 0xC0)
            connection.send(message[:cut])
            time.sleep(0.0005)
            message = message[cut:]
        stream.writes_ns.append(connection.send(message))

    def _spoils(self, stream: Stream, generated: int) -> bool:
        """Break the stream in its middle if told so; the connection is closed without an end."""
        mode = self.failure.mode
        if mode not in ("broken-sse", "error-in-stream") or not self.failure.hits_stream(stream.number):
            return False
        if generated < max(stream.generation.output_tokens // 2, 1):
            return False
        answer = stream.answer
        stream.connection.send(answer.broken_message() if mode == "broken-sse" else answer.error_message())
        stream.connection.close()
        return True

    def _end_if_told(self, stream: Stream, generated: int) -> None:
        """End the process under load if told so."""
        mode = self.failure.mode
        if mode not in ("oom-load", "crash-mid-stream", "killed-load") or not self.failure.ends_at(
            stream.number, generated
        ):
            return
        if mode == "killed-load":
            os.kill(os.getpid(), signal.SIGKILL)
        text = {
            "oom-load": "RuntimeError: CUDA error: out of memory while serving a batch (told to fail)",
            "crash-mid-stream": "RuntimeError: the engine core died unexpectedly (told to fail)",
        }[mode]
        sys.stderr.write(f"Traceback (most recent call last):\n{text}\n")
        sys.stderr.flush()
        os._exit(1)

    def _complete(self, stream: Stream) -> None:
        """End the answer; its truth is on file before the client can see that the response is complete."""
        generation, answer, connection = stream.generation, stream.answer, stream.connection
        with_usage = generation.usage and self.failure.mode != "no-usage"
        self._finish(stream)
        if generation.stream:
            done_ns = connection.send((answer.usage_message() if with_usage else b"") + DONE)
            self._tell_truth(stream, done_ns)
            connection.send(LAST_CHUNK)
            connection.end_response()
        else:
            self._tell_truth(stream, time.time_ns())
            connection.respond(200, answer.whole(with_usage=with_usage))

    def _finish(self, stream: Stream) -> None:
        self._sequences.pop(stream, None)
        stream.connection.on_gone = None
        self.finished += 1
        self.prompt_tokens += stream.generation.prompt_tokens

    def _forget(self, stream: Stream) -> None:
        """Stop generating for a client that went away."""
        sequence = self._sequences.pop(stream, None)
        if sequence is not None:
            self.scheduler.remove(sequence)
            self._tell_truth(stream, None)

    def _tell_truth(self, stream: Stream, done_ns: int | None) -> None:
        """Write what happened; `done_ns` None: the client went away or the stream was broken."""
        if self._truth is None:
            return
        entry = {
            "number": stream.number,
            "arrival_ns": stream.request.arrival_ns,
            "complete_ns": stream.request.complete_ns,
            "writes_ns": stream.writes_ns,
            "done_ns": done_ns,
            "prompt_tokens": stream.generation.prompt_tokens,
            "output_tokens": len(stream.writes_ns) if stream.generation.stream else stream.generation.output_tokens,
        }
        self._truth.write(json.dumps(entry) + "\n")
        self._truth.flush()
