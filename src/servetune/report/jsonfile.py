"""Writes a report for programs: the Results as they are, and every derived figure with its unit and definition.

The form is versioned in `schema`; a field is never given another meaning under the same version.
"""

from __future__ import annotations

from typing import Any

import msgspec

from servetune import metrics, space
from servetune.records import Config, Results
from servetune.report import evidence
from servetune.report.phrases import Phrases
from servetune.report.views import ReportView

SCHEMA = "servetune.report/1"


def page(results: Results, view: ReportView, *, version: str, say: Phrases | None = None) -> bytes:
    """Return the report as UTF-8 JSON, indented, with a newline at its end."""
    derived = {
        "schema": SCHEMA,
        "servetune": version,
        "verdict": _verdict(results, view),
        "metrics": _metrics(results, say or Phrases()),
        "comparison": {"fresh": view.comparison.fresh, "rows": [_row(row) for row in view.comparison.rows]},
        "steps": [_candidate(candidate) for candidate in view.candidates],
        "points": {
            "latency": evidence.latency_axis(results),
            "throughput": evidence.throughput_axis(results),
            "trials": [_point(point) for point in view.points],
        },
        "results": results,
    }
    return msgspec.json.format(msgspec.json.encode(derived), indent=1) + b"\n"


def _verdict(results: Results, view: ReportView) -> dict[str, Any]:
    end = results.conclusion
    return {
        "sentence": view.headline.sentence,
        "notes": [note for _, note in view.headline.notes],
        "kind": end.kind,
        "finished": end.finished,
        "limits_met": end.limits_met,
        "baseline": _config(end.baseline),
        "recommended": _config(end.recommended),
        "gain": end.gain,
    }


def _config(config: Config) -> dict[str, str]:
    return {"label": space.label(config), "fingerprint": space.fingerprint(config)}


def _metrics(results: Results, say: Phrases) -> dict[str, dict[str, str]]:
    """Unit, direction and definition of every metric that a derived figure names."""
    named = {results.study.objective.metric, "output_throughput", *evidence.LATENCIES, *results.study.limits.bounds}
    named |= {evidence.latency_axis(results), evidence.throughput_axis(results)}
    known = {name: metrics.METRICS[name] for name in sorted(named) if name in metrics.METRICS}
    return {
        name: {
            "label": say.metric(name),
            "unit": metric.unit,
            "better": metric.better,
            "definition": definition(name, say),
        }
        for name, metric in known.items()
    }


def definition(metric: str, say: Phrases) -> str:
    """Return the definition of a metric (`p99_ttft_ms` is a statistic of ttft); "" where there is none."""
    stem = metric.removesuffix("_ms").split("_")[-1] if metric.endswith("_ms") else metric
    key = f"definition.{stem}"
    found = say.word("definition", stem)
    return "" if found == stem else say(key)


def _row(row: evidence.MetricChange) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__}


def _candidate(candidate: evidence.Candidate) -> dict[str, Any]:
    fields = {name: getattr(candidate, name) for name in candidate.__struct_fields__}
    return {**fields, "config": _config(candidate.config)}


def _point(point: evidence.TrialPoint) -> dict[str, Any]:
    return {
        "trial": point.trial,
        "config": point.config_key,
        "side": point.side,
        "latency": point.latency,
        "throughput": point.throughput,
    }
