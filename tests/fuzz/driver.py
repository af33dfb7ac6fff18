"""Runs numbered inputs, each made from its number alone, and watches time and memory."""

from __future__ import annotations

import faulthandler
import gc
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import psutil

from servetune.records import Api
from tests.fuzz.answers import answer, cut
from tests.fuzz.pipeline import Form, check_alone, facts

_HANG_S = 60.0
_SLOWEST_S = 1.0
_MOST_GROWTH_BYTES = 16 * 1024 * 1024
_MOST_FAILURES = 20
APIS: tuple[Api, ...] = ("chat", "completions", "generate")


class Fuzzing:
    """One series of inputs."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.seen: Counter[str] = Counter()
        """Inputs by what became of them."""
        self.slowest_s = 0.0
        """CPU time."""
        self._random = Random()

    def run(self, numbers: range, say: Callable[[str], None]) -> int:
        """Run these inputs with the collector off, as load workers do; returns the number of failures."""
        gc.collect()
        gc.disable()
        try:
            return self._run(numbers, say)
        finally:
            gc.enable()
            faulthandler.cancel_dump_traceback_later()

    def _run(self, numbers: range, say: Callable[[str], None]) -> int:
        process = psutil.Process()
        started = time.monotonic()
        settled_bytes = 0
        failures = 0
        for done, number in enumerate(numbers, start=1):
            if done % 1000 == 1:
                faulthandler.dump_traceback_later(_HANG_S, exit=True)
            begun = time.thread_time()
            try:
                self._try(number)
            except Exception as bad:  # noqa: BLE001 - whatever it is, it is a finding
                failures += 1
                say(f"input {number} of seed {self.seed}: {type(bad).__name__}: {str(bad)[:2000]}")
                if failures >= _MOST_FAILURES:
                    break
            self.slowest_s = max(self.slowest_s, time.thread_time() - begun)
            if done == max(1, len(numbers) // 5):
                settled_bytes = process.memory_info().rss
            if done % 100_000 == 0:
                say(f"{done:,} inputs, {time.monotonic() - started:.0f} s, {failures} failures")
        growth_bytes = process.memory_info().rss - settled_bytes
        say(self._summary(len(numbers), time.monotonic() - started, growth_bytes, failures))
        return failures + int(self.slowest_s > _SLOWEST_S) + int(growth_bytes > _MOST_GROWTH_BYTES)

    def _try(self, number: int) -> None:
        random = self._random
        random.seed((self.seed << 40) + number)
        api = random.choice(APIS)
        form: Form = "json" if random.random() < 0.1 else "events"
        raw = answer(random)
        whole = facts([raw], form, api)
        pieces = cut(random, raw)
        other = facts(pieces, form, api)
        assert other == whole, (
            f"{form} {api} {raw!r} in pieces of {list(map(len, pieces))}: {_difference(whole, other)}"
        )
        _, _, is_complete, is_http, body, flags, *_ = whole
        if form == "events" and api != "generate" and number % 4 == 0:
            check_alone(body)
        self.seen["events" if flags else "no event"] += 1
        self.seen["events in all"] += len(flags)
        self.seen[f"fault {whole[9]}"] += 1
        self.seen["complete" if is_complete else "cut off" if is_http else "not HTTP"] += 1

    def _summary(self, inputs: int, took_s: float, growth_bytes: int, failures: int) -> str:
        seen = ", ".join(f"{what}: {count:,}" for what, count in sorted(self.seen.items()))
        return (
            f"{inputs:,} inputs of seed {self.seed} in {took_s:.0f} s, slowest {self.slowest_s * 1000:.1f} ms, "
            f"memory grew by {growth_bytes / 1024:.0f} KiB after the first fifth, {failures} failures\n{seen}"
        )


def _difference(whole: tuple[Any, ...], other: tuple[Any, ...]) -> str:
    return "; ".join(f"{one!r} became {two!r}" for one, two in zip(whole, other, strict=True) if one != two)
