"""A load on a server that misbehaves in every way at once: it ends on time, and what is sound is measured."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from servetune.records import EVENT_CONTENT, ClientFacts, RequestErrorKind, RequestRecord
from tests.unit.loadgen.faulty import BROKEN, FAULTS, SOUND, STUCK, TOKENS, FaultyServer, ask, faulty, timing
from tests.unit.loadgen.scripted import load

REQUESTS = 1000
FAULTY = 200
CONCURRENCY = 64
HEAVY = ("endless-comments", "endless-head", "status-500-flood", "huge-line", "endless-line")
"""Tens of megabytes each: once or twice is enough."""
LIMITS: dict[str, Any] = {"first_byte_timeout_s": 0.6, "idle_timeout_s": 0.6, "total_timeout_s": 1.5}


def mix(seed: int, sound_first: int = 0) -> list[str]:
    """Names for 1,000 requests, 200 of them faults: each kind of them, the rest drawn."""
    generator = random.Random(seed)
    every = [*BROKEN, *STUCK]
    names = every + generator.choices([name for name in every if name not in HEAVY], k=FAULTY - len(every))
    names += [SOUND] * (REQUESTS - FAULTY - sound_first)
    generator.shuffle(names)
    return [SOUND] * sound_first + names


def accepted(name: str) -> set[RequestErrorKind | None]:
    """Kinds that are right for this fault beside others."""
    kinds = {FAULTS[name].kind}
    # Before its second piece an answer is silent only when the whole server is; until then the total time-out holds.
    return kinds | {"total-timeout"} if "idle-timeout" in kinds else kinds


def is_whole(record: RequestRecord) -> bool:
    """Every token of a sound answer is there, in order of time, with the server's count of them."""
    content = sum(bool(flags & EVENT_CONTENT) for flags in record.event_flags)
    in_order = list(record.reads_ns) == sorted(record.reads_ns)
    return (record.error, record.usage_output_tokens, content, in_order) == (None, TOKENS, TOKENS, True)


def exact_share(records: list[RequestRecord], server: FaultyServer, facts: ClientFacts) -> float:
    """Share of the tokens that were received within 5 ms of their send; the times of all the others hold too."""
    timings = [timing(record, server, facts) for record in records]
    assert all(holds for _, holds in timings)
    return sum(lag_ns < 5e6 for lags, _ in timings for lag_ns in lags) / (TOKENS * len(records))


@pytest.mark.parametrize(("connections", "workers"), [("keep", 1), ("new", 2)])
def test_one_request_in_five_is_broken(tmp_path: Path, connections: str, workers: int) -> None:
    """All 800 sound requests are completed and measured, each of the 200 others has its kind, and the run ends."""
    names = mix(seed=5)
    with faulty() as server:
        begin = time.monotonic()
        records, facts, _ = load(
            server.url,
            tmp_path / "out",
            requests=ask(names),
            max_concurrency=CONCURRENCY,
            connections=connections,
            workers=workers,
            **LIMITS,
        )
        took_s = time.monotonic() - begin
    assert took_s < 15
    assert [record.index for record in records] == list(range(REQUESTS))
    wrong = {
        (name, record.error)
        for name, record in zip(names, records, strict=True)
        if (record.error.kind if record.error else None) not in accepted(name)
    }
    assert wrong == set()
    sound = [record for name, record in zip(names, records, strict=True) if name == SOUND]
    assert len(sound) == REQUESTS - FAULTY
    assert all(is_whole(record) for record in sound)
    assert exact_share(sound, server, facts) > 0.9
    assert (facts.aborted, facts.workers, facts.peak_open) == ("", workers, CONCURRENCY)
    assert facts.retried == sum(record.retries for record in records)


def test_a_declared_error_rate_ends_the_load_early(tmp_path: Path) -> None:
    """Once more than a tenth has failed; all that had ended is kept, and each request has a record."""
    names = mix(seed=6, sound_first=200)
    with faulty() as server:
        begin = time.monotonic()
        records, facts, _ = load(
            server.url,
            tmp_path / "out",
            requests=ask(names),
            max_concurrency=CONCURRENCY,
            max_error_rate=0.1,
            **LIMITS,
        )
        took_s = time.monotonic() - begin
        finished = len(server.sent_ns)
    assert took_s < 8
    assert "10%" in facts.aborted
    assert [record.index for record in records] == list(range(REQUESTS))
    cancelled = [record for record in records if record.error is not None and record.error.kind == "cancelled"]
    whole = [record for record in records if record.error is None]
    failed = REQUESTS - len(cancelled) - len(whole)
    assert 20 <= failed <= 120
    assert failed / (failed + len(whole)) > 0.08
    assert all(is_whole(record) for record in whole)
    # What the server had answered when the load ended is there, but for the slots that were busy then.
    assert finished - CONCURRENCY <= len(whole) <= finished
    assert len(whole) >= 200
    assert len(cancelled) > 300


def test_a_server_that_is_restarted(tmp_path: Path) -> None:
    """Away for 300 ms in the middle: what was on its way breaks, what comes meanwhile is refused, the rest is whole."""
    names = [SOUND] * 400
    with faulty() as server:
        first_answer = threading.Event()

        def restart() -> None:
            first_answer.wait(10)
            time.sleep(0.6)
            server.restart(0.3)

        thread = threading.Thread(target=restart)
        thread.start()

        def started() -> bool:
            if server.seen:
                first_answer.set()
            return False

        begin = time.monotonic()
        records, facts, _ = load(
            server.url,
            tmp_path / "out",
            requests=ask(names),
            request_rate=200.0,
            burstiness=float("inf"),
            cancelled=started,
            **LIMITS,
        )
        took_s = time.monotonic() - begin
        thread.join()
    assert took_s < 5
    kinds = [record.error.kind if record.error else None for record in records]
    assert set(kinds) <= {None, "reset", "reset-before-answer", "connect-refused"}
    assert 40 <= kinds.count("connect-refused") <= 80
    assert kinds.count("reset") + kinds.count("reset-before-answer") <= 40
    bad = [index for index, kind in enumerate(kinds) if kind]
    assert len(bad) == bad[-1] - bad[0] + 1
    assert all(is_whole(record) for record in records if record.error is None)
    assert records[-1].error is None
    assert facts.aborted == ""
