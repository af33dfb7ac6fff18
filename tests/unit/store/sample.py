"""Small but complete records for tests of the store."""

from __future__ import annotations

from servetune.records import (
    ClientFacts,
    Command,
    Completed,
    Config,
    Failed,
    Load,
    Measurement,
    Run,
    RunRequest,
    Summary,
    Trial,
)

CLIENT = ClientFacts(
    stamps="kernel",
    workers=1,
    epoch_ns=0,
    duration_ns=1_000_000_000,
    clock_step_ns=0,
    cpu_share=0.1,
    max_loop_lag_ms=1.0,
    late_sends=0,
    multi_event_reads=0.0,
    unresolved_ttft=0.0,
    peak_open=4,
)


def summary(throughput: float = 100.0) -> Summary:
    """A sound summary without latencies."""
    return Summary(
        definitions="strict",
        completed=10,
        failed=0,
        duration_s=1.0,
        total_input_tokens=60,
        total_output_tokens=40,
        request_throughput=10.0,
        output_throughput=40.0,
        total_token_throughput=throughput,
        peak_output_throughput=50.0,
        peak_concurrency=4,
        latency={},
        token_source="usage",
    )


def run(workload: str, repeat: int, throughput: float = 100.0) -> Run:
    """One finished run."""
    return Run(
        workload=workload,
        repeat=repeat,
        seed=1,
        load=Load(),
        summary=summary(throughput),
        client=CLIENT,
        records_file=f"runs/{workload}-{repeat}.records",
    )


def trial(
    number: int, *, outcome: Completed | Failed | None = None, runs: tuple[Run, ...] = (), config: Config | None = None
) -> Trial:
    """One trial of a mock config."""
    wanted = Measurement(
        config=config or Config(engine="mock"),
        runs=(RunRequest(workload="chat", repeat=0),),
        step="engine",
        block=0,
        role="incumbent",
    )
    return Trial(
        number=number,
        measurement=wanted,
        outcome=outcome or Completed(),
        runs=runs,
        command=Command(argv=("mock",)),
        engine_version="1",
        started_at="2026-01-01T00:00:00+00:00",
        start_s=0.5,
        wall_s=3.0,
        peak_rss_mib=20.0,
        log_file="logs/0001.log",
    )
