"""Files survive crashes, and network file systems are recognised."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from servetune.errors import StoreError
from servetune.store import files

MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/export /mnt/shared\\040data nfs4 rw 0 0
tmpfs /mnt tmpfs rw 0 0
broken line
"""


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """The new content is there and no temporary file is left."""
    target = tmp_path / "a.json"
    files.write_durably(target, b"old")

    files.write_durably(target, b"new")

    assert target.read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_missing_folder_is_told_with_its_path(tmp_path: Path) -> None:
    """Writing into a folder that does not exist names the file and what to do."""
    with pytest.raises(StoreError, match=r"gone/a\.json.*start the same command again"):
        files.write_durably(tmp_path / "gone" / "a.json", b"x")


def test_publishing_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """A record file that vanished is an error, not an empty run."""
    with pytest.raises(StoreError, match="b"):
        files.publish(tmp_path / "a.part", tmp_path / "b")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EPERM])
def test_common_refusals_have_their_own_remedy(code: int) -> None:
    """Disk full, quota, permission and read-only each say what to do."""
    message = str(files.explain_os_error(OSError(code, "refused"), Path("x")))

    assert message.startswith("x: refused (")
    assert "check the folder" not in message


@pytest.mark.parametrize(
    ("folder", "kind"),
    [("/mnt/shared data/study", "nfs4"), ("/mnt/other", "tmpfs"), ("/home", "ext4"), ("/mnt", "tmpfs")],
)
def test_the_longest_mount_point_decides(folder: str, kind: str) -> None:
    """The file system is that of the deepest mount point above the folder, blanks in its name included."""
    assert files.file_system_type(Path(folder), MOUNTS) == kind


def test_an_unlisted_folder_has_no_type() -> None:
    """Without any mount point nothing is claimed."""
    assert files.file_system_type(Path("/x"), "") is None
