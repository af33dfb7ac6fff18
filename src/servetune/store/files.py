"""Files that survive a crash: written beside, fsynced, renamed, and the folder fsynced.

Knows nothing of studies. Every caller that leaves a file for a later start uses these functions.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from servetune.errors import StoreError

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "lustre", "beegfs", "ceph", "gpfs", "glusterfs", "afs", "ncpfs"}
)
"""File system types on which SQLite's WAL mode is unsafe, since its shared memory is not shared between hosts
(sqlite.org/wal.html, "All processes using a database must be on the same host computer")."""


def explain_os_error(error: OSError, path: Path) -> StoreError:
    """Turn an OSError on `path` into one message with the remedy."""
    remedies = {
        errno.ENOSPC: "the disk is full: free some space and start the same command again, finished runs are kept",
        errno.EDQUOT: "the disk quota is used up: free some space and start the same command again",
        errno.EACCES: "no permission: choose a folder that you may write with --out DIR",
        errno.EPERM: "no permission: choose a folder that you may write with --out DIR",
        errno.EROFS: "the file system is read-only: choose another folder with --out DIR",
        errno.ENOTDIR: "a part of this path is a file, not a folder: choose another folder with --out DIR",
    }
    remedy = remedies.get(error.errno or 0, "check the folder and start the same command again")
    return StoreError(f"{path}: {error.strerror or error} ({remedy})")


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable.

    Raises:
        OSError: the folder cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(part: Path, final: Path) -> None:
    """Fsync the finished file `part`, rename it to `final` and make the rename durable.

    Raises:
        StoreError: the file system refused (disk full, permission).
    """
    try:
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(final)
        sync_folder(final.parent)
    except OSError as error:
        raise explain_os_error(error, final) from error


def write_durably(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step: a reader sees the old file or the new one, never a part.

    Raises:
        StoreError: the file system refused (disk full, permission).
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise explain_os_error(error, path) from error
    publish(part, path)


def file_system_type(folder: Path, mounts: str) -> str | None:
    """Type of the file system that holds `folder`, by the text of /proc/mounts; None when it is not listed."""
    best, found = "", None
    resolved = str(folder.resolve())
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = resolved == point or resolved.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, found = point, fields[2]
    return found


def is_on_network(folder: Path) -> bool:
    """Whether `folder` lies on a network file system (False where /proc/mounts is not readable)."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    kind = file_system_type(folder, mounts) or ""
    return kind in NETWORK_FILE_SYSTEMS or kind.startswith(("fuse.sshfs", "fuse.s3fs", "fuse.rclone"))
