"""Charts are data first: what they show, that they can be drawn, and that a drawing is only shapes and text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from servetune.records import Config, Limits, Results
from servetune.report import views
from servetune.report.charts import specs, svg
from tests.unit.report import sample

needs_renderer = pytest.mark.skipif(not svg.available(), reason="vl-convert-python (extra charts) is not installed")


def charts(results: Results) -> dict[str, dict[str, Any]]:
    """The specifications of a study's charts."""
    return views.build(results, study_toml="").charts


def values(results: Results, name: str) -> list[dict[str, Any]]:
    """The data of one chart."""
    found: list[dict[str, Any]] = charts(results)[name]["data"]["values"]
    return found


def test_a_finished_study_has_three_charts() -> None:
    """Before and after, the path of steps, throughput against latency."""
    assert list(charts(sample.RESULTS)) == ["before-after", "steps", "trials"]
    assert charts(sample.empty()) == {}
    assert list(charts(sample.no_difference())) == ["steps", "trials"]


def test_bars_are_shares_of_the_baseline_with_the_interval_of_the_change() -> None:
    """The baseline is 100 %, the interval stands on the same scale, the label carries the figure itself."""
    before, after = values(sample.RESULTS, "before-after")[:2]
    assert (before["share"], after["low"], after["high"]) == (100.0, pytest.approx(191.0), pytest.approx(205.0))
    assert after["label"].replace("\u00a0", " ").endswith("· +98 % [+91 %, +105 %]")


def test_a_bar_without_an_interval_has_none() -> None:
    """A change without fresh pairs shows no whisker."""
    after = values(sample.unfinished(), "before-after")[1]
    assert "low" not in after


def test_the_path_follows_the_leaders() -> None:
    """One point of the line in each step; places spread the points of a step."""
    found = values(sample.RESULTS, "steps")
    assert [value["role"] for value in found if "leader" in value] == ["adopted", "adopted", "incumbent", "incumbent"]
    assert sorted({value["place"] for value in found if value["step"].startswith("1.")}) == [0.125, 0.375, 0.625, 0.875]


def test_long_titles_are_broken_into_three_short_lines() -> None:
    """Labels of an axis stay readable with any title."""
    step = msgspec.structs.replace(sample.STEPS[0], title="word " * 30)
    found = values(msgspec.structs.replace(sample.RESULTS, steps=(step,)), "steps")
    lines = found[0]["step"].split("\n")
    assert len(lines) == 3
    assert max(map(len, lines)) <= 18


def test_at_most_five_other_configs_are_named() -> None:
    """Twenty configs do not give twenty colours: the rest shares one name."""
    many = tuple(
        sample.trial(100 + number, Config(engine="mock", options={"seqs": number}), step="engine", block=0)
        for number in range(20)
    )
    results = msgspec.structs.replace(sample.RESULTS, trials=(*sample.RESULTS.trials, *many))
    names = {value["series"] for value in values(results, "trials")}
    assert len(names) == 8
    assert "other" in names
    assert sum(name.startswith(("baseline: ", "recommended: ")) for name in names) == 2


def test_a_legend_leaves_out_what_all_configs_share() -> None:
    """Options that are the same everywhere tell nothing apart; a lone config keeps its own."""
    trials = tuple(
        sample.trial(number, config, step="engine", block=0)
        for number, config in enumerate((sample.BASELINE, sample.Q4_0, sample.Q8_0), 1)
    )
    names = {value["series"] for value in values(msgspec.structs.replace(sample.RESULTS, trials=trials), "trials")}
    assert names == {"baseline: llamacpp F16", "llamacpp Q4_0", "llamacpp Q8_0"}
    alone = values(msgspec.structs.replace(sample.RESULTS, trials=trials[:1]), "trials")
    assert [value["series"] for value in alone] == ["baseline: llamacpp F16 threads=1"]


