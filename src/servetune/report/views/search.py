"""Sections about the search: what each step gave, what failed, the validation, findings, what was not tried.

Pure; it words what the Results hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from servetune import space
from servetune.records import Config, Finding, OptionValue, Record, Results, StepResult, Verdict
from servetune.report import evidence, formatting
from servetune.report.document import Bullets, Cell, Column, Paragraph, Part, Section, Table, Tone
from servetune.report.phrases import Phrases

_KIND_TONES: dict[str, Tone] = {"better": "good", "worse": "bad", "invalid": "bad"}
_SEVERITY_TONES: dict[str, Tone] = {"bars": "bad", "warning": "warn", "note": "muted"}
_MOST_TRIALS = 12
"""Trial numbers shown for one failure or finding."""


Defaults = Mapping[str, Mapping[str, OptionValue | None]]
"""Engine -> option -> the engine's own default."""


def steps(results: Results, say: Phrases) -> Section:
    """Return the table of every config that every step tried, with its verdict."""
    if not results.steps:
        return Section(name="steps", title=say("steps.title"), parts=(Paragraph(text=say("steps.none")),))
    columns = (
        Column(title=say("column.step")),
        Column(title=say("column.tried")),
        Column(title=say("column.verdict")),
        Column(title=say("column.gain"), number=True),
        Column(title=say("column.pairs"), number=True),
        Column(title=say("column.adopted")),
        Column(title=say("column.reason")),
    )
    rows = tuple(row for step in results.steps for row in _step_rows(step, say, results.study.objective.confidence))
    parts: list[Part] = [Paragraph(text=say("steps.intro"), tone="muted"), Table(columns=columns, rows=rows)]
    ends = tuple(_step_end(step, say) for step in results.steps)
    return Section(name="steps", title=say("steps.title"), parts=(*parts, Bullets(items=ends)))


def _step_rows(step: StepResult, say: Phrases, usual: float) -> Iterator[tuple[Cell, ...]]:
    yield (
        Cell(text=formatting.clip(step.title, 60), tone="strong"),
        Cell(text=say.config(step.incumbent), code=True),
        Cell(text=say("steps.incumbent"), tone="muted"),
        *(Cell(text="") for _ in range(4)),
    )
    for verdict in step.verdicts:
        yield (Cell(text=""), *_verdict_cells(verdict, say, usual))


def _verdict_cells(verdict: Verdict, say: Phrases, usual: float) -> tuple[Cell, ...]:
    kind = "not measured" if _is_unmeasured(verdict) else verdict.kind
    adopted = Cell(text=say("yes"), tone="good") if verdict.adopted else Cell(text=say("no"), tone="muted")
    return (
        Cell(text=say.config(verdict.config), code=True),
        Cell(text=say.word("kind", kind), tone=_KIND_TONES.get(verdict.kind, "")),
        Cell(text=formatting.bracket(verdict.gain, usual=usual)),
        Cell(text=formatting.count(verdict.repeats)),
        adopted,
        Cell(text=formatting.clip(verdict.reason, 240)),
    )


def _is_unmeasured(verdict: Verdict) -> bool:
    """Whether there is no pair of launches that could show a difference."""
    return verdict.gain is None and verdict.kind == "no difference shown"


def _step_end(step: StepResult, say: Phrases) -> str:
    key = "steps.end" if step.finished else "steps.open"
    line = say(key, title=formatting.clip(step.title, 60), leader=say.config(step.leader))
    return f"{line} {say('steps.stopped', reason=formatting.clip(step.stop_reason, 160))}" if step.stop_reason else line


class _Failure(Record, frozen=True, kw_only=True):
    config: str
    stage: str
    cause: str
    evidence: str


def failures(results: Results, causes: dict[str, str], say: Phrases) -> Section:
    """Return the failed launches, those alike in one row; `causes` explains the codes."""
    groups: dict[_Failure, list[int]] = {}
    for trial, outcome in evidence.failed_trials(results):
        failure = _Failure(
            config=say.config(trial.config),
            stage=outcome.stage,
            cause=formatting.clip(outcome.cause, 60),
            evidence=_log_lines(outcome.evidence),
        )
        groups.setdefault(failure, []).append(trial.number)
    if not groups:
        return Section(name="failures", title=say("failures.title"), parts=(Paragraph(text=say("failures.none")),))
    columns = tuple(Column(title=say(f"column.{name}")) for name in ("trials", "config", "stage", "cause", "log"))
    rows = tuple(
        (
            Cell(text=_numbers(numbers, say)),
            Cell(text=failure.config, code=True),
            Cell(text=say.word("stage", failure.stage)),
            Cell(text=_cause(failure.cause, causes), tone="bad"),
            Cell(text=failure.evidence or formatting.ABSENT, code=True),
        )
        for failure, numbers in groups.items()
    )
    return Section(name="failures", title=say("failures.title"), parts=(Table(columns=columns, rows=rows),))


def _cause(code: str, causes: dict[str, str]) -> str:
    return f"{code}: {causes[code]}" if code in causes else code


def _log_lines(text: str) -> str:
    """The last eight lines of a failure's evidence, each cut."""
    lines = [formatting.clip(line, 240) for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-8:])


def _numbers(numbers: list[int], say: Phrases) -> str:
    return say.joined([str(number) for number in numbers], most=_MOST_TRIALS)


