"""The first lines of a report: the answer in one sentence, what it costs, and what a reader must know about it.

Pure. It words the Conclusion; it never decides.
"""

from __future__ import annotations

from collections import Counter

from servetune import metrics
from servetune.records import Interval, Record, Results, Verdict
from servetune.report import evidence, formatting
from servetune.report.document import Tone
from servetune.report.phrases import Phrases

_SAID_BY_LOSSES = ("latency-worse",)
"""Findings that the line of losses says with all its figures."""


class Headline(Record, frozen=True, kw_only=True):
    """The verdict box."""

    sentence: str
    tone: Tone
    notes: tuple[tuple[Tone, str], ...]
    """What must be known with it: findings, losses, what is missing."""


def headline(results: Results, compared: evidence.Comparison, say: Phrases) -> Headline:
    """Return the verdict in one sentence with its notes, most important first."""
    tone, sentence = _sentence(results, say)
    losses = _losses(results, compared, say)
    notes: list[tuple[Tone, str]] = []
    for finding in results.conclusion.findings:
        if finding.severity != "note" and not (losses and finding.code in _SAID_BY_LOSSES):
            line = _finding_line(finding.code, finding.evidence, finding.advice)
            notes.append(("bad" if finding.severity == "bars" else "warn", line))
    notes += [("bad", line) for line in losses]
    notes += [("warn", line) for line in _barred_notes(results, say)]
    notes += [("warn", line) for line in missing_parts(results, say)]
    return Headline(sentence=sentence, tone=tone, notes=tuple(notes))


def _finding_line(code: str, evidence_text: str, advice: str) -> str:
    return f"{code}: {evidence_text}" + (f" ({advice})" if advice else "")


def _sentence(results: Results, say: Phrases) -> tuple[Tone, str]:
    end = results.conclusion
    if not evidence.measured_trials(results):
        return _nothing_measured(results, say)
    if not end.finished:
        return "warn", _unfinished(results, say)
    if not end.limits_met:
        return "bad", say("verdict.no-limits", limits=limits_line(results, say), baseline=say.config(end.baseline))
    if end.recommended == end.baseline:
        return ("warn", _barred(results, say)) if end.barred else ("", _no_difference(results, say))
    return _winner(results, say)


def _nothing_measured(results: Results, say: Phrases) -> tuple[Tone, str]:
    failed = evidence.failed_trials(results)
    if not failed:
        return "warn", say("verdict.empty")
    causes = Counter(outcome.cause for _, outcome in failed)
    named = say.joined([f"{formatting.clip(cause, 40)} {number}" for cause, number in causes.most_common()])
    return "bad", say("verdict.all-failed", launches=say.counted("launches", len(failed)), causes=named)


def _unfinished(results: Results, say: Phrases) -> str:
    end = results.conclusion
    steps = say.counted("steps", sum(step.finished for step in results.steps))
    if end.gain is not None and end.recommended != end.baseline:
        made = claim(results, _published(results, end.gain), say)
        return say("verdict.unfinished-gain", claim=made, steps=steps)
    if end.recommended != end.baseline:
        return say("verdict.unfinished-leads", label=say.config(end.recommended), steps=steps)
    return say("verdict.unfinished-baseline", label=say.config(end.baseline), steps=steps)


def _barred(results: Results, say: Phrases) -> str:
    """The baseline stays although another config gained: the first that was barred is named."""
    first = results.conclusion.barred[0]
    reason = formatting.clip(first.reason, 200) or say("verdict.no-reason")
    return say(
        "verdict.barred",
        claim=claim(results, first, say),
        reason=reason,
        recommended=say.config(results.conclusion.baseline),
    )


def _no_difference(results: Results, say: Phrases) -> str:
    end, objective = results.conclusion, results.study.objective
    return say(
        "verdict.no-difference",
        better=_better(objective.metric, say),
        workload=formatting.clip(evidence.objective_workload(results), 60),
        min_gain=formatting.percent(objective.min_gain),
        baseline=say.config(end.baseline),
        confidence=formatting.percent(objective.confidence),
    )


def _winner(results: Results, say: Phrases) -> tuple[Tone, str]:
    end = results.conclusion
    names = {"label": say.config(end.recommended), "baseline": say.config(end.baseline)}
    if end.gain is None:
        is_measured = any(trial.config == end.baseline for trial in evidence.measured_trials(results))
        return "warn", say("verdict.not-confirmed" if is_measured else "verdict.no-baseline", **names)
    published = _published(results, end.gain)
    if end.kind == "better":
        return "good", say("verdict.better", claim=claim(results, published, say))
    found = gain_evidence(results, end.gain, say.counted("pairs", published.repeats), say)
    return "warn", say("verdict.not-shown", kind=_sentence_case(say.word("kind", end.kind)), evidence=found, **names)


