"""How many cores and how much memory this process may use: its affinity, and the limits of cgroup v2 or v1.

A limit may be set on any group above; the tightest one counts. Reads files only.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from servetune.records import Record

_UNLIMITED_BYTES = 1 << 60
"""v1 writes a huge number where there is no limit."""


class Limits(Record, frozen=True, kw_only=True):
    """The tightest limits above this process; None: there is none."""

    cpu_cores: float | None = None
    memory_bytes: int | None = None
    memory_left_bytes: int | None = None
    """Of the group with the tightest memory limit: limit - use + file cache that can be given back."""


def limits(root: Path = Path("/")) -> Limits:
    """Return the limits of this process; `root` is the file system's root (another one in tests)."""
    quotas: list[float] = []
    memories: list[tuple[int, int]] = []
    for folder in _groups(root):
        if (quota := _cpu_cores(folder)) is not None:
            quotas.append(quota)
        if (memory := _memory(folder)) is not None:
            memories.append(memory)
    limit, left = min(memories, default=(None, None))
    return Limits(cpu_cores=min(quotas, default=None), memory_bytes=limit, memory_left_bytes=left)


def usable_cores(group: Limits | None = None) -> int:
    """Return the cores that this process may run on, no more than its quota lets it use in full."""
    quota = (limits() if group is None else group).cpu_cores
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return allowed if quota is None else max(1, min(allowed, math.floor(quota)))


def _groups(root: Path) -> Iterator[Path]:
    """Give every folder that holds settings of this process's groups, from its own up to the top."""
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        top = root / "sys/fs/cgroup"
        if controllers:
            name = next((name for name in (controllers, *controllers.split(",")) if (top / name).is_dir()), None)
            if name is None or not {"cpu", "memory"} & set(controllers.split(",")):
                continue
            top /= name
        below = top / path.lstrip("/")
        yield from (folder for folder in (below, *below.parents) if folder == top or top in folder.parents)


def _cpu_cores(folder: Path) -> float | None:
    """Return quota / period of v2's `cpu.max` ("max 100000" or "150000 100000") or of v1's two files."""
    if text := _text(folder / "cpu.max"):
        quota, _, period = text.partition(" ")
    else:
        quota, period = _text(folder / "cpu.cfs_quota_us") or "-1", _text(folder / "cpu.cfs_period_us") or "100000"
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _memory(folder: Path) -> tuple[int, int] | None:
    """Return (limit, what is left of it) in bytes."""
    limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
    if limit is None or limit >= _UNLIMITED_BYTES:
        return None
    used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
    stat = dict(line.split(" ", 1) for line in (_text(folder / "memory.stat") or "").splitlines() if " " in line)
    reclaimable = int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))
    return limit, max(0, min(limit, limit - used + reclaimable))


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text and text.isdigit() else None


def _text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None
