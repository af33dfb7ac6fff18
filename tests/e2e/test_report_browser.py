"""The HTML report in a real browser, opened from its file: a silent console, no network, no overflow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from servetune import report
from tests.e2e.browser import Browser, browser, executable
from tests.unit.report import sample

pytestmark = pytest.mark.browser

WIDTHS = (1280, 390)
CASES = ("complete", "hostile", "unfinished", "empty")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser; without one the tests are skipped, or fail where SERVETUNE_REQUIRE_BROWSER is 1."""
    program = executable()
    if program is None:
        reason = "no Chromium on PATH"
        if os.environ.get("SERVETUNE_REQUIRE_BROWSER") == "1":
            pytest.fail(f"{reason}, and SERVETUNE_REQUIRE_BROWSER=1 demands it")
        pytest.skip(reason)
    with browser(program, tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Written reports by the name of their sample."""
    paths = {}
    for name in CASES:
        folder = tmp_path_factory.mktemp(name)
        report.write(sample.everything()[name], folder)
        paths[name] = folder / "report.html"
    return paths


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_report_opens_without_a_word_or_a_request(
    page: Browser, reports: dict[str, Path], *, name: str, width: int, dark: bool
) -> None:
    """Nothing on the console, nothing asked of the network, no overflow; also with every fold open."""
    page.open(reports[name], width=width, dark=dark)
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true })")
    widest = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert widest <= 0, "the page scrolls sideways"
    assert page.said("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown") == []
    asked = [event["request"]["url"] for event in page.said("Network.requestWillBeSent")]
    assert asked == [reports[name].as_uri()]


def test_the_verdict_is_the_first_thing_seen(page: Browser, reports: dict[str, Path]) -> None:
    """On a phone the whole sentence stands in the first screen."""
    page.open(reports["complete"], width=390)
    bottom = page.evaluate("document.querySelector('.sentence').getBoundingClientRect().bottom")
    assert 0 < bottom < 900


def test_colours_follow_the_system(page: Browser, reports: dict[str, Path]) -> None:
    """Light and dark pages differ, so the style sheet passed the page's own policy."""
    seen = []
    for dark in (False, True):
        page.open(reports["complete"], width=1280, dark=dark)
        seen.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert seen == ["rgb(255, 255, 255)", "rgb(20, 23, 26)"]


def test_hostile_text_runs_nothing(page: Browser, reports: dict[str, Path]) -> None:
    """No element of the page comes from a study's text, and every link leads inside the page."""
    page.open(reports["hostile"], width=1280)
    assert page.evaluate("document.querySelectorAll('script, img, iframe, object, form').length") == 0
    assert page.evaluate("[...document.links].every(link => link.getAttribute('href').startsWith('#'))")


def test_a_page_that_misbehaves_would_be_caught(page: Browser, tmp_path: Path) -> None:
    """The three checks see an error, a request and an overflow where there are some."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!DOCTYPE html><p style='width: 3000px'>x</p><img src='missing.png'><script>throw new Error('x')</script>"
    )
    page.open(bad, width=390)
    assert page.said("Runtime.exceptionThrown")
    assert len(page.said("Network.requestWillBeSent")) == 2
    assert page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
