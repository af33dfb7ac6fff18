"""Vega-Lite specifications of the report's charts, as plain data.

Pure. Data from a study enters only as values of our own field names: no expression, link or image is made from it.
Colours are of middle lightness and the background is transparent, so that one drawing serves light and dark pages.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from servetune import space
from servetune.records import Config, OptionValue, Results
from servetune.report import evidence, formatting
from servetune.report.phrases import Phrases

Spec = dict[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
BASELINE_COLOUR = "#8a8f98"
RECOMMENDED_COLOUR = "#1f8a70"
TRIED_COLOUR = "#c27c2c"
LIMIT_COLOUR = "#c8553d"
INK = "#7d828a"
GRID = "#7d828a"
_PALETTE = ("#c27c2c", "#5b7fc7", "#a8609c", "#4f9fb0", "#9a8a3a")
"""For the configs beside baseline and recommended that have a name of their own; the rest share one."""
_SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "triangle-right", "triangle-left")
_LEGEND: Spec = {"title": None, "orient": "bottom", "columns": 2, "labelLimit": 360, "offset": 14, "columnPadding": 36}
LABEL_LINES = "split(datum.label, '\\n')"
"""The only expression in any chart, and constant: it breaks a label at the line ends that _lines put in."""
_WIDTH = 600
_STEP_WIDTH = 130


def charts(
    results: Results,
    compared: evidence.Comparison,
    *,
    candidates: Sequence[evidence.Candidate],
    points: Sequence[evidence.TrialPoint],
    say: Phrases,
) -> dict[str, Spec]:
    """Return every chart that has data, by name, in the order of the page."""
    made = {
        "before-after": before_after(results, compared, say),
        "steps": step_path(results, candidates, say),
        "trials": trade_off(results, points, say),
    }
    return {name: spec for name, spec in made.items() if spec}


def before_after(results: Results, compared: evidence.Comparison, say: Phrases) -> Spec | None:
    """Return bars of the objective's metric by workload, as a share of the baseline, with the change's interval.

    Shares put workloads of very different rates on one scale; the figures themselves stand beside the bars.
    """
    metric = results.study.objective.metric
    rows = [row for row in compared.rows if row.metric == metric and row.baseline and row.recommended is not None]
    values = [bar for row in rows for bar in _bars(row, say)]
    if not values:
        return None
    sides = [say("side.baseline"), say("side.recommended")]
    title = say("chart.share", metric=say.metric_title(metric))
    length = {**_x("share", title), "scale": {"domain": [0, max(bar["edge"] for bar in values) * 1.5], "nice": False}}
    encoding: Spec = {
        "y": _nominal("workload", [formatting.clip(row.workload, 28) for row in rows]),
        "yOffset": {"field": "side", "type": "nominal", "sort": sides, "scale": {"paddingInner": 0.12}},
    }
    layers = [
        {
            "mark": {"type": "bar", "cornerRadiusEnd": 2},
            "encoding": {"x": length, "color": _colour("side", sides, [BASELINE_COLOUR, RECOMMENDED_COLOUR])},
        },
        _error_bar("x", title),
        {
            "mark": {"type": "text", "align": "left", "dx": 7},
            "encoding": {"x": _x("edge", title), "text": {"field": "label", "type": "nominal"}},
        },
    ]
    return _spec(say("chart.before-after.title"), values, encoding, layers, height={"step": 22})


def _bars(row: evidence.MetricChange, say: Phrases) -> list[Spec]:
    """Two bars: the baseline's, which is 100 %, and the recommended config's."""
    assert row.baseline is not None and row.recommended is not None  # noqa: PT018 - chosen by before_after
    share = 100 * row.recommended / row.baseline
    change = formatting.bracket(row.interval) if row.interval else formatting.change(row.change)
    after = _bar(row.workload, say("side.recommended"), share, f"{formatting.figure(row.recommended)} · {change}")
    if row.interval:
        low, high = 100 * (1 + row.interval.low), 100 * (1 + row.interval.high)
        after |= {"low": low, "high": high, "edge": max(high, share)}
    return [_bar(row.workload, say("side.baseline"), 100.0, formatting.figure(row.baseline)), after]


def _bar(workload: str, side: str, share: float, label: str) -> Spec:
    return {"workload": formatting.clip(workload, 28), "side": side, "share": share, "edge": share, "label": label}


def step_path(results: Results, candidates: Sequence[evidence.Candidate], say: Phrases) -> Spec | None:
    """Return the objective's metric along the steps: the leaders as a line, each candidate with its interval."""
    if not candidates:
        return None
    titles = {step.name: _lines(f"{number}. {step.title}") for number, step in enumerate(results.steps, 1)}
    values = _spread_out([_step_point(point, titles[point.step], say) for point in candidates])
    title = say.metric_title(results.study.objective.metric)
    roles = [say("chart.incumbent"), say("chart.adopted"), say("chart.tried")]
    place = {"field": "place", "type": "quantitative", "scale": {"domain": [-0.25, 1.25]}}
    axis = {"labelAngle": 0, "labelExpr": LABEL_LINES, "labelLimit": _STEP_WIDTH}
    encoding: Spec = {"x": {**_nominal("step", list(titles.values())), "axis": axis}, "xOffset": place}
    height = {"field": "value", "type": "quantitative", "title": title, "scale": {"zero": False, "nice": True}}
    layers = [
        {
            "mark": {"type": "line", "color": RECOMMENDED_COLOUR, "opacity": 0.5, "strokeWidth": 2},
            "transform": [{"filter": {"field": "leader", "valid": True}}],
            "encoding": {"y": {**height, "field": "leader"}},
        },
        _error_bar("y", title),
        {
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
            "encoding": {
                "y": height,
                "color": _colour("role", roles, [BASELINE_COLOUR, RECOMMENDED_COLOUR, TRIED_COLOUR]),
                "shape": _shape("role", roles),
            },
        },
    ]
    width = max(_WIDTH, _STEP_WIDTH * len(titles))
    return _spec(say("chart.steps.title"), values, encoding, layers, width=width, height=260)


