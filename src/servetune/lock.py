"""One measurement at a time on one host: a lock file that the kernel frees when its holder dies.

Two studies at once would spoil each other's figures. The lock says who holds it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servetune.errors import HostProblem, LockHeld


def lock_path() -> Path:
    """The host-wide lock file; SERVETUNE_LOCK names another one."""
    return Path(os.environ.get("SERVETUNE_LOCK") or Path(tempfile.gettempdir()) / "servetune-measure.lock")


@contextmanager
def measuring(purpose: str) -> Iterator[None]:
    """Hold the host's measuring lock; `purpose` is shown to whoever comes second.

    Raises:
        LockHeld: another servetune measures on this host.
        HostProblem: the lock file cannot be opened.
    """
    path = lock_path()
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise HostProblem(f"{path}: {error.strerror} (name another lock file in SERVETUNE_LOCK)") from error
    try:
        _take(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()}, {purpose}".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder() -> str | None:
    """Who measures on this host at this moment, or None."""
    try:
        descriptor = os.open(lock_path(), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return os.pread(descriptor, 500, 0).decode(errors="replace").strip() or "unknown"
    finally:
        os.close(descriptor)
    return None


def _take(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 500, 0).decode(errors="replace").strip() or "unknown"
        raise LockHeld(
            f"another servetune is measuring on this host ({holder}); both would measure wrong figures."
            f" Wait until it ends, or stop it (lock: {path})"
        ) from error
