"""The figures behind a report, as numbers: means over runs, before and after, steps, points of charts.

Pure. It decides nothing: verdicts and intervals come with the Results; here they are only set beside the figures.
Figures of several runs are geometric means, as the comparison works on ratios: so a printed gain is the ratio of the
printed figures. It knows no language and no page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Literal

from servetune import metrics, space
from servetune.records import (
    Completed,
    Config,
    Failed,
    Interval,
    Record,
    Results,
    Run,
    StepResult,
    Trial,
    Verdict,
    WorkloadChange,
)

VALIDATION = "validate"
"""Step name of the fresh launches that the published gain comes from."""
LATENCIES = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms")
"""Latencies of the before/after table."""

Side = Literal["baseline", "recommended", "other"]


class MetricChange(Record, frozen=True, kw_only=True):
    """One metric on one workload, before and after. `change` is new/old - 1, whatever is better."""

    workload: str
    metric: str
    baseline: float | None
    recommended: float | None
    change: float | None
    interval: Interval | None
    """Of `change`, where the comparison gave one."""
    pairs: int
    """Pairs of runs on the same prompts that both figures rest on; 0: not paired."""
    pairs_worse: int
    worse: bool
    """It got worse by more than the study's min_gain."""
    barred: bool
    """It loses more than max_loss."""


class Comparison(Record, frozen=True, kw_only=True):
    """Two configs over all workloads."""

    baseline: Config
    recommended: Config
    fresh: bool
    """Both were launched afresh for this comparison."""
    rows: tuple[MetricChange, ...]


class Candidate(Record, frozen=True, kw_only=True):
    """One config of one step, on the scale of the objective's metric."""

    step: str
    config: Config
    value: float
    low: float | None
    high: float | None
    role: Literal["incumbent", "adopted", "tried"]
    leads: bool
    """It is the step's leader."""


class TrialPoint(Record, frozen=True, kw_only=True):
    """One trial on the objective's workload: its latency and its throughput."""

    trial: int
    config: Config
    config_key: str
    """Its fingerprint."""
    side: Side
    latency: float
    throughput: float


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Return the geometric mean of the values that are present; None without one, the plain mean if one is <= 0."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    if min(present) <= 0:
        return math.fsum(present) / len(present)
    return math.exp(math.fsum(math.log(value) for value in present) / len(present))


def runs_of(
    results: Results, config: Config, *, workload: str, step: str | None = None
) -> Iterator[tuple[tuple[int, int], Run]]:
    """Yield the runs of `config` on `workload` (in one step, or all), each with its (block, repeat)."""
    for trial in results.trials:
        if trial.config == config and (step is None or trial.measurement.step == step):
            for run in trial.runs:
                if run.workload == workload:
                    yield (trial.measurement.block, run.repeat), run


def mean_of(results: Results, config: Config, metric: str, *, workload: str, step: str | None = None) -> float | None:
    """Return the geometric mean of `metric` over the runs of `config` on `workload`."""
    found = runs_of(results, config, workload=workload, step=step)
    return geometric_mean(metrics.value(run.summary, metric) for _, run in found)


def comparison(results: Results, before: Config, after: Config) -> Comparison:
    """Compare two configs on every workload: from the validation's pairs, or else from all their runs.

    Equal configs give the figures of that one config, without a change.
    """
    workloads = _objective_first(results)
    fresh = all(
        next(runs_of(results, config, workload=workloads[0], step=VALIDATION), None) for config in (before, after)
    )
    rows = tuple(
        _change(results, before, after, workload=workload, metric=metric)
        for workload in workloads
        for metric in _metrics(results)
    )
    return Comparison(baseline=before, recommended=after, fresh=fresh, rows=rows)


def _objective_first(results: Results) -> list[str]:
    on = objective_workload(results)
    return [on, *(spec.name for spec in results.study.workloads if spec.name != on)]


def objective_workload(results: Results) -> str:
    """Return the workload that the objective is measured on (the first, if the study names none)."""
    workloads = results.study.workloads
    return results.study.objective.on or (workloads[0].name if workloads else "")


def _metrics(results: Results) -> list[str]:
    return list(dict.fromkeys((results.study.objective.metric, "output_throughput", *LATENCIES)))


def _change(results: Results, before: Config, after: Config, *, workload: str, metric: str) -> MetricChange:
    pairs = () if before == after else _pairs(results, before, after, workload=workload, metric=metric)
    if pairs:
        old, new = geometric_mean(a for a, _ in pairs), geometric_mean(b for _, b in pairs)
    else:
        old = mean_of(results, before, metric, workload=workload)
        new = None if before == after else mean_of(results, after, metric, workload=workload)
    published = _published(results, after, workload=workload, metric=metric)
    interval = plain_change(published.gain, metric) if published else None
    change = relative(old, new)
    return MetricChange(
        workload=workload,
        metric=metric,
        baseline=old,
        recommended=new,
        change=interval.estimate if interval else change,
        interval=interval,
        pairs=len(pairs),
        pairs_worse=sum(_loss(a, b, metric) > 0 for a, b in pairs),
        worse=change is not None and _worsened(change, metric) > results.study.objective.min_gain,
        barred=bool(published and published.barred),
    )


def _pairs(
    results: Results, before: Config, after: Config, *, workload: str, metric: str
) -> tuple[tuple[float, float], ...]:
    """Values of both configs from the same block and repeat of the validation."""
    old = dict(runs_of(results, before, workload=workload, step=VALIDATION))
    new = dict(runs_of(results, after, workload=workload, step=VALIDATION))
    both = [
        (metrics.value(old[key].summary, metric), metrics.value(new[key].summary, metric)) for key in old if key in new
    ]
    return tuple((a, b) for a, b in both if a is not None and b is not None)


