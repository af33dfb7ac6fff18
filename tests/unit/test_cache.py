"""The cache folder: its place, size, clearing without leaving it, and files that appear in one step."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from servetune import cache
from servetune.errors import HostProblem


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SERVETUNE_CACHE wins over XDG_CACHE_HOME, which wins over the home folder."""
    monkeypatch.setenv("SERVETUNE_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.cache_dir() == tmp_path / "own"
    monkeypatch.delenv("SERVETUNE_CACHE")
    assert cache.cache_dir() == tmp_path / "xdg" / "servetune"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_dir() == tmp_path / "home" / ".cache" / "servetune"
    assert cache.cache_dir().is_dir()


def test_a_folder_that_cannot_be_made_is_a_host_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file in the way gives one message with the remedy."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SERVETUNE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(HostProblem, match="SERVETUNE_CACHE"):
        cache.cache_dir()


def test_size_and_clearing(tmp_path: Path) -> None:
    """Clearing frees what size counted and leaves a usable folder."""
    folder = cache.cache_dir()
    (folder / "models").mkdir()
    (folder / "models" / "a").write_bytes(b"x" * 1000)
    (folder / "b").write_bytes(b"x" * 10)
    assert cache.cache_size_bytes() == 1010
    assert cache.clear_cache() == 1010
    assert cache.cache_size_bytes() == 0
    assert cache.clear_cache() == 0


def test_clearing_never_follows_links_out(tmp_path: Path) -> None:
    """Links inside the cache are removed; what they point at stays."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("keep")
    folder = cache.cache_dir()
    (folder / "link").symlink_to(outside)
    (folder / "deep").mkdir()
    (folder / "deep" / "link").symlink_to(outside)
    cache.clear_cache()
    assert (outside / "precious").read_text() == "keep"
    assert not (folder / "link").exists()
    assert not (folder / "deep").exists()


def test_a_cache_that_is_a_link_is_not_cleared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A linked folder may be anything: it is left alone."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("SERVETUNE_CACHE", str(tmp_path / "link"))
    with pytest.raises(HostProblem, match="symbolic link"):
        cache.clear_cache()


def test_a_folder_of_somebody_else_is_not_cleared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SERVETUNE_CACHE set to a folder with other files by mistake costs nothing."""
    (tmp_path / "thesis.tex").write_text("keep")
    monkeypatch.setenv("SERVETUNE_CACHE", str(tmp_path))
    cache.cache_dir()
    with pytest.raises(HostProblem, match="not made by servetune"):
        cache.clear_cache()
    assert (tmp_path / "thesis.tex").exists()


def test_clearing_a_cache_that_does_not_exist_frees_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing there is not an error."""
    monkeypatch.setenv("SERVETUNE_CACHE", str(tmp_path / "none"))
    assert cache.clear_cache() == 0
    assert not (tmp_path / "none").exists()


def test_a_file_enters_whole_or_not_at_all(tmp_path: Path) -> None:
    """A block that fails leaves neither the target nor the partial file."""
    target = tmp_path / "deep" / "file"
    with pytest.raises(RuntimeError), cache.entering_cache(target) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert list(target.parent.iterdir()) == []
    with cache.entering_cache(target) as partial:
        partial.write_text("whole")
        assert not target.exists()
    assert target.read_text() == "whole"
    assert list(target.parent.iterdir()) == [target]


def test_a_full_disk_is_a_host_problem(tmp_path: Path) -> None:
    """An error of the disk while a file is written is said once, with the file."""
    with pytest.raises(HostProblem, match="No space left"), cache.entering_cache(tmp_path / "file") as partial:
        with open("/dev/full", "w") as full:  # noqa: PTH123  # the device that is always full
            full.write("x" * 10)
        partial.write_text("never")


def test_too_little_space_is_said_before(tmp_path: Path) -> None:
    """A need beyond the free space is refused with both figures."""
    cache.require_free_bytes(tmp_path, 1000, "a test")
    with pytest.raises(HostProblem, match="a test needs 1000000000000 MB"):
        cache.require_free_bytes(tmp_path, 10**18, "a test")


def test_digests_are_remembered_until_the_file_changes(tmp_path: Path) -> None:
    """The digest is right, comes from the cache the second time, and follows a change."""
    file = tmp_path / "file"
    file.write_bytes(b"one")
    assert cache.file_digest(file) == hashlib.sha256(b"one").hexdigest()
    remembered = list((cache.cache_dir() / "digests").iterdir())
    assert len(remembered) == 1
    remembered[0].write_text("from the cache")
    assert cache.file_digest(file) == "from the cache"
    file.write_bytes(b"two")
    os.utime(file, ns=(1, 1))
    assert cache.file_digest(file) == hashlib.sha256(b"two").hexdigest()
