"""The HTML page stands alone: no script, no link out, a policy that allows its own style sheet only."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from servetune.report import html, views
from tests.unit.report import sample

_VOID = {"meta", "br", "link", "img", "hr", "input"}


class _Reader(HTMLParser):
    """Collects elements, checks that they nest, and keeps the text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page(name: str, drawings: dict[str, str] | None = None) -> str:
    """The page of one sample."""
    view = views.build(sample.everything()[name], study_toml='[study]\nname = "</pre><script>"\n')
    return html.page(view, drawings=drawings or {}, version="0.1.0")


def read(source: str) -> _Reader:
    """The page's elements; raises AssertionError where they do not nest."""
    reader = _Reader()
    reader.feed(source)
    reader.close()
    assert not reader.open
    return reader


@pytest.mark.parametrize("name", sample.everything())
def test_pages_are_inert_and_complete(name: str) -> None:
    """Elements nest; none runs, loads or leads anywhere, whatever the study's texts say."""
    reader = read(page(name))
    tags = {tag for tag, _ in reader.elements}
    assert not tags & {"script", "img", "iframe", "object", "embed", "link", "form", "base", "video", "audio"}
    for tag, attributes in reader.elements:
        assert not [key for key in attributes if key.startswith("on") or key in {"src", "style", "srcset", "action"}]
        if "href" in attributes:
            assert tag == "a"
            assert re.fullmatch(r"#[a-z-]+", attributes["href"] or "")


def test_hostile_text_is_still_text() -> None:
    """The reader sees the tags as they were written."""
    text = "".join(read(page("hostile")).text)
    assert "<script>alert('x')</script>" in text
    assert "\\u202eabc" in text
    assert "\u202e" not in text


def test_the_policy_allows_the_style_sheet_alone() -> None:
    """The hash in the policy is the hash of the one style element."""
    source = page("complete")
    style = re.search(r"<style>(.*?)</style>", source, re.DOTALL)
    assert style
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policies = [
        attributes["content"]
        for tag, attributes in read(source).elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policies == [f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"]


def test_the_style_sheet_serves_light_dark_paper_and_phones() -> None:
    """All four are there, and nothing is fetched."""
    source = page("complete")
    for rule in ("prefers-color-scheme: dark", "@media print", "max-width: 40rem", "overflow-x: auto"):
        assert rule in source
    assert "url(" not in source
    assert "@import" not in source


def test_the_verdict_comes_before_everything() -> None:
    """The answer, its findings, then the command, then the way to the rest."""
    source = page("complete")
    places = [source.index(f'id="{name}"') for name in ("verdict", "command", "before-after", "charts", "steps", "raw")]
    assert places == sorted(places)
    assert source.index("quality-not-checked") < places[1]


def test_drawings_are_inlined_and_their_absence_is_explained() -> None:
    """A chart that could be drawn is in the page; for another one there is a line saying how to get it."""
    source = page("complete", {"steps": "<svg><text>drawn</text></svg>"})
    assert "<svg><text>drawn</text></svg>" in source
    assert source.count("pip install &#39;servetune[charts]&#39;") == 2


def test_raw_results_are_folded() -> None:
    """One closed fold a launch, with its command and blocks."""
    reader = read(page("complete"))
    assert [attributes for tag, attributes in reader.elements if tag == "details"] == [{}] * len(sample.RESULTS.trials)
