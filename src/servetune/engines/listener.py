"""Whose process listens on a port of loopback, read from /proc. Knows nothing but ports and pids."""

from __future__ import annotations

import contextlib
from pathlib import Path

from servetune.engines.keeper import descendants

_LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp."""


def is_listening_elsewhere(port: int, root: int) -> bool:
    """Tell whether `port` has a listener and all processes below `root` are seen and none of them holds it.

    False wherever /proc cannot tell.
    """
    listeners = _listening_inodes(port)
    if not listeners:
        return False
    held: set[str] = set()
    for pid in descendants(root):
        inodes = _socket_inodes(pid)
        if inodes is None:
            return False
        held |= inodes
    return not listeners & held


def _listening_inodes(port: int) -> set[str]:
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            found |= {row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port}
    return found


def _socket_inodes(pid: int) -> set[str] | None:
    """Return the inodes of the sockets that `pid` holds; None if that may not be seen."""
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except PermissionError:
        return None
    except OSError:
        return set()  # it ended meanwhile
    found: set[str] = set()
    for link in links:
        with contextlib.suppress(OSError):
            target = str(link.readlink())
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found
