"""The load worker's event loop: sockets, timers, and short sleeps between polls.

A plain loop over epoll: it calls a handler for each socket that is ready, and nothing else happens between the kernel
and the handler. With the kernel's receive times a read that comes a little late costs nothing, so the loop may sleep
(`nap_ns`) before it asks again: one wake-up then serves many streams. Work that can wait is done in that time.
"""

from __future__ import annotations

import heapq
import select
import time
from collections.abc import Callable
from itertools import count

Handler = Callable[[int], None]
"""Called with the mask of what happened."""

READ, WRITE = 1, 4
"""EPOLLIN and EPOLLOUT; poll(2) has the same values."""
_EDGES = select.EPOLLET | select.EPOLLRDHUP if hasattr(select, "epoll") else 0
_MOST_EVENTS = 128
_NS_PER_S = 1_000_000_000
_SHORTEST_NAP_NS = 20_000
_POLL_STEP_NS = 1_000_000
_LONGEST_WAIT_NS = _NS_PER_S


class Timer:
    """One call in the future; `cancel` takes it back."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Never call it."""
        self.call = None


class Loop:
    """Runs handlers and timers on one thread until `stop`."""

    def __init__(self) -> None:
        self._poller = select.epoll() if _EDGES else _Portable()
        self._handlers: list[Handler | None] = []
        """By file descriptor: the system gives out the lowest free one, so the list stays short."""
        self._timers: list[tuple[int, int, Timer]] = []
        self._number = count()
        self._stopped = False
        self.polled_ns = [0]
        """Time (CLOCK_REALTIME) at which the last poll returned, in a list so that handlers may keep it at hand."""
        self.nap_ns = 0
        """How long it may sleep between two polls; 0: not at all."""
        self.sleeps_to_the_point = False
        """Sleep through the last millisecond before a timer, since a poll only knows whole ones: reads wait for it."""
        self.idle: Callable[[int], bool] = _nothing
        """Does work that can wait, for about so many ns; returns whether there was any."""

    # Sockets report each change once (edge-triggered on Linux): a handler reads until nothing is left.

    def watch(self, fileno: int, handler: Handler, mask: int = READ) -> None:
        """Call `handler` when something happens on `fileno`."""
        missing = fileno + 1 - len(self._handlers)
        self._handlers += [None] * missing
        self._handlers[fileno] = handler
        self._poller.register(fileno, mask | _EDGES)

    def change(self, fileno: int, mask: int) -> None:
        """Wait for something else on a watched `fileno`."""
        self._poller.modify(fileno, mask | _EDGES)

    def hand_over(self, fileno: int, handler: Handler, mask: int = READ) -> None:
        """Let another handler serve a watched `fileno`; what is there already is reported to it."""
        self._handlers[fileno] = handler
        self._poller.modify(fileno, mask | _EDGES)

    def forget(self, fileno: int) -> None:
        """Watch `fileno` no longer; to be called before it is closed."""
        if fileno < len(self._handlers) and self._handlers[fileno] is not None:
            self._handlers[fileno] = None
            self._poller.unregister(fileno)

    def later(self, delay_ns: int, call: Callable[[], None]) -> Timer:
        """Call `call` once after `delay_ns`."""
        timer = Timer(call)
        heapq.heappush(self._timers, (time.monotonic_ns() + max(0, delay_ns), next(self._number), timer))
        return timer

    def soon(self, call: Callable[[], None]) -> Timer:
        """Call `call` from the loop, after the handlers that run now."""
        return self.later(0, call)

    def stop(self) -> None:
        """Let `run` return."""
        self._stopped = True

    def run(self) -> None:
        """Serve until `stop` is called; a call before `run` counts too."""
        handlers, polled_ns, poll, now_ns = self._handlers, self.polled_ns, self._poller.poll, time.time_ns
        found = 0
        while not self._stopped:
            wait_ns = self._due_in_ns()
            if found < _MOST_EVENTS:
                wait_ns = self._pause(wait_ns)
            events = poll(wait_ns / _NS_PER_S, _MOST_EVENTS)
            found = len(events)
            polled_ns[0] = now_ns()
            for fileno, mask in events:
                handler = handlers[fileno]
                # An earlier handler may have closed this socket.
                if handler is not None:
                    handler(mask)
            if self._timers:
                self._run_timers()
        self._stopped = False

    def close(self) -> None:
        """Give up the poller."""
        self._poller.close()

    def _pause(self, wait_ns: int) -> int:
        """Work or sleep before the next poll; returns how long that poll may wait, if at all in whole ms."""
        nap_ns = min(self.nap_ns, wait_ns)
        if self.sleeps_to_the_point:
            if wait_ns < _POLL_STEP_NS:
                nap_ns = wait_ns
            wait_ns = wait_ns // _POLL_STEP_NS * _POLL_STEP_NS
        if nap_ns < _SHORTEST_NAP_NS:
            return wait_ns
        begin_ns = time.monotonic_ns()
        while self.idle(nap_ns):
            nap_ns -= time.monotonic_ns() - begin_ns
            begin_ns = time.monotonic_ns()
            if nap_ns < _SHORTEST_NAP_NS:
                return 0
        time.sleep(nap_ns / _NS_PER_S)
        # What is left of a longer wait is worked out anew after a look at the sockets.
        return 0

    def _due_in_ns(self) -> int:
        timers = self._timers
        while timers and timers[0][2].call is None:
            heapq.heappop(timers)
        if not timers:
            return _LONGEST_WAIT_NS
        return min(_LONGEST_WAIT_NS, max(0, timers[0][0] - time.monotonic_ns()))

    def _run_timers(self) -> None:
        timers = self._timers
        if not timers or timers[0][0] > (now := time.monotonic_ns()):
            return
        while timers and timers[0][0] <= now:
            call = heapq.heappop(timers)[2].call
            if call is not None:
                call()


class _Portable:
    """poll(2) with epoll's manners, for systems that have no epoll."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self.register = self._poll.register
        self.modify = self._poll.modify
        self.unregister = self._poll.unregister

    def poll(self, timeout_s: float, most: int) -> list[tuple[int, int]]:
        return self._poll.poll(timeout_s * 1000)[:most]

    def close(self) -> None:
        """Nothing to give up."""


def _nothing(_: int) -> bool:
    return False
