"""What `servetune bench` prints and saves at its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from servetune import findings, metrics, workloads
from servetune.cli.bench_flags import Flags
from servetune.cli.bench_job import backend_of
from servetune.cli.console import print_json, say
from servetune.errors import HostProblem
from servetune.interop import vllm_json
from servetune.loadgen.run import LoadJob
from servetune.masking import mask_text
from servetune.records import (
    ClientFacts,
    Config,
    Fault,
    Finding,
    Load,
    Record,
    RequestRecord,
    Summary,
    WorkloadSpec,
)
from servetune.report.blocks import block


class BenchResult(Record, frozen=True, kw_only=True):
    """What `--json` prints."""

    url: str
    model: str
    workload: WorkloadSpec
    workload_digest: str
    load: Load
    summary: Summary
    faults: tuple[Fault, ...]
    answers_without_usage: int
    """Answers whose tokens the server did not count; their messages are counted instead."""
    client: ClientFacts
    findings: tuple[Finding, ...]
    interrupted: bool


def result(
    flags: Flags,
    job: LoadJob,
    spec: WorkloadSpec,
    client: ClientFacts,
    records: Sequence[RequestRecord],
    *,
    interrupted: bool,
) -> BenchResult:
    """Return everything about a run that has ended."""
    summary = metrics.summarize(
        records, client, flags.definitions, goodput=flags.goodput, percentiles=flags.metric_percentiles
    )
    return BenchResult(
        url=mask_text(job.url),
        model=job.rules.model,
        workload=spec,
        workload_digest=workloads.digest(job.requests),
        load=job.load,
        summary=summary,
        faults=metrics.faults(records),
        answers_without_usage=sum(record.error is None and record.usage_output_tokens is None for record in records),
        client=client,
        findings=findings.of_run(summary, client, load=job.load, config=Config(engine="endpoint"), records=records),
        interrupted=interrupted,
    )


def show(found: BenchResult, flags: Flags) -> None:
    """Print the figures on stdout, and what must be known about them on stderr."""
    if flags.as_json:
        print_json(found)
    else:
        latencies = flags.percentile_metrics or None
        text = block(found.summary, found.load, latencies=latencies, percentiles=flags.metric_percentiles)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    for line in fault_table(found.faults):
        say(line)
    if found.answers_without_usage:
        count = found.answers_without_usage
        say(f"note: {count} answers came without the server's token count: their messages are counted as tokens")
    if found.client.retried:
        say(f"note: {found.client.retried} requests were sent again: the server had closed the kept connection")
    if found.client.aborted:
        say(f"ended early: {found.client.aborted}")
    for finding in found.findings:
        say(f"{finding.severity}: {finding.code}: {finding.evidence} ({finding.advice})")


def fault_table(faults: Sequence[Fault]) -> list[str]:
    """Return a line for each kind of failure, under a heading; none where nothing failed."""
    if not faults:
        return []
    kind_width = max(len(fault.kind) for fault in faults)
    count_width = len(str(max(fault.count for fault in faults)))
    lines = [
        f"  {fault.kind:<{kind_width}}  {fault.count:>{count_width}}  {' '.join(fault.first.split())}"
        for fault in faults
    ]
    return ["failed requests (kind, how many, what was said first):", *lines]


# --------------------------------------------------------------------------- saving


def save(found: BenchResult, flags: Flags, job: LoadJob, records: Sequence[RequestRecord], records_path: Path) -> None:
    """Write the figures as `vllm bench serve` does, and the raw records beside them.

    Raises HostProblem if a file cannot be written.
    """
    moment = f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    path = flags.result_dir / (flags.result_filename or file_name(found, flags, job, moment))
    whole = vllm_json.result(found.summary, found.load, _about(found, flags, job, moment))
    if flags.save_detailed:
        whole |= vllm_json.detailed(records, metrics.timed(records, found.client, flags.definitions))
    # A file with many runs keeps the records of each.
    raw = path.with_name(f"{path.stem}-{moment}.records") if flags.append_result else path.with_suffix(".records")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if flags.append_result:
            _append(path, msgspec.json.encode(whole))
        else:
            path.write_bytes(msgspec.json.format(msgspec.json.encode(whole)) + b"\n")
        raw.write_bytes(records_path.read_bytes())
    except OSError as problem:
        raise HostProblem(f"{path}: {problem.strerror}") from problem
    say(f"written: {path} and {raw.name}")


def file_name(found: BenchResult, flags: Flags, job: LoadJob, moment: str) -> str:
    """Return the name that vllm gives to such a file."""
    label = flags.label or _backend_name(flags, job)
    ramp = found.load.ramp_up
    if ramp is None:
        rate = f"{flags.request_rate}qps"
    else:
        rate = f"ramp-up-{ramp.strategy}-{ramp.start_rps:g}qps-{ramp.end_rps:g}qps"
    cap = "" if found.load.max_concurrency is None else f"-concurrency{found.load.max_concurrency}"
    return f"{label}-{rate}{cap}-{found.model.rpartition('/')[2]}-{moment}.json"


def _append(path: Path, line: bytes) -> None:
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = b"\n" + line
        file.write(line + b"\n")


def _backend_name(flags: Flags, job: LoadJob) -> str:
    usual = {"chat": "openai-chat", "completions": "openai", "generate": "sglang"}
    return backend_of(flags) or usual[job.rules.api]


def _about(found: BenchResult, flags: Flags, job: LoadJob, moment: str) -> dict[str, Any]:
    backend = _backend_name(flags, job)
    return {
        "date": moment,
        "endpoint_type": backend,
        "backend": backend,
        "label": flags.label,
        "model_id": found.model,
        "tokenizer_id": flags.tokenizer or flags.model,
        "seed": flags.seed,
        "dataset_name": found.workload.kind,
        "workload_digest": found.workload_digest,
        "endpoint": flags.endpoint,
        "url": found.url,
        "servetune": msgspec.to_builtins(found.client),
        "faults": msgspec.to_builtins(found.faults),
        "answers_without_usage": found.answers_without_usage,
        **flags.metadata,
    }
