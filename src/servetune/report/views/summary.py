"""Sections at the top of the page: before and after over all workloads, and the charts.

Pure; the figures come from evidence.py, the drawings from charts.specs.
"""

from __future__ import annotations

from collections.abc import Mapping

from servetune import metrics
from servetune.records import Results
from servetune.report import evidence, formatting
from servetune.report.document import Cell, Column, Figure, Heading, Paragraph, Part, Section, Table, Tone
from servetune.report.phrases import Phrases


def before_after(results: Results, compared: evidence.Comparison, say: Phrases) -> Section:
    """Return baseline against recommended config on every workload: throughput and latency, with what got worse."""
    parts: list[Part] = [*_comparison(results, compared, say)]
    for barred in _given_up(results):
        title = say("compare.barred", label=say.config(barred.recommended))
        parts += [Heading(text=title), *_comparison(results, barred, say, after="barred")]
    return Section(name="before-after", title=say("compare.title"), parts=tuple(parts))


def _given_up(results: Results) -> list[evidence.Comparison]:
    """Barred configs that were launched afresh: the reader sees what was given up and why."""
    end = results.conclusion
    pairs = [evidence.comparison(results, end.baseline, verdict.config) for verdict in end.barred]
    return [pair for pair in pairs if pair.fresh and pair.recommended != end.recommended]


def _comparison(
    results: Results, compared: evidence.Comparison, say: Phrases, *, after: str = "recommended"
) -> list[Part]:
    """The table with its explanation; `after` says what the second config is: recommended or barred."""
    if not _measured(compared):
        return [Paragraph(text=say("compare.none"), tone="warn")]
    if compared.baseline == compared.recommended:
        same = Paragraph(text=say("compare.same", label=say.config(compared.baseline)))
        return [same, _one_sided(compared, say), *_not_measured(compared, say)]
    names = {"baseline": say.config(compared.baseline), "after": say.config(compared.recommended)}
    source = "compare.fresh" if compared.fresh else "compare.search"
    return [
        Paragraph(text=say(f"compare.intro-{after}", **names)),
        Paragraph(text=say(source), tone="muted" if compared.fresh else "warn"),
        _two_sided(compared, say, after),
        *_not_measured(compared, say),
        Paragraph(
            text=say("compare.mark", min_gain=formatting.percent(results.study.objective.min_gain)), tone="muted"
        ),
    ]


def _measured(compared: evidence.Comparison) -> list[evidence.MetricChange]:
    return [row for row in compared.rows if row.baseline is not None or row.recommended is not None]


def _not_measured(compared: evidence.Comparison, say: Phrases) -> list[Part]:
    """Which workloads the table leaves out, as nothing is known of them."""
    known = {row.workload for row in _measured(compared)}
    missing = [
        formatting.clip(name, 60) for name in dict.fromkeys(row.workload for row in compared.rows) if name not in known
    ]
    return [Paragraph(text=say("compare.not-measured", workloads=say.joined(missing)), tone="warn")] if missing else []


def _one_sided(compared: evidence.Comparison, say: Phrases) -> Table:
    columns = (
        Column(title=say("column.workload")),
        Column(title=say("column.metric")),
        Column(title=say("column.baseline"), number=True),
    )
    rows = tuple((*cells, Cell(text=formatting.figure(row.baseline))) for cells, row in _labelled(compared, say))
    return Table(columns=columns, rows=rows)


def _two_sided(compared: evidence.Comparison, say: Phrases, after: str) -> Table:
    columns = (
        Column(title=say("column.workload")),
        Column(title=say("column.metric")),
        Column(title=say("column.baseline"), number=True),
        Column(title=say(f"column.{after}"), number=True),
        Column(title=say("column.change"), number=True),
        Column(title=say("column.judged")),
    )
    rows = tuple((*cells, *_change_cells(row, say)) for cells, row in _labelled(compared, say))
    return Table(columns=columns, rows=rows)


def _labelled(compared: evidence.Comparison, say: Phrases) -> list[tuple[tuple[Cell, Cell], evidence.MetricChange]]:
    """Each row with its workload (named once) and metric."""
    labelled = []
    last = None
    for row in _measured(compared):
        name = "" if row.workload == last else formatting.clip(row.workload, 60)
        last = row.workload
        labelled.append(((Cell(text=name, tone="strong"), Cell(text=say.metric_title(row.metric))), row))
    return labelled


def _change_cells(row: evidence.MetricChange, say: Phrases) -> tuple[Cell, ...]:
    change = formatting.bracket(row.interval) if row.interval else formatting.change(row.change)
    tone, mark = _mark(row, say)
    return (
        Cell(text=formatting.figure(row.baseline)),
        Cell(text=formatting.figure(row.recommended)),
        Cell(text=change, tone=tone),
        Cell(text=mark, tone=tone),
    )


def _mark(row: evidence.MetricChange, say: Phrases) -> tuple[Tone, str]:
    if row.change is None:
        return "muted", ""
    if row.barred:
        return "bad", say("mark.exceeds")
    if row.worse:
        times = say("mark.worse-pairs", n=row.pairs_worse, all=row.pairs) if row.pairs else ""
        return "bad", say("mark.worse") + times
    improved = row.change > 0 if metrics.METRICS[row.metric].better == "higher" else row.change < 0
    return ("good", say("mark.better")) if improved else ("muted", say("mark.same"))


def charts(results: Results, specs: Mapping[str, object], say: Phrases) -> Section:
    """Return the charts that there is data for."""
    captions = {
        "before-after": say("chart.before-after.caption"),
        "steps": say("chart.steps.caption", metric=say.metric_title(results.study.objective.metric)),
        "trials": say("chart.trials.caption"),
    }
    figures = tuple(Figure(chart=name, caption=captions[name]) for name in specs)
    nothing = (Paragraph(text=say("chart.none"), tone="muted"),)
    return Section(name="charts", title=say("chart.title"), parts=figures or nothing)
