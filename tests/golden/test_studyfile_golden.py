"""What a user sees of a study file: the whole message for a spoiled one, and the text of a rewritten one.

Set SERVETUNE_UPDATE_GOLDEN=1 to write the expected message anew after a wanted change; review it then.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from servetune import studyfile
from servetune.errors import StudyFileError
from tests.unit.study_texts import CATALOGUES, KINDS

FOLDER = Path(__file__).parent / "studyfile"


def test_the_message_for_a_spoiled_file(tmp_path: Path) -> None:
    """Mistakes of all kinds are told in one message, one line each."""
    with pytest.raises(StudyFileError) as caught:
        studyfile.parse((FOLDER / "spoiled.toml").read_text(), catalogues=CATALOGUES, kinds=KINDS, folder=tmp_path)
    said = str(caught.value).replace(str(tmp_path), "FOLDER") + "\n"
    expected = FOLDER / "spoiled.txt"
    if os.environ.get("SERVETUNE_UPDATE_GOLDEN"):
        expected.write_text(said)
    assert said == expected.read_text()


def test_a_rewritten_file_is_readable_and_stable() -> None:
    """A file in the form that servetune writes is written again byte by byte."""
    text = (FOLDER / "full.toml").read_text()
    assert studyfile.dump(studyfile.parse(text, catalogues=CATALOGUES, kinds=KINDS)) == text
