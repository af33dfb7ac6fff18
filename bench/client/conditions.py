"""What the clients are put through: how the server answers, and how much is asked of it."""

from __future__ import annotations

from typing import NamedTuple


class Condition(NamedTuple):
    """One way of asking and answering; every answer has the same length."""

    name: str
    about: str
    concurrency: int
    requests: int
    tokens: int
    prefill_ms: float = 0.0
    interval_ms: float = 0.0
    burst: int = 1
    """Tokens in one write, where no interval paces them."""
    rate: float | None = None
    """Requests/s of an open loop with Poisson arrivals; None: a closed loop of `concurrency` slots."""
    slow_requests: int | None = None
    """Requests for clients that would take minutes for `requests`."""
    workers: int | None = None
    """Processes of servetune's own client, on all cores; other clients are left out."""

    @property
    def is_paced(self) -> bool:
        """Whether the server, not the slower side, sets the pace."""
        return self.interval_ms > 0

    def requests_for(self, *, is_slow: bool) -> int:
        """Return how many requests a client sends."""
        return self.slow_requests if is_slow and self.slow_requests else self.requests

    def load_s(self, chunks_per_s: float, *, is_slow: bool) -> float:
        """Return about how long the load lasts with a client that takes at most `chunks_per_s`."""
        requests = self.requests_for(is_slow=is_slow)
        answer_s = (self.prefill_ms + self.tokens * self.interval_ms) / 1e3
        paced_s = requests / self.rate + answer_s if self.rate else requests / self.concurrency * answer_s
        return max(paced_s, requests * self.tokens / chunks_per_s)


CONDITIONS = {
    condition.name: condition
    for condition in (
        Condition(
            "streams-256",
            "256 streams x 20 ms (12,800 chunks/s), 4 closed-loop waves of 128 tokens",
            concurrency=256,
            requests=1024,
            tokens=128,
            prefill_ms=200,
            interval_ms=20,
        ),
        Condition(
            "streams-1000",
            "1,000 streams x 20 ms (50,000 chunks/s), 2 closed-loop waves of 128 tokens",
            concurrency=1000,
            requests=2000,
            tokens=128,
            prefill_ms=200,
            interval_ms=20,
        ),
        Condition(
            "poisson-90",
            "open loop, Poisson 90 requests/s, 128 tokens x 20 ms",
            concurrency=1000,
            requests=900,
            tokens=128,
            prefill_ms=200,
            interval_ms=20,
            rate=90,
        ),
        Condition(
            "firehose-1",
            "1,000 concurrent, 128 tokens, as fast as the sockets take them, one token a write",
            concurrency=1000,
            requests=8000,
            tokens=128,
        ),
        Condition(
            "firehose-coalesced",
            "1,000 concurrent, 128 tokens, as fast as the sockets take them, one answer a write",
            concurrency=1000,
            requests=60_000,
            slow_requests=8000,
            tokens=128,
            burst=128,
        ),
        Condition(
            "streams-10000",
            "10,000 streams at once, 16 tokens x 500 ms after 1,000 ms",
            concurrency=10_000,
            requests=10_000,
            tokens=16,
            prefill_ms=1000,
            interval_ms=500,
        ),
        Condition(
            "workers-2",
            "two workers of servetune's beside the server on two cores, 200 streams x 20 ms (10,000 chunks/s)",
            concurrency=200,
            requests=600,
            tokens=128,
            prefill_ms=200,
            interval_ms=20,
            workers=2,
        ),
    )
}
QUICK = ("streams-256", "firehose-coalesced")
