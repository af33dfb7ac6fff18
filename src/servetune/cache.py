"""The user's cache folder: where it is, how large it is, how files enter it, and how it is emptied.

Everything in it can be made again. Knows no model, engine or study.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servetune.errors import HostProblem

_MARKER = "servetune-cache"
_BLOCK_BYTES = 1 << 20


def cache_dir() -> Path:
    """Return the cache folder, made if need be.

    It is $SERVETUNE_CACHE, else $XDG_CACHE_HOME/servetune, else ~/.cache/servetune. Raises HostProblem if it cannot be
    made.
    """
    folder = _chosen_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        marker = folder / _MARKER
        if not marker.exists() and not any(folder.iterdir()):
            marker.write_text("Files that servetune can make again. `servetune doctor` shows and clears them.\n")
    except OSError as error:
        raise HostProblem(
            f"the cache folder {folder} cannot be used: {error.strerror}"
            " (set SERVETUNE_CACHE to a folder that you may write)"
        ) from error
    return folder


def _chosen_folder() -> Path:
    if own := os.environ.get("SERVETUNE_CACHE"):
        return Path(own).expanduser().absolute()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).absolute() / "servetune"
    return Path.home() / ".cache" / "servetune"


def cache_size_bytes() -> int:
    """Return the bytes of all files in the cache folder; what links point at is not counted."""
    folder = _chosen_folder()
    files = (Path(root) / name for root, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_size for file in files if file.name != _MARKER)


def clear_cache() -> int:
    """Remove everything in the cache folder and return the freed bytes; links are removed, never followed.

    Raises HostProblem if the folder is a link, or holds files that servetune did not put there.
    """
    folder = _chosen_folder()
    if folder.is_symlink():
        raise HostProblem(f"the cache folder {folder} is a symbolic link; remove its contents by hand")
    if not folder.exists():
        return 0
    if not (folder / _MARKER).is_file():
        raise HostProblem(f"{folder} was not made by servetune; remove its contents by hand")
    freed = cache_size_bytes()
    for entry in folder.iterdir():
        if entry.name == _MARKER:
            continue
        try:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        except OSError as error:
            raise HostProblem(f"{entry} cannot be removed: {error.strerror}") from error
    return freed


@contextmanager
def entering_cache(target: Path) -> Iterator[Path]:
    """Give a temporary path beside `target` that becomes `target` in one step when the block ends well.

    Nothing is left of a block that fails. Raises HostProblem if the disk is full or not writable.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise HostProblem(f"{target.parent} cannot be written: {error.strerror}") from error
    partial = Path(name)
    try:
        yield partial
        _flush(partial)
        partial.replace(target)
    except OSError as error:
        raise HostProblem(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _flush(file: Path) -> None:
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


def require_free_bytes(folder: Path, needed: int, purpose: str) -> None:
    """Raise HostProblem unless the disk of `folder` has `needed` bytes and a tenth more to spare."""
    free = shutil.disk_usage(folder).free
    if free < needed * 1.1:
        raise HostProblem(
            f"{purpose} needs {needed / 1e6:.0f} MB in {folder}, but only {free / 1e6:.0f} MB are free"
            " (free some space, or set SERVETUNE_CACHE to a folder on another disk)"
        )


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file in hex; it is remembered in the cache by path, size and time of change."""
    facts = file.stat()
    key = hashlib.sha256(f"{file.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}".encode()).hexdigest()[:32]
    remembered = cache_dir() / "digests" / key
    if remembered.is_file():
        return remembered.read_text()
    digest = sha256_of(file)
    with entering_cache(remembered) as partial:
        partial.write_text(digest)
    return digest


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
