"""Markdown pages show every text as it is, whatever marks it holds."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from servetune.report import markdown, views
from servetune.report.document import Cell, Column, Table
from tests.unit.report import sample

_PARSER = MarkdownIt("commonmark", {"html": True, "linkify": False}).enable("table")


def page(name: str, drawings: dict[str, str] | None = None) -> str:
    """The page of one sample."""
    view = views.build(sample.everything()[name], study_toml="[study]\nname = 'x'\n")
    return markdown.page(view, drawings=drawings or {}, version="0.1.0")


def tokens(source: str) -> list[Token]:
    """All tokens of a page, inline ones as well."""
    found: list[Token] = []
    for token in _PARSER.parse(source):
        found += [token, *(token.children or [])]
    return found


def shown(source: str) -> str:
    """What a reader sees of one line of Markdown."""
    return "".join(token.content for token in tokens(source) if token.type in {"text", "text_special", "code_inline"})


@pytest.mark.parametrize(
    "value",
    [
        "plain words",
        "| a | b |",
        "`code` and ``more``",
        "<script>alert(1)</script>",
        "[x](javascript:alert(1)) ![i](http://127.0.0.1/x.png)",
        "# not a heading",
        "- not a list",
        "1. not a list",
        "2) neither",
        "> no quote",
        "+ none",
        "=== none",
        "---",
        "+98 % [+91 %, +105 %] of Q4_0 in cache_type_k",
        "[1](javascript:alert(1)) [2]: http://a [3][4]",
        "_a_b_ __c__",
        "*a* _b_ ~~c~~ \\ & &amp; $x$",
        "http://a.b www.a.b me@a.b",
    ],
)
def test_text_shows_as_it_is(value: str) -> None:
    """No mark of Markdown or HTML has an effect in a text, and nothing becomes a link by itself."""
    source = markdown.text(value)
    kinds = {token.type for token in tokens(source)}
    assert kinds <= {"paragraph_open", "inline", "text", "text_special", "paragraph_close"}
    assert shown(source) == value
    assert not re.search(r"https?:|www\.|\S@\S", source)


def test_lines_and_controls_are_made_visible() -> None:
    """One line stays one line, and a direction override shows as its code."""
    assert markdown.text("a\nb\u202e") == "a b\\\\u202e"


@pytest.mark.parametrize("code", ["plain", "```\nfence\n```", "a ````` b", "~~~", "</code>"])
def test_code_stays_inside_its_fence(code: str) -> None:
    """A fence is longer than any run of backticks in the code."""
    found = _PARSER.parse(markdown.fenced(code, "sh"))
    assert [(token.type, token.content) for token in found] == [("fence", f"{code}\n")]


def test_tables_keep_their_cells() -> None:
    """A bar in a cell does not make another cell; lines of a log are kept apart."""
    columns = (Column(title="a|b"), Column(title="n", number=True))
    rows = ((Cell(text="x|y\n`z`", code=True), Cell(text="1", tone="bad")), (Cell(text=""), Cell(text="", tone="bad")))
    source = markdown.table(Table(columns=columns, rows=rows))
    found = [token.type for token in _PARSER.parse(source)]
    assert found.count("td_open") == 4
    assert source.splitlines()[2] == "| x\\|y<br>\\`z\\` | **1** |"
    assert source.splitlines()[1] == "| --- | ---: |"


@pytest.mark.parametrize("name", sample.everything())
def test_pages_have_no_html_and_no_links(name: str) -> None:
    """The only HTML in any page is the line break inside a cell."""
    for token in tokens(page(name)):
        if token.type in {"html_inline", "html_block"}:
            assert token.content == "<br>"
        assert token.type not in {"link_open", "image"}


def test_charts_are_named_by_their_files() -> None:
    """A drawn chart is an image beside the page; without a drawing the page says how to get one."""
    with_charts = page("complete", {"steps": "<svg/>"})
    assert [token.attrs["src"] for token in tokens(with_charts) if token.type == "image"] == ["charts/steps.svg"]
    assert "pip install 'servetune\\[charts]'" in page("complete")


def test_the_verdict_comes_first() -> None:
    """Title, subtitle, then the verdict with its findings, before any section."""
    lines = page("complete").splitlines()
    verdict = next(number for number, line in enumerate(lines) if line.startswith("> **Verdict: "))
    assert verdict < next(number for number, line in enumerate(lines) if line.startswith("## "))
    assert lines[verdict + 2].startswith("> quality-not-checked: ")
