"""Results -> ReportView: everything that a report says, as values of text and numbers.

Pure: the same Results give the same view, in any place and at any time. It knows no file, no HTML and no Markdown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servetune.records import Record, Results
from servetune.report import evidence, formatting
from servetune.report.charts import specs
from servetune.report.document import Code, Section
from servetune.report.phrases import Phrases
from servetune.report.views import method, search, summary, trials, verdict


class ReportView(Record, frozen=True, kw_only=True):
    """One report, ready to be printed in any format."""

    title: str
    subtitle: str
    headline: verdict.Headline
    sections: tuple[Section, ...]
    charts: dict[str, dict[str, Any]]
    """Vega-Lite specifications by name."""
    comparison: evidence.Comparison
    candidates: tuple[evidence.Candidate, ...]
    points: tuple[evidence.TrialPoint, ...]


def build(
    results: Results,
    *,
    study_toml: str,
    causes: Mapping[str, str] | None = None,
    defaults: search.Defaults | None = None,
    say: Phrases | None = None,
) -> ReportView:
    """Return the view of `results`.

    `study_toml` is the study file as used, `causes` explains the codes of failures, `defaults` are the engines'
    own values of options, `say` is the language.
    """
    say = (say or Phrases()).about(results.study.engines)
    compared = evidence.comparison(results, results.conclusion.baseline, results.conclusion.recommended)
    candidates, points = evidence.candidates(results), evidence.trial_points(results)
    charts = specs.charts(results, compared, candidates=candidates, points=points, say=say)
    sections = (
        trials.command(results, say),
        summary.before_after(results, compared, say),
        summary.charts(results, charts, say),
        search.steps(results, say),
        search.failures(results, dict(causes or {}), say),
        search.validation(results, say),
        search.findings(results, say),
        method.method(results, say),
        method.environment(results, say),
        search.not_tried(results, say, defaults or {}),
        trials.trials(results, say),
        trials.raw(results, say),
        Section(name="study", title=say("study.title"), parts=(Code(text=study_toml.rstrip("\n"), language="toml"),)),
    )
    return ReportView(
        title=say("title", name=formatting.clip(results.study.name, 120)),
        subtitle=_subtitle(results, say),
        headline=verdict.headline(results, compared, say),
        sections=sections,
        charts=charts,
        comparison=compared,
        candidates=candidates,
        points=points,
    )


def _subtitle(results: Results, say: Phrases) -> str:
    where = say("subtitle.host", name=formatting.clip(results.host.hostname, 80)) if results.host else ""
    failed = len(evidence.failed_trials(results))
    started = min((trial.started_at for trial in results.trials if trial.started_at), default="")
    return say(
        "subtitle",
        model=formatting.clip(results.study.model, 120),
        host=where,
        launches=say.counted("launches", len(results.trials)),
        failed=say.counted("failed", failed) if failed else say("failed.none"),
        duration=formatting.duration(results.elapsed_s),
        date=say("subtitle.date", date=started[:10]) if started else "",
    )