def _sentence_case(words: str) -> str:
    return words[:1].upper() + words[1:]


def _published(results: Results, gain: Interval) -> Verdict:
    """The published gain in the form of a verdict."""
    end, on = results.conclusion, evidence.objective_workload(results)
    pairs = next((change.repeats for change in end.changes if change.workload == on), 0)
    return Verdict(config=end.recommended, against=end.baseline, kind=end.kind, gain=gain, repeats=pairs)


def claim(results: Results, verdict: Verdict, say: Phrases) -> str:
    """Return 'X serves chat with 98 % more tokens/s than the baseline F16 (interval ..., 95 %, 5 pairs)'.

    A verdict without a gain gives the config's label alone.
    """
    if verdict.gain is None:
        return say.config(verdict.config)
    metric, is_baseline = results.study.objective.metric, verdict.against == results.conclusion.baseline
    change = evidence.plain_change(verdict.gain, metric)
    is_fresh = is_baseline and evidence.fresh_pairs(results, verdict.against, verdict.config) > 0
    return say(
        "claim",
        label=say.config(verdict.config),
        workload=formatting.clip(evidence.objective_workload(results), 60),
        change=formatting.percent(abs(change.estimate), decimals=formatting.decimals_of(change)),
        better=_direction(metric, say, up=change.estimate > 0),
        against=say("against.baseline" if is_baseline else "against.other", label=say.config(verdict.against)),
        evidence=gain_evidence(
            results, verdict.gain, say.counted("pairs" if is_fresh else "pairs-search", verdict.repeats), say
        ),
    )


def gain_evidence(results: Results, gain: Interval, counted: str, say: Phrases) -> str:
    """Return the interval of the metric's change, its confidence, and what it rests on (`counted`, in words)."""
    change = evidence.plain_change(gain, results.study.objective.metric)
    return say(
        "evidence",
        interval=formatting.interval(change, to=say("to")),
        confidence=formatting.percent(gain.confidence),
        pairs=counted,
    )


def _better(metric: str, say: Phrases) -> str:
    return _direction(metric, say, up=metrics.METRICS[metric].better == "higher")


def _direction(metric: str, say: Phrases, *, up: bool) -> str:
    word = "more" if up else "less"
    return say.either(f"{word}.{metric}", word, metric=say.metric(metric))


def _losses(results: Results, compared: evidence.Comparison, say: Phrases) -> list[str]:
    """One line naming every figure of the before/after table that got worse."""
    if results.conclusion.recommended == results.conclusion.baseline:
        return []
    worse = [
        say(
            "loss",
            metric=say.metric(row.metric),
            workload=formatting.clip(row.workload, 40),
            change=formatting.change(row.change),
        )
        for row in compared.rows
        if row.worse
    ]
    return [say("losses", losses=say.joined(worse))] if worse else []


def _barred_notes(results: Results, say: Phrases) -> list[str]:
    """Configs that gained but may not win, beside the one that the sentence may speak of."""
    end = results.conclusion
    is_said = end.finished and end.limits_met and end.recommended == end.baseline
    return [
        say(
            "barred.note",
            label=say.config(verdict.config),
            against=say.config(verdict.against),
            gain=formatting.bracket(verdict.gain),
            reason=formatting.clip(verdict.reason, 200) or say("verdict.no-reason"),
        )
        for verdict in end.barred[1 if is_said else 0 :][:4]
    ]


def missing_parts(results: Results, say: Phrases) -> list[str]:
    """Return what an unfinished study still lacks, or why a finished one ended early; one line each."""
    end = results.conclusion
    if end.finished:
        return [say("stopped.early", reason=formatting.clip(end.stop_reason, 200))] if end.stop_reason else []
    lines = [say("missing.stopped", reason=formatting.clip(end.stop_reason, 200))] if end.stop_reason else []
    open_steps = [formatting.clip(step.title, 60) for step in results.steps if not step.finished]
    if open_steps:
        lines.append(say("missing.steps", steps=say.joined(open_steps)))
    if end.gain is None:
        lines.append(say("missing.validation"))
    lines.append(say("missing.resume"))
    return lines


def limits_line(results: Results, say: Phrases) -> str:
    """Return the study's limits in one line."""
    items = [limit(name, bound, say) for name, bound in sorted(results.study.limits.bounds.items())]
    items.append(say("limit.max-loss", bound=formatting.percent(results.study.limits.max_loss)))
    return say.joined(items, most=12)


def limit(name: str, bound: float, say: Phrases) -> str:
    """Return one limit: the metric, the side of the bound, the bound with its unit."""
    known = metrics.METRICS.get(name)
    side = "≥" if known and known.better == "higher" else "≤"
    unit = known.unit or "fraction" if known else ""
    return f"{say.metric(name)} {side} {formatting.amount(bound, unit)}"