def _published(results: Results, after: Config, *, workload: str, metric: str) -> WorkloadChange | None:
    """The conclusion's interval for this config, if it has one."""
    if after != results.conclusion.recommended:
        return None
    matches = (entry for entry in results.conclusion.changes if (entry.workload, entry.metric) == (workload, metric))
    return next(matches, None)


def fresh_pairs(results: Results, before: Config, after: Config) -> int:
    """Return in how many blocks of the validation both configs were measured on the objective's workload."""
    on = objective_workload(results)
    blocks = [{key[0] for key, _ in runs_of(results, one, workload=on, step=VALIDATION)} for one in (before, after)]
    return len(blocks[0] & blocks[1])


def relative(old: float | None, new: float | None) -> float | None:
    """Return new/old - 1; None where that is not defined."""
    if old is None or new is None or old <= 0:
        return None
    return new / old - 1


def plain_change(gain: Interval, metric: str) -> Interval:
    """Turn a gain (positive is better) into the change of the figure itself: new/old - 1.

    For a metric to minimise the gain is old/new - 1, so the change is 1/(1 + gain) - 1 and the ends swap.
    """
    if metrics.METRICS[metric].better == "higher":
        return gain
    return Interval(
        estimate=_inverse(gain.estimate),
        low=_inverse(gain.high),
        high=_inverse(gain.low),
        confidence=gain.confidence,
    )


def _inverse(gain: float) -> float:
    return math.inf if gain <= -1 else 1 / (1 + gain) - 1


def _worsened(change: float, metric: str) -> float:
    return -change if metrics.METRICS[metric].better == "higher" else change


def _loss(old: float, new: float, metric: str) -> float:
    return _worsened(new - old, metric)


def candidates(results: Results) -> tuple[Candidate, ...]:
    """Return every config of every step with its value and interval, the incumbent of a step first."""
    return tuple(point for step in results.steps for point in _step_candidates(results, step))


def _step_candidates(results: Results, step: StepResult) -> Iterator[Candidate]:
    objective, on = results.study.objective, objective_workload(results)

    def value(config: Config) -> float | None:
        return mean_of(results, config, objective.metric, workload=on, step=step.name)

    incumbent = value(step.incumbent) or mean_of(results, step.incumbent, objective.metric, workload=on)
    if incumbent is not None:
        yield _candidate(step, step.incumbent, incumbent, role="incumbent")
    for verdict in step.verdicts:
        measured = value(verdict.config)
        if measured is not None:
            ends = _ends(verdict, incumbent, objective.metric)
            yield _candidate(step, verdict.config, measured, role="adopted" if verdict.adopted else "tried", ends=ends)


def _candidate(
    step: StepResult,
    config: Config,
    value: float,
    *,
    role: Literal["incumbent", "adopted", "tried"],
    ends: tuple[float | None, float | None] = (None, None),
) -> Candidate:
    low, high = ends
    return Candidate(
        step=step.name, config=config, value=value, low=low, high=high, role=role, leads=config == step.leader
    )


def _ends(verdict: Verdict, incumbent: float | None, metric: str) -> tuple[float | None, float | None]:
    """The gain's interval on the scale of the metric, around the incumbent's figure."""
    if verdict.gain is None or incumbent is None:
        return None, None
    change = plain_change(verdict.gain, metric)
    return incumbent * (1 + change.low), incumbent * (1 + change.high)


def latency_axis(results: Results) -> str:
    """Return the latency that throughput is drawn against: a limited one, else the one measured in most runs."""
    limited = [name for name in results.study.limits.bounds if name.endswith("_ms")]
    choices = [*limited, "mean_e2el_ms", "mean_ttft_ms", "mean_tpot_ms"]
    runs = [run for trial in results.trials for run in trial.runs]
    return max(choices, key=lambda name: sum(metrics.value(run.summary, name) is not None for run in runs))


def throughput_axis(results: Results) -> str:
    """Return the throughput of the throughput-latency chart: the objective's metric if it is one."""
    metric = results.study.objective.metric
    return metric if metric.endswith("_throughput") else "total_token_throughput"


def trial_points(results: Results) -> tuple[TrialPoint, ...]:
    """Return one point for each trial that was measured on the objective's workload."""
    on, across, up = objective_workload(results), latency_axis(results), throughput_axis(results)
    points = []
    for trial in results.trials:
        runs = [run for run in trial.runs if run.workload == on]
        latency = geometric_mean(metrics.value(run.summary, across) for run in runs)
        throughput = geometric_mean(metrics.value(run.summary, up) for run in runs)
        if latency is not None and throughput is not None:
            points.append(
                TrialPoint(
                    trial=trial.number,
                    config=trial.config,
                    config_key=space.fingerprint(trial.config),
                    side=side_of(results, trial.config),
                    latency=latency,
                    throughput=throughput,
                )
            )
    return tuple(points)


def side_of(results: Results, config: Config) -> Side:
    """Tell whether a config is the baseline, the recommended one, or another (the baseline if it is both)."""
    if config == results.conclusion.baseline:
        return "baseline"
    return "recommended" if config == results.conclusion.recommended else "other"


def failed_trials(results: Results) -> tuple[tuple[Trial, Failed], ...]:
    """Return the trials that failed, each with its outcome."""
    return tuple((trial, trial.outcome) for trial in results.trials if isinstance(trial.outcome, Failed))


def measured_trials(results: Results) -> tuple[Trial, ...]:
    """Return the trials that made all their runs."""
    return tuple(trial for trial in results.trials if isinstance(trial.outcome, Completed))