def _lines(title: str) -> str:
    """A title in at most three short lines, for the label of an axis."""
    lines = textwrap.wrap(formatting.clip(title, 60), 18, break_long_words=True)
    return "\n".join([*lines[:2], formatting.clip(" ".join(lines[2:]), 18)] if len(lines) > 2 else lines)


def _step_point(point: evidence.Candidate, title: str, say: Phrases) -> Spec:
    role = say(f"chart.{point.role}")
    value: Spec = {"step": title, "role": role, "value": point.value}
    if point.leads:
        value["leader"] = point.value
    if point.low is not None and point.high is not None:
        value |= {"low": point.low, "high": point.high}
    return value


def _spread_out(values: list[Spec]) -> list[Spec]:
    """Give the points of one step places from 0 to 1, so that their intervals do not cover each other."""
    by_step: dict[str, list[Spec]] = {}
    for value in values:
        by_step.setdefault(value["step"], []).append(value)
    return [
        {**value, "place": (index + 0.5) / len(group)}
        for group in by_step.values()
        for index, value in enumerate(group)
    ]


def trade_off(results: Results, points: Sequence[evidence.TrialPoint], say: Phrases) -> Spec | None:
    """Return throughput against latency, one point a trial; the most used configs have a colour of their own."""
    if not points:
        return None
    across, up = evidence.latency_axis(results), evidence.throughput_axis(results)
    series = _series(points, say)
    values = [
        {
            "latency": point.latency,
            "throughput": point.throughput,
            "trial": point.trial,
            "series": series[point.config_key][0],
        }
        for point in points
    ]
    colours = dict(series.values())
    encoding: Spec = {
        "x": {"field": "latency", "type": "quantitative", "title": say.metric_title(across), "scale": {"zero": False}},
        "y": {"field": "throughput", "type": "quantitative", "title": say.metric_title(up), "scale": {"zero": False}},
        "color": _colour("series", list(colours), list(colours.values())),
        "shape": _shape("series", list(colours)),
    }
    points_layer = {"mark": {"type": "point", "filled": True, "size": 70, "opacity": 0.85}, "encoding": encoding}
    layers: list[Spec] = [points_layer, *_limit_rule(results.study.limits.bounds.get(across), points)]
    return _spec(say("chart.trials.title"), values, {}, layers, height=300)


