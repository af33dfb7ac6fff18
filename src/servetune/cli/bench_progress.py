"""The line that shows on a terminal how far a load is.

Written without rich, whose import would delay the first request and whose thread would take time from the client.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from servetune.records import Event, LoadProgress


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[Event], None]]:
    """Give a function that shows the load's progress in one line of a terminal; elsewhere it shows nothing."""
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda _: None
        return

    def show_line(text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    def on_event(event: Event) -> None:
        if isinstance(event, LoadProgress):
            show_line(progress_line(event))

    show_line("warming up ...")
    try:
        yield on_event
    finally:
        show_line("")


def progress_line(event: LoadProgress) -> str:
    """Return where the load stands in one line."""
    failed = f", {event.failed} failed" if event.failed else ""
    minutes, seconds = divmod(int(event.elapsed_s), 60)
    return f"{event.done}/{event.total} requests{failed}, {event.chunks_per_s:,.0f} tokens/s, {minutes}:{seconds:02}"
