"""Rules that say what a reader must know about a run, a comparison or a host before he believes its figures.

Pure: from summaries and facts to findings. Knows no trial order and no search. Every code has a page in
`docs/findings/`; thresholds stand here, by name, and are explained there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from servetune.records import (
    ClientFacts,
    Config,
    Distribution,
    Finding,
    Load,
    OptionValue,
    RequestRecord,
    Summary,
    Variant,
)

CODES: dict[str, str] = {
    "client-bound": "the load client may have been the bottleneck",
    "clock-step": "the wall clock was set while the run was measured",
    "partial": "some requests failed",
    "pathological": "the run came to a stop or surged, so that its mean says little",
    "cap-suspected": "an option seems to cap how many requests are served at once",
    "short-run": "the run is too short or too small for its tails",
    "output-mismatch": "the server generated another number of tokens than was asked for",
    "unresolved-ttft": "some first tokens came together with later ones",
    "unequal-output": "the compared configs did not generate the same number of tokens",
    "latency-worse": "the faster config answers later",
    "quality-not-checked": "the weights differ from the baseline's, and their answers were not compared",
    "requantised": "the weights were made for this study from its model file, which may have been quantised already",
    "host-busy": "other programs were using the machine",
    "budget-ended": "the time budget ended before everything was tried",
    "unconfirmed-gain": "fresh launches do not show the gain that the search found",
}
"""Every code that a Finding of this module may have, with what it means."""

CLIENT_CPU_SHARE = 0.9
LOOP_LAG_MS = 20.0
LATE_MERGED_SHARE = 0.005
SLOT_GAP_MS = 20.0
SLOT_GAP_SHARE = 0.05
CPU_WAIT_SHARE = 0.1
LATE_SHARE = 0.01
CLOCK_STEP_NS = 1_000_000
BARRED_SUCCESS_RATE = 0.9
SURGE = 15.0
SURGE_DURATION_S = 60.0
TAIL_RATIO = 5.0
TAIL_COUNT = 20
CAP_OPTIONS = ("max_num_seqs", "max_running_requests", "max_batch_size", "parallel")
CAP_SHARE = 0.8
USUAL_CAP = 256
SHORT_DURATION_S = 1.0
FEW_REQUESTS = 10
OUTPUT_TOLERANCE = 0.01
UNRESOLVED_SHARE = 0.01
LATENCY_TOLERANCE = 0.10
BUSY_SHARE = 0.25


def of_run(
    summary: Summary,
    client: ClientFacts,
    *,
    load: Load,
    config: Config,
    records: Sequence[RequestRecord] = (),
) -> tuple[Finding, ...]:
    """Return what must be known about one run; `records` are its raw requests, where they are at hand."""
    found = [
        _client_bound(summary, client, load),
        _clock_step(client),
        _partial(summary, records),
        _surge(summary),
        _tail(summary),
        _cap(summary, client, config.options),
        _short(summary),
        _output_mismatch(records),
        _unresolved(client),
    ]
    return tuple(finding for finding in found if finding is not None)


def _client_bound(summary: Summary, client: ClientFacts, load: Load) -> Finding | None:
    signs = []
    if client.cpu_share > CLIENT_CPU_SHARE * client.workers > 0:
        signs.append(f"it used {client.cpu_share:.0%} of a processor in {client.workers} worker(s)")
    if client.late_merged_reads > LATE_MERGED_SHARE:
        signs.append(
            f"{client.late_merged_reads:.1%} of its reads came so late that events had merged "
            f"(p99 of the lateness: {client.read_lag_p99_ms:.0f} ms)"
        )
    if client.stamps == "user" and client.max_loop_lag_ms > LOOP_LAG_MS:
        signs.append(f"its event loop stood still for {client.max_loop_lag_ms:.0f} ms, and its stamps are its own")
    total = summary.completed + summary.failed
    if load.request_rate is not None and client.late_sends > LATE_SHARE * total:
        signs.append(f"{client.late_sends} of {total} requests were sent late")
    duration = summary.latency.get("e2el")
    if duration is not None and client.slot_gap_p99_ms > max(SLOT_GAP_MS, SLOT_GAP_SHARE * duration.mean):
        signs.append(f"a slot waited up to {client.slot_gap_p99_ms:.0f} ms (p99) for its next request")
    if not signs:
        return None
    if client.cpu_wait_share > CPU_WAIT_SHARE:
        signs.append(f"it waited for a processor during {client.cpu_wait_share:.0%} of the run")
    return Finding(
        code="client-bound",
        severity="warning",
        evidence="; ".join(signs),
        advice="use more workers, or a machine of its own for the client",
    )


def _clock_step(client: ClientFacts) -> Finding | None:
    if abs(client.clock_step_ns) <= CLOCK_STEP_NS:
        return None
    return Finding(
        code="clock-step",
        severity="warning",
        evidence=f"the clock moved by {client.clock_step_ns / 1e6:+.1f} ms",
        advice="measure again while the clock is steady",
    )


def _partial(summary: Summary, records: Sequence[RequestRecord]) -> Finding | None:
    rate = summary.success_rate
    if rate is None or rate == 1:
        return None
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(summary.errors.items()))
    first = next((record.error.message for record in records if record.error is not None), "")
    said = f"; the first: {' '.join(first.split())[:200]}" if first else ""
    total = summary.completed + summary.failed
    return Finding(
        code="partial",
        severity="bars" if rate < BARRED_SUCCESS_RATE else "warning",
        evidence=f"{summary.failed} of {total} requests failed ({kinds or 'no kind'}){said}",
        advice="look into the engine's log; a study excludes such configs with success_rate in [limits]",
    )


def _surge(summary: Summary) -> Finding | None:
    peak, mean = summary.peak_output_throughput, summary.output_throughput
    if peak is None or summary.duration_s < SURGE_DURATION_S or peak <= SURGE * mean:
        return None
    return Finding(
        code="pathological",
        severity="warning",
        evidence=f"the busiest second gave {peak:.0f} output tokens, {peak / mean:.1f} times the mean",
        advice="look for stalls in the engine's log",
    )


def _tail(summary: Summary) -> Finding | None:
    tpot = summary.latency.get("tpot")
    if tpot is None or tpot.count < TAIL_COUNT or tpot.p99 <= TAIL_RATIO * tpot.mean:
        return None
    return Finding(
        code="pathological",
        severity="warning",
        evidence=f"p99 TPOT {tpot.p99:.1f} ms is {tpot.p99 / tpot.mean:.1f} times its mean",
        advice="look for preemption or stalls in the engine's log",
    )


def _cap(summary: Summary, client: ClientFacts, options: Mapping[str, OptionValue]) -> Finding | None:
    """Little's law: requests that decode at once = output tokens/s x mean time of an output token."""
    tpot = summary.latency.get("tpot")
    if tpot is None:
        return None
    decoding = summary.output_throughput * tpot.mean / 1e3
    caps = {name: value for name in CAP_OPTIONS if isinstance(value := options.get(name), int)}
    if caps:
        name, cap = min(caps.items(), key=lambda pair: pair[1])
        is_capped = CAP_SHARE * cap <= decoding <= 1.1 * cap and client.peak_open >= 2 * cap
        where, advice = f"{name} is {cap}", f"try a larger {name}"
    else:
        is_capped = CAP_SHARE * USUAL_CAP <= decoding <= USUAL_CAP and client.peak_open >= 3 * USUAL_CAP
        where, advice = f"{USUAL_CAP} is a common default", "try a larger cap on sequences"
    if not is_capped:
        return None
    return Finding(
        code="cap-suspected",
        severity="note",
        evidence=f"{decoding:.1f} requests decoded at once while {client.peak_open} were in flight; {where}",
        advice=advice,
    )


