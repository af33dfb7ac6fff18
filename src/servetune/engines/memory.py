"""Resident memory of an engine's processes, read from /proc. Knows nothing but pids."""

from __future__ import annotations

import contextlib
from pathlib import Path


def resident_peak_mib(root: int) -> float | None:
    """Return the sum of the peak resident sizes (VmHWM) of all processes below `root`, in MiB; None if none is seen."""
    sizes = [size for pid in _below(root) if (size := _peak_kib(pid)) is not None]
    return sum(sizes) / 1024 if sizes else None


def _below(root: int) -> list[int]:
    """Return the pids below `root` by the kernel's own lists of children, which cost less than a walk over /proc."""
    found: list[int] = []
    ahead = [root]
    while ahead:
        children = _children(ahead.pop())
        found += children
        ahead += children
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):  # the process ended meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return children


def _peak_kib(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return None
