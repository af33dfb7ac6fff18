"""What the load client observes of itself while it runs: its lateness, its processor, and what waits in its sockets."""

from __future__ import annotations

import contextlib
import fcntl
import struct
import termios
import time
from array import array
from collections import deque
from itertools import islice
from pathlib import Path

from servetune.loadgen.client import Client
from servetune.loadgen.connection import MARK_BYTES, stamps_ns
from servetune.loadgen.exchange import Exchange
from servetune.loadgen.loop import Loop

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_BEAT_NS = 50 * _NS_PER_MS
_LONGEST_NAP_NS = _NS_PER_MS
_NAPS_PER_GAP = 10
_GAPS = 16
_FEWEST_READS = 4
_SOCKETS_A_BEAT = 2
_SCHEDSTAT = Path("/proc/self/schedstat")


class Sample:
    """Values of which every n-th is kept, n growing so that the memory stays small."""

    def __init__(self, most: int = 50_000) -> None:
        self._most = most
        self._every = 1
        self._seen = 0
        self.values = array("q")

    def add(self, value: int) -> None:
        """Take one value."""
        self._seen += 1
        if self._seen % self._every:
            return
        self.values.append(value)
        if len(self.values) >= self._most:
            self.values = self.values[::2]
            self._every *= 2

    def quantile(self, share: float) -> int:
        """Return the value that `share` of all values do not exceed; 0 without values."""
        if not self.values:
            return 0
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Pulse:
    """Beats every 50 ms on the loop: measures how late that comes, looks at sockets, and sets how long it may nap."""

    def __init__(self, loop: Loop, client: Client, *, naps: bool) -> None:
        self._loop = loop
        self._client = client
        self._naps = naps
        self._gaps_ns: deque[int] = deque(maxlen=_GAPS)
        self._due_ns = time.monotonic_ns()
        self._turn = 0
        self.max_lag_ns = 0
        self.max_unread_bytes = 0
        self._stopped = False

    def start(self) -> None:
        """Begin to beat."""
        self._due_ns = time.monotonic_ns() + _BEAT_NS
        self._loop.later(_BEAT_NS, self._beat)

    def stop(self) -> None:
        """Beat no more, and let the loop nap no more."""
        self._stopped = True
        self._loop.nap_ns = 0

    @property
    def event_gap_ns(self) -> int | None:
        """Smallest usual time between two reads of one stream that was seen lately."""
        return min(self._gaps_ns, default=None)

    def _beat(self) -> None:
        if self._stopped:
            return
        now = time.monotonic_ns()
        self.max_lag_ns = max(self.max_lag_ns, now - self._due_ns)
        running = self._client.running
        if running:
            self._turn = (self._turn + _SOCKETS_A_BEAT) % len(running)
            for exchange in list(islice(running, self._turn, self._turn + _SOCKETS_A_BEAT)):
                self._inspect(exchange)
        gap_ns = self.event_gap_ns
        if self._naps and gap_ns is not None:
            self._loop.nap_ns = min(_LONGEST_NAP_NS, gap_ns // _NAPS_PER_GAP)
        self._due_ns = time.monotonic_ns() + _BEAT_NS
        self._loop.later(_BEAT_NS, self._beat)

    def _inspect(self, exchange: Exchange) -> None:
        reads, marks = len(exchange.reads), exchange.marks
        if reads >= _FEWEST_READS:
            # The first read is the head.
            first, last = stamps_ns(marks[MARK_BYTES : 2 * MARK_BYTES] + marks[-MARK_BYTES:])
            self._gaps_ns.append((last - first) // (reads - 2))
        if exchange.connection is not None and not exchange.connection.is_closed:
            self.max_unread_bytes = max(self.max_unread_bytes, _unread_bytes(exchange.connection.fileno))


class Processor:
    """Time that this process ran, and that it was kept waiting for a processor, since it was made."""

    def __init__(self) -> None:
        self._cpu_s = time.process_time()
        self._waited_ns = _waited_ns()
        self._begin_ns = time.monotonic_ns()

    def shares(self) -> tuple[float, float]:
        """Return (running, runnable without a processor), each as a share of the wall time; 0 for what is unknown."""
        wall_ns = max(1, time.monotonic_ns() - self._begin_ns)
        ran = (time.process_time() - self._cpu_s) * _NS_PER_S / wall_ns
        return ran, max(0, _waited_ns() - self._waited_ns) / wall_ns


def clock_offset_ns() -> int:
    """CLOCK_REALTIME - CLOCK_MONOTONIC, from the quickest of a few readings."""
    readings = []
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        readings.append((after - before, wall - (before + after) // 2))
    return min(readings)[1]


def _waited_ns() -> int:
    """Read the kernel's count of the time spent waiting on a run queue."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(_SCHEDSTAT.read_text().split()[1])
    return 0


def _unread_bytes(fileno: int) -> int:
    answer = fcntl.ioctl(fileno, termios.FIONREAD, b"\0\0\0\0")
    return int(struct.unpack("i", answer)[0])
