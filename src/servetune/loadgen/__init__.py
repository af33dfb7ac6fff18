"""The load client: sends prepared requests on a schedule and keeps what came back, with its times.

It runs in a process of its own (`worker.py`), started and watched by `run.run_load`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servetune.loadgen.run import LoadJob, read_records, run_load

__all__ = ["LoadJob", "read_records", "run_load"]


def __getattr__(name: str) -> Any:
    """Import the parent's side on first use: every start of a worker passes through here and must not pay for it."""
    if name not in __all__:
        raise AttributeError(name)
    from servetune.loadgen import run  # noqa: PLC0415  # the parent's side brings numpy

    return getattr(run, name)
