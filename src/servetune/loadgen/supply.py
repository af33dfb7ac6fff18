"""Where a worker's next request comes from: its own schedule, or tickets that all workers draw from.

Knows no socket and no clock; due times are offsets in ns from the start of the load.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import BinaryIO, NamedTuple, Protocol

from servetune.loadgen.job import PreparedRequest

_TICKET_BYTES = 4


class Supply(Protocol):
    """Hands out requests in the order in which they are due."""

    def remaining(self) -> int:
        """Requests that nobody has taken."""

    def take(self) -> PreparedRequest | None:
        """Return the next one; None: there is none left."""


class Share(NamedTuple):
    """One worker's part of a load."""

    supply: Supply
    slots: int
    """Most requests that it may have in flight."""


class Schedule:
    """The requests of one worker, in order of their due times."""

    def __init__(self, requests: Sequence[PreparedRequest]) -> None:
        self._requests = requests
        self._next = 0

    def remaining(self) -> int:
        """Requests that were not taken."""
        return len(self._requests) - self._next

    def take(self) -> PreparedRequest | None:
        """Return the next one."""
        if self._next == len(self._requests):
            return None
        self._next += 1
        return self._requests[self._next - 1]

    def due_ns(self) -> int | None:
        """Due time of the next one."""
        return None if self._next == len(self._requests) else self._requests[self._next].due_ns

    def due_before(self, offset_ns: int) -> int:
        """How many are due at `offset_ns` or before."""
        at = self._next
        while at < len(self._requests) and self._requests[at].due_ns <= offset_ns:
            at += 1
        return at - self._next

    def first_due_after(self, count: int) -> int | None:
        """Due time of the one behind the next `count`."""
        at = self._next + count
        return self._requests[at].due_ns if at < len(self._requests) else None


class Tickets:
    """One counter for the requests of all workers.

    Workers that inherit the same open file share its position, and the system moves it in one step with each read:
    no two of them ever draw the same ticket.
    """

    def __init__(self, requests: Sequence[PreparedRequest], fileno: int) -> None:
        self._requests = requests
        self._fileno = fileno

    @staticmethod
    def write(file: BinaryIO, count: int) -> None:
        """Fill a new file with tickets for `count` requests."""
        file.write(b"".join(number.to_bytes(_TICKET_BYTES, "little") for number in range(count)))
        file.flush()
        file.seek(0)

    def remaining(self) -> int:
        """Requests that no worker has taken."""
        return len(self._requests) - os.lseek(self._fileno, 0, os.SEEK_CUR) // _TICKET_BYTES

    def take(self) -> PreparedRequest | None:
        """Draw a ticket and return its request."""
        ticket = os.read(self._fileno, _TICKET_BYTES)
        return self._requests[int.from_bytes(ticket, "little")] if ticket else None