@pytest.mark.parametrize(("bound", "layers"), [(700.0, 2), (30000.0, 1)])
def test_a_limit_is_drawn_where_it_is_near(bound: float, layers: int) -> None:
    """A limit far beyond every figure would press the points together."""
    study = msgspec.structs.replace(sample.STUDY, limits=Limits(bounds={"p99_ttft_ms": bound}))
    found = charts(msgspec.structs.replace(sample.RESULTS, study=study))
    assert len(found["trials"]["layer"]) == layers


def test_data_never_becomes_an_expression_or_a_link() -> None:
    """The only expression is ours and constant; no link, image or signal is in any chart."""
    for spec in charts(sample.hostile()).values():
        found = dict(_settings(spec))
        assert not {"href", "url", "calculate", "signal", "expr", "test"} & found.keys()
        assert found.get("labelExpr", specs.LABEL_LINES) == specs.LABEL_LINES
        assert all(mark.get("type") != "image" for mark in (layer["mark"] for layer in spec["layer"]))


def _settings(part: object) -> Iterator[tuple[str, object]]:
    """Every key of a specification, at any depth, with its value."""
    if isinstance(part, dict):
        for name, inner in part.items():
            yield name, inner
            yield from _settings(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _settings(inner)


@needs_renderer
@pytest.mark.parametrize("name", [name for name in sample.everything() if name != "empty"])
def test_every_chart_can_be_drawn(name: str) -> None:
    """Drawings are inert SVG with their title as text."""
    for spec in charts(sample.everything()[name]).values():
        drawing = svg.draw(spec)
        assert drawing.startswith("<svg")
        for mark in ("<script", "<image", "<a ", "href", "style=", "onload", "foreignObject"):
            assert mark not in drawing


@needs_renderer
def test_drawings_show_labels_units_and_both_sides() -> None:
    """Axes are titled with their units, and the legend names both sides."""
    drawing = svg.draw(charts(sample.RESULTS)["before-after"])
    for text in ("Total throughput (tokens/s), % of the baseline's", "baseline", "recommended", "chat", "420.3"):
        assert f">{text}" in drawing.replace("\u00a0", " ")


@needs_renderer
def test_the_background_is_transparent() -> None:
    """The same drawing stands on a light and on a dark page."""
    drawing = svg.draw(charts(sample.RESULTS)["steps"])
    assert 'fill="white"' not in drawing
    assert specs.RECOMMENDED_COLOUR in drawing


HEAD = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'


@pytest.mark.parametrize(
    "content",
    [
        "<script>alert(1)</script>",
        "<image href='http://127.0.0.1/x.png'/>",
        "<g onclick='alert(1)'/>",
        "<a xlink:href='javascript:alert(1)'><text>x</text></a>",
        "<rect style='background:url(http://127.0.0.1/)'/>",
        "<rect fill='url(http://127.0.0.1/x)'/>",
        "<foreignObject><body xmlns='http://www.w3.org/1999/xhtml'>x</body></foreignObject>",
        "<x:script xmlns:x='http://www.w3.org/1999/xhtml'>alert(1)</x:script>",
        "<!-- alert(1) -->",
    ],
)
def test_whatever_is_not_a_shape_is_dropped(content: str) -> None:
    """Scripts, images, links, events, styles and foreign elements do not survive."""
    cleaned = svg.sanitised(f"{HEAD}{content}</svg>")
    for mark in ("alert", "127.0.0.1", "script", "xhtml", "style"):
        assert mark not in cleaned


def test_own_references_survive() -> None:
    """A clip path inside the drawing is kept; text stays escaped."""
    cleaned = svg.sanitised(f'{HEAD}<rect clip-path="url(#c)"/><text>&lt;b&gt;</text></svg>')
    assert 'clip-path="url(#c)"' in cleaned
    assert "&lt;b&gt;" in cleaned


@pytest.mark.parametrize(
    "text", ["<svg", "<html xmlns='http://www.w3.org/1999/xhtml'/>", '<!DOCTYPE svg [<!ENTITY a "b">]><svg/>']
)
def test_what_is_not_a_drawing_is_refused(text: str) -> None:
    """Broken XML, another document and a document type give an error, not a page."""
    with pytest.raises(ValueError, match="SVG"):
        svg.sanitised(text)
