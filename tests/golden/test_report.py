"""What users see of a report, word for word. After a wanted change: python -m tests.golden.test_report"""

from __future__ import annotations

from pathlib import Path

import pytest

from servetune import studyfile
from servetune.engines.base import CAUSES
from servetune.report import markdown, views
from tests.unit.report import sample

_FOLDER = Path(__file__).parent / "report"
_NAMES = ("complete", "barred", "unfinished", "all-failed")


def page(name: str) -> str:
    """The Markdown page of one sample, without drawings, so that it does not depend on extras."""
    results = sample.everything()[name]
    view = views.build(results, study_toml=studyfile.dump(results.study), causes=CAUSES)
    return markdown.page(view, drawings={}, version="0.1.0")


@pytest.mark.parametrize("name", _NAMES)
def test_the_page_is_word_for_word_as_agreed(name: str) -> None:
    """Any change of a report's words, order or digits is seen and wanted."""
    assert page(name) == (_FOLDER / f"{name}.md").read_text(encoding="utf-8")


if __name__ == "__main__":
    for each in _NAMES:
        (_FOLDER / f"{each}.md").write_text(page(each), encoding="utf-8")