def validation(results: Results, say: Phrases) -> Section:
    """Return the fresh comparison by workload, and what was barred from being recommended."""
    end = results.conclusion
    parts: list[Part] = []
    if end.changes:
        intro = say("validation.intro", label=say.config(end.recommended), baseline=say.config(end.baseline))
        parts += [Paragraph(text=intro), _changes_table(results, say)]
    elif end.recommended == end.baseline:
        parts.append(Paragraph(text=say("validation.not-needed" if end.finished else "validation.missing")))
    else:
        parts.append(Paragraph(text=say("validation.missing"), tone="warn"))
    if end.barred:
        lines = tuple(
            say(
                "validation.barred",
                label=say.config(verdict.config),
                gain=formatting.bracket(verdict.gain),
                reason=formatting.clip(verdict.reason, 240),
            )
            for verdict in end.barred
        )
        parts += [Paragraph(text=say("validation.barred-intro"), tone="bad"), Bullets(items=lines)]
    return Section(name="validation", title=say("validation.title"), parts=tuple(parts))


def _changes_table(results: Results, say: Phrases) -> Table:
    columns = (
        Column(title=say("column.workload")),
        Column(title=say("column.metric")),
        Column(title=say("column.gain"), number=True),
        Column(title=say("column.confidence"), number=True),
        Column(title=say("column.pairs"), number=True),
        Column(title=say("column.max-loss", bound=formatting.percent(results.study.limits.max_loss))),
    )
    rows = tuple(
        (
            Cell(text=formatting.clip(change.workload, 60)),
            Cell(text=say.metric(change.metric)),
            Cell(text=formatting.bracket(change.gain)),
            Cell(text=formatting.percent(change.gain.confidence)),
            Cell(text=formatting.count(change.repeats)),
            Cell(text=say("mark.exceeds"), tone="bad") if change.barred else Cell(text=say("mark.keeps")),
        )
        for change in results.conclusion.changes
    )
    return Table(columns=columns, rows=rows)


def findings(results: Results, say: Phrases) -> Section:
    """Return every finding of the conclusion and of the runs, those alike in one row."""
    found: dict[tuple[str, str], list[int]] = {}
    examples: dict[tuple[str, str], Finding] = {}
    for number, finding in _all_findings(results):
        key = (finding.code, finding.severity)
        numbers = found.setdefault(key, [])
        examples.setdefault(key, finding)
        if number is not None and number not in numbers:
            numbers.append(number)
    if not found:
        return Section(name="findings", title=say("findings.title"), parts=(Paragraph(text=say("findings.none")),))
    columns = tuple(Column(title=say(f"column.{name}")) for name in ("finding", "severity", "trials", "evidence"))
    rows = tuple(
        (
            Cell(text=formatting.clip(code, 60), code=True),
            Cell(text=say.word("severity", severity), tone=_SEVERITY_TONES[severity]),
            Cell(text=_numbers(numbers, say) if numbers else say("findings.study")),
            Cell(text=_finding_text(examples[code, severity])),
        )
        for (code, severity), numbers in found.items()
    )
    return Section(name="findings", title=say("findings.title"), parts=(Table(columns=columns, rows=rows),))


def _finding_text(finding: Finding) -> str:
    advice = f" ({finding.advice})" if finding.advice else ""
    return formatting.clip(f"{finding.evidence}{advice}", 400)


def _all_findings(results: Results) -> Iterator[tuple[int | None, Finding]]:
    for finding in results.conclusion.findings:
        yield None, finding
    for trial in results.trials:
        for run in trial.runs:
            for finding in run.findings:
                yield trial.number, finding


def not_tried(results: Results, say: Phrases, defaults: Defaults) -> Section:
    """Return what the study left out: values never launched, combinations, open steps, dropped measurements."""
    items = [say("not-tried.combinations", configs=say.counted("configs", len(_configs(results))))]
    items += [_missing_line(engine, what, say) for engine, what in missing_values(results, defaults)]
    items += [
        say("not-tried.step", title=formatting.clip(step.title, 60)) for step in results.steps if not step.finished
    ]
    items += [say("not-tried.dropped", reason=formatting.clip(line, 240)) for line in results.dropped]
    return Section(name="not-tried", title=say("not-tried.title"), parts=(Bullets(items=tuple(items)),))


def _missing_line(engine: str, what: tuple[str, tuple[str, ...]], say: Phrases) -> str:
    option, values = what
    named = say.joined([formatting.clip(value, 60) for value in values], most=12)
    if not option:
        return say("not-tried.variants", engine=engine, values=named)
    return say("not-tried.values", engine=engine, option=option, values=named)


def _configs(results: Results) -> list[Config]:
    distinct: dict[str, Config] = {}
    for trial in results.trials:
        distinct.setdefault(repr(trial.config), trial.config)
    return list(distinct.values())


def missing_values(results: Results, defaults: Defaults) -> Iterator[tuple[str, tuple[str, tuple[str, ...]]]]:
    """Yield (engine, ("", variants)) and (engine, (option, values)) that no launch used.

    A config names an option only where it differs from the engine's default, which `defaults` holds.
    """
    configs = _configs(results)
    for engine in results.study.engines:
        own = [config for config in configs if config.engine == engine.name]
        variants = tuple(item.name for item in engine.variants if item.name not in {config.variant for config in own})
        if variants:
            yield engine.name, ("", variants)
        for axis in engine.axes:
            default = defaults.get(engine.name, {}).get(axis.option)
            used = [config.options.get(axis.option, default) for config in own]
            missing = [value for value in axis.values if not any(space.same_value(value, one) for one in used)]
            if missing:
                yield engine.name, (axis.option, tuple(_shown(value) for value in missing))


def _shown(value: OptionValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