def _short(summary: Summary) -> Finding | None:
    total = summary.completed + summary.failed
    if summary.duration_s >= SHORT_DURATION_S and total >= FEW_REQUESTS:
        return None
    return Finding(
        code="short-run",
        severity="note",
        evidence=f"{total} requests in {summary.duration_s:.2f} s",
        advice="raise num_prompts",
    )


def _output_mismatch(records: Sequence[RequestRecord]) -> Finding | None:
    whole = [record for record in records if record.error is None and record.usage_output_tokens is not None]
    asked = sum(record.requested_tokens for record in whole)
    made = sum(record.usage_output_tokens or 0 for record in whole)
    if abs(made - asked) <= OUTPUT_TOLERANCE * asked:
        return None
    return Finding(
        code="output-mismatch",
        severity="warning",
        evidence=f"{asked} output tokens were asked for, {made} were generated",
        advice="compare output tokens/s and latencies only with runs of the same output",
    )


def _unresolved(client: ClientFacts) -> Finding | None:
    if client.unresolved_ttft <= UNRESOLVED_SHARE:
        return None
    return Finding(
        code="unresolved-ttft",
        severity="note",
        evidence=f"in {client.unresolved_ttft:.1%} of requests the first read held more than one message",
        advice="TTFT of these requests may be too high by the time between two tokens",
    )


