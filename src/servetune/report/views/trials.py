"""Sections with everything that was measured: the command to run, every trial in a table, every raw result block.

Pure; the raw blocks come from blocks.py.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from servetune import metrics
from servetune.masking import MASK
from servetune.records import Command, Completed, Config, Results, Run, Trial
from servetune.report import blocks, evidence, formatting
from servetune.report.document import Cell, Code, Column, Fold, Heading, Paragraph, Section, Table
from servetune.report.phrases import Phrases

_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]|[\ud800-\udfff]")
_LONG_LINE = 100


def command(results: Results, say: Phrases) -> Section:
    """Return the command that starts the recommended config, as it was launched last."""
    config = results.conclusion.recommended
    trial = latest(results, config)
    if trial is None:
        nothing = Paragraph(text=say("command.none", label=say.config(config)), tone="warn")
        return Section(name="command", title=say("command.title"), parts=(nothing,))
    return Section(
        name="command",
        title=say("command.title"),
        parts=(
            Code(text=shell_text(trial.command), language="sh"),
            Paragraph(text=_command_note(trial, say), tone="muted"),
        ),
    )


def _command_note(trial: Trial, say: Phrases) -> str:
    note = say("command.note", label=say.config(trial.config), number=trial.number)
    hides = MASK in " ".join((*trial.command.argv, *trial.command.env.values()))
    return note + say("command.secret") if hides else note


def latest(results: Results, config: Config) -> Trial | None:
    """Return the last launch of `config`, one that completed if there is any."""
    launches = [trial for trial in results.trials if trial.config == config]
    completed = [trial for trial in launches if isinstance(trial.outcome, Completed)]
    return next(reversed(completed or launches), None)


def shell_text(start: Command) -> str:
    """Return a command as POSIX shell input, one flag a line where it would be long.

    Arguments with control characters or direction overrides are written in $'...' so that they can be seen.
    """
    assigned = [f"{name}={_quoted(value)}" for name, value in sorted(start.env.items())]
    words = [*assigned, *(_quoted(argument) for argument in start.argv)]
    if len(" ".join(words)) <= _LONG_LINE:
        return " ".join(words)
    return " \\\n  ".join(" ".join(group) for group in _by_flag(words))


def _by_flag(words: list[str]) -> Iterator[list[str]]:
    group: list[str] = []
    for word in words:
        if word.startswith("-") and group:
            yield group
            group = []
        group.append(word)
    yield group


def _quoted(argument: str) -> str:
    if not _UNSEEN.search(argument):
        return shlex.quote(argument)
    escaped = argument.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", escaped) + "'"


def trials(results: Results, say: Phrases) -> Section:
    """Return one row for each run of each trial, and one for a trial without a run."""
    metric = results.study.objective.metric
    columns = (
        Column(title=say("column.trial"), number=True),
        Column(title=say("column.step")),
        Column(title=say("column.config")),
        Column(title=say("column.outcome")),
        Column(title=say("column.workload")),
        Column(title=say("column.requests"), number=True),
        *(Column(title=say.metric_title(name), number=True) for name in _shown(metric)),
        Column(title=say("column.start"), number=True),
        Column(title=say("column.memory"), number=True),
        Column(title=say("column.findings")),
    )
    rows = tuple(row for trial in results.trials for row in _rows(trial, metric, say))
    title = say("trials.title", launches=say.counted("launches", len(results.trials)))
    return Section(name="trials", title=title, parts=(Table(columns=columns, rows=rows),))


def _shown(metric: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((metric, *evidence.LATENCIES)))


def _rows(trial: Trial, metric: str, say: Phrases) -> Iterator[tuple[Cell, ...]]:
    start = formatting.duration(trial.start_s)
    memory = formatting.figure(trial.peak_rss_mib)
    for run in trial.runs or (None,):
        yield (
            Cell(text=str(trial.number)),
            Cell(
                text=say("trials.step", step=formatting.clip(trial.measurement.step, 40), block=trial.measurement.block)
            ),
            Cell(text=say.config(trial.config), code=True),
            _outcome(trial, say),
            *_run_cells(run, metric, say),
            Cell(text=start),
            Cell(text=memory),
            Cell(text=", ".join(dict.fromkeys(finding.code for finding in run.findings)) if run else ""),
        )


def _outcome(trial: Trial, say: Phrases) -> Cell:
    if isinstance(trial.outcome, Completed):
        return Cell(text=say("outcome.completed"))
    return Cell(text=say("outcome.failed", cause=formatting.clip(trial.outcome.cause, 60)), tone="bad")


def _run_cells(run: Run | None, metric: str, say: Phrases) -> tuple[Cell, ...]:
    if run is None:
        return (Cell(text=formatting.ABSENT), *(Cell(text="") for _ in range(1 + len(_shown(metric)))))
    summary = run.summary
    requests = say(
        "trials.requests",
        done=formatting.count(summary.completed),
        all=formatting.count(summary.completed + summary.failed),
    )
    return (
        Cell(text=say("trials.run", workload=formatting.clip(run.workload, 40), repeat=run.repeat)),
        Cell(text=requests, tone="bad" if summary.failed else ""),
        *(Cell(text=formatting.figure(metrics.value(summary, name))) for name in _shown(metric)),
    )


def raw(results: Results, say: Phrases) -> Section:
    """Return, for each trial, its exact command and every result block."""
    folds = tuple(_fold(trial, say) for trial in results.trials)
    return Section(name="raw", title=say("raw.title"), parts=(Paragraph(text=say("raw.intro"), tone="muted"), *folds))


def _fold(trial: Trial, say: Phrases) -> Fold:
    summary = say(
        "raw.trial",
        number=trial.number,
        label=say.config(trial.config),
        step=formatting.clip(trial.measurement.step, 40),
        role=say.word("role", trial.measurement.role),
        outcome=_outcome(trial, say).text,
    )
    parts: list[Paragraph | Code | Heading] = [
        Code(text=shell_text(trial.command), language="sh"),
        Paragraph(text=_about(trial, say), tone="muted"),
    ]
    if not isinstance(trial.outcome, Completed) and trial.outcome.evidence:
        parts.append(Code(text=formatting.visible(trial.outcome.evidence[:4000])))
    for run in trial.runs:
        parts.append(Heading(text=_run_title(run, say)))
        parts.append(Code(text=blocks.block(run.summary, run.load)))
    return Fold(summary=summary, parts=tuple(parts))


def _about(trial: Trial, say: Phrases) -> str:
    known = {
        "version": formatting.clip(trial.engine_version, 120),
        "started": trial.started_at,
        "ready": "" if trial.start_s is None else formatting.duration(trial.start_s),
        "wall": formatting.duration(trial.wall_s),
        "memory": "" if trial.peak_rss_mib is None else formatting.amount(trial.peak_rss_mib, "MiB"),
        "log": formatting.clip(trial.log_file, 120),
    }
    return say("list.comma").join(say(f"about.{name}", text=text) for name, text in known.items() if text)


def _run_title(run: Run, say: Phrases) -> str:
    return say(
        "raw.run",
        workload=formatting.clip(run.workload, 60),
        repeat=run.repeat,
        seed=run.seed,
        digest=run.workload_digest or formatting.ABSENT,
    )