def _limit_rule(bound: float | None, points: Sequence[evidence.TrialPoint]) -> list[Spec]:
    """A dashed line at the limit, unless it lies so far off that it would press the points together."""
    if bound is None or bound > 2 * max(point.latency for point in points):
        return []
    mark = {"type": "rule", "strokeDash": [5, 4], "color": LIMIT_COLOUR, "size": 1.5}
    return [{"mark": mark, "encoding": {"x": {"datum": bound}}}]


def _series(points: Iterable[evidence.TrialPoint], say: Phrases) -> dict[str, tuple[str, str]]:
    """Name and colour of each config: baseline and recommended first, then those of the highest throughput."""
    best: dict[str, evidence.TrialPoint] = {}
    for point in sorted(points, key=lambda point: -point.throughput):
        best.setdefault(point.config_key, point)
    names = _names({key: point.config for key, point in best.items()})
    series: dict[str, tuple[str, str]] = {}
    for side, colour in (("baseline", BASELINE_COLOUR), ("recommended", RECOMMENDED_COLOUR)):
        for key, point in best.items():
            if point.side == side:
                series[key] = (say("chart.side", side=say(f"side.{side}"), label=names[key]), colour)
    others = [key for key in best if key not in series]
    for key, colour in zip(others, _PALETTE, strict=False):
        series[key] = (names[key], colour)
    for key in others[len(_PALETTE) :]:
        series[key] = (say("side.other"), GRID)
    return series


def _names(configs: Mapping[str, Config]) -> dict[str, str]:
    """Labels without the options that are the same in all configs: a legend is short of room."""
    options = [config.options.items() for config in configs.values()]
    shared = set(options[0]).intersection(*options[1:]) if len(options) > 1 else set()
    return {key: _name(config, shared) for key, config in configs.items()}


def _name(config: Config, shared: Collection[tuple[str, OptionValue]]) -> str:
    own = {name: value for name, value in config.options.items() if (name, value) not in shared}
    return formatting.clip(space.label(msgspec.structs.replace(config, options=own)), 44)


def _x(field: str, title: str) -> Spec:
    return {"field": field, "type": "quantitative", "title": title}


def _nominal(field: str, order: Sequence[str]) -> Spec:
    return {"field": field, "type": "nominal", "sort": list(dict.fromkeys(order)), "title": None}


def _colour(field: str, order: Sequence[str], colours: Sequence[str]) -> Spec:
    scale = {"domain": list(order), "range": list(colours)}
    return {"field": field, "type": "nominal", "scale": scale, "legend": _LEGEND}


def _shape(field: str, order: Sequence[str]) -> Spec:
    """Shapes beside colours, for readers who see no difference of colour; both share one legend."""
    shapes = [_SHAPES[index % len(_SHAPES)] for index in range(len(order))]
    return {"field": field, "type": "nominal", "scale": {"domain": list(order), "range": shapes}, "legend": _LEGEND}


def _error_bar(along: str, title: str) -> Spec:
    """A rule from low to high with end ticks, where there is an interval."""
    ends: Spec = {along: _x("low", title), f"{along}2": {"field": "high"}}
    mark = {"type": "errorbar", "ticks": {"size": 8}, "color": INK, "thickness": 1.5}
    return {"mark": mark, "transform": [{"filter": {"field": "low", "valid": True}}], "encoding": ends}


def _spec(title: str, values: list[Spec], encoding: Spec, layers: list[Spec], **size: Any) -> Spec:
    return {
        "$schema": SCHEMA,
        "title": title,
        "background": None,
        "width": _WIDTH,
        **size,
        "data": {"values": values},
        **({"encoding": encoding} if encoding else {}),
        "layer": layers,
        "config": _CONFIG,
    }


_CONFIG: Spec = {
    "font": "Helvetica, Arial, sans-serif",
    "title": {"color": INK, "fontSize": 14, "fontWeight": 600, "anchor": "start", "offset": 12},
    "axis": {
        "labelColor": INK,
        "titleColor": INK,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": 500,
        "gridColor": GRID,
        "gridOpacity": 0.22,
        "domainColor": GRID,
        "tickColor": GRID,
        "labelLimit": 240,
        "tickCount": 6,
    },
    "legend": {"labelColor": INK, "titleColor": INK, "labelFontSize": 12},
    "text": {"color": INK, "fontSize": 12},
    "view": {"stroke": None},
}