# --------------------------------------------------------------------------- comparisons


def of_comparison(workload: str, old: Sequence[Summary], new: Sequence[Summary]) -> tuple[Finding, ...]:
    """Return what must be known about two configs that were compared on one workload (`old` is the baseline)."""
    found = [_unequal_output(workload, old, new)]
    found += [_latency_worse(workload, old, new, name) for name in ("ttft", "tpot")]
    return tuple(finding for finding in found if finding is not None)


def _unequal_output(workload: str, old: Sequence[Summary], new: Sequence[Summary]) -> Finding | None:
    before, after = (_mean([_tokens_a_request(summary) for summary in side]) for side in (old, new))
    if before is None or after is None or abs(after - before) <= OUTPUT_TOLERANCE * before:
        return None
    return Finding(
        code="unequal-output",
        severity="warning",
        evidence=f"{workload}: {before:.1f} and {after:.1f} output tokens a request",
        advice="the two sides did not do the same work; ask for exact lengths",
    )


def _tokens_a_request(summary: Summary) -> float | None:
    return summary.total_output_tokens / summary.completed if summary.completed else None


def _latency_worse(workload: str, old: Sequence[Summary], new: Sequence[Summary], name: str) -> Finding | None:
    signs = []
    of: dict[str, Callable[[Distribution], float | None]] = {
        "mean": lambda found: found.mean,
        "p99": lambda found: found.p99 if found.count >= TAIL_COUNT else None,
    }
    for statistic, read in of.items():
        before, after = (
            _mean([read(found) if (found := summary.latency.get(name)) else None for summary in side])
            for side in (old, new)
        )
        if before and after and after > before * (1 + LATENCY_TOLERANCE):
            signs.append(f"{statistic} {before:.1f} to {after:.1f} ms ({after / before - 1:+.0%})")
    if not signs:
        return None
    return Finding(
        code="latency-worse",
        severity="warning",
        evidence=f"{workload}: {name.upper()} {', '.join(signs)}",
        advice="set a limit on it in [limits] if answers must not come later",
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """Geometric mean of the positive values that are present, as the report's tables have it."""
    known = [math.log(value) for value in values if value]
    return math.exp(math.fsum(known) / len(known)) if known else None


def quality_not_checked(baseline: Config, recommended: Config) -> Finding | None:
    """Return the finding that a winner with other weights than the baseline's carries."""
    if recommended.variant == baseline.variant:
        return None
    names = [config.variant or "the model as it is" for config in (baseline, recommended)]
    return Finding(
        code="quality-not-checked",
        severity="warning",
        evidence=f"the baseline's weights are {names[0]}, the winner's {names[1]}",
        advice="compare answers on tasks of your own before you deploy it",
    )


def requantised(variants: Sequence[Variant]) -> Finding | None:
    """Return the finding for those of `variants` whose weights were made from the study's file."""
    made = [f"{variant.name} ({variant.note or variant.quantize})" for variant in variants if variant.quantize]
    if not made:
        return None
    return Finding(
        code="requantised",
        severity="note",
        evidence=", ".join(made),
        advice="speed is that of the format; for quality take weights made from the original model",
    )


def unconfirmed_gain(low: float, high: float) -> Finding | None:
    """Return the finding for a published interval that does not lie above 0."""
    if low > 0:
        return None
    return Finding(
        code="unconfirmed-gain",
        severity="warning",
        evidence=f"fresh launches give {low:+.1%} to {high:+.1%}",
        advice="raise the budget or max_repeats for a narrower interval",
    )


def budget_ended(left_out: str) -> Finding:
    """Return that the budget ended before everything was tried; `left_out` says what."""
    return Finding(
        code="budget-ended",
        severity="warning",
        evidence=left_out,
        advice="give more time ([budget] or --minutes) and start the same command again: it goes on from here",
    )


def host_busy(busy_share: float, cores: int) -> Finding | None:
    """Return what must be known if `busy_share` of the processor time was in use while nothing of the study ran."""
    if busy_share <= BUSY_SHARE:
        return None
    return Finding(
        code="host-busy",
        severity="warning",
        evidence=f"before the launch {busy_share:.0%} of the time of {cores} cores was in use by other programs",
        advice="stop other programs, or expect wider intervals",
    )
