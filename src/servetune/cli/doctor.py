"""`servetune doctor`: the host, the cache and the engines, and what here would spoil a measurement."""

from __future__ import annotations

import resource
import sys

import click

from servetune import cache, lock
from servetune.cli.console import print_json, say, say_heading, say_table
from servetune.cli.engines import EngineState, engine_states, say_states
from servetune.loadgen.calibrate import Calibration, calibrate
from servetune.records import Finding, HostFacts, Record
from servetune.telemetry import host as telemetry_host


class CacheState(Record, frozen=True, kw_only=True):
    """Models, variants and engines that servetune has fetched or made."""

    folder: str
    size_bytes: int


class Diagnosis(Record, frozen=True, kw_only=True):
    """Everything that `servetune doctor` says."""

    host: HostFacts
    descriptors_soft: int
    """Files and sockets that one process may open now; -1: no limit."""
    descriptors_hard: int
    """To which it may raise that by itself."""
    cache: CacheState
    engines: list[EngineState]
    problems: list[Finding]
    measuring: str | None
    """Who holds the host's measuring lock now."""


_EPILOG = """\b
Examples:
  servetune doctor                       is this machine fit to measure on?
  servetune doctor --client              what can the load client do on this machine?
  servetune doctor --clear-cache --yes   remove fetched models and made variants
"""


@click.command(epilog=_EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
@click.option("--client", "measures_client", is_flag=True, help="Measure the load client alone, for ten seconds.")
@click.option("--clear-cache", "clears", is_flag=True, help="Remove everything in the cache folder.")
@click.option("--yes", is_flag=True, help="Do not ask before the cache is cleared.")
def doctor(*, as_json: bool, measures_client: bool, clears: bool, yes: bool) -> None:
    """Say what on this host would spoil a measurement, and which engines can be used."""
    if measures_client:
        with lock.measuring("calibration of the load client"):
            calibration = calibrate()
        print_json(calibration) if as_json else _say_calibration(calibration)
        return
    if clears:
        _clear(is_sure=yes)
    diagnosis = examine()
    print_json(diagnosis) if as_json else _say(diagnosis)


def examine() -> Diagnosis:
    """Look at this machine; takes a few seconds where engines must be asked for their versions."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Diagnosis(
        host=telemetry_host.facts(),
        descriptors_soft=soft,
        descriptors_hard=hard,
        cache=CacheState(folder=str(cache.cache_dir()), size_bytes=cache.cache_size_bytes()),
        engines=engine_states(),
        problems=list(telemetry_host.problems()),
        measuring=lock.holder(),
    )


def _clear(*, is_sure: bool) -> None:
    """Clear the cache, after a question unless `is_sure`; without a terminal nobody could answer it."""
    size = f"{cache.cache_size_bytes() / 1e6:.0f} MB in {cache.cache_dir()}"
    if not is_sure:
        if not sys.stdin.isatty():
            raise click.UsageError(f"would remove {size}; add --yes, since there is no terminal to ask on")
        if not click.confirm(f"Remove {size}?", err=True):
            say("nothing was removed")
            return
    cache.clear_cache()
    say(f"removed {size}")


def _say(diagnosis: Diagnosis) -> None:
    say_table(("host", ""), _host_rows(diagnosis))
    say_heading("engines")
    say_states(diagnosis.engines)
    say_heading("what would spoil a measurement")
    if diagnosis.measuring:
        say(f"a servetune measures right now ({diagnosis.measuring}); a second one is refused until it ends")
    for problem in diagnosis.problems:
        say(f"{problem.severity}: {problem.evidence}" + (f" -> {problem.advice}" if problem.advice else ""))
    if not diagnosis.problems and not diagnosis.measuring:
        say("nothing found")


def _say_calibration(calibration: Calibration) -> None:
    added = calibration.added_ttft_ms
    say_table(("load client, one worker", ""), [
        ("receive times from", "the kernel" if calibration.stamps == "kernel" else "the client's own clock"),
        ("adds to TTFT", f"median {added.median:.3f} ms, p99 {added.p99:.3f} ms"),
        (
            "256 streams, 20 ms apart",
            (f"{calibration.paced_chunks_per_s:,.0f} chunks/s on {calibration.paced_client_share:.0%} of a core: "
            f"{calibration.paced_cpu_us:.1f} us each, ITL p99 {calibration.paced_itl_p99_ms:.2f} ms"),
        ),
        (
            "as fast as they come",
            (f"{calibration.chunks_per_s:,.0f} chunks/s one a packet ({calibration.cpu_us:.1f} us each), "
            f"{calibration.coalesced_chunks_per_s:,.0f} merged ({calibration.coalesced_cpu_us:.2f} us each)"),
        ),
        ("fills one core at about", f"{calibration.worker_chunks_per_s:,.0f} chunks/s"),
        ("workers by itself, at most", str(calibration.workers)),
    ])  # fmt: skip


def _host_rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    host = diagnosis.host
    load = "unknown" if host.load_average is None else f"{host.load_average:.2f} on {host.cores} cores"
    free = "" if host.memory_available_gib is None else f", {host.memory_available_gib:.1f} GiB available"
    return [
        ("processor", f"{host.cpu}, {host.cores} cores" + (f" ({' '.join(host.cpu_flags)})" if host.cpu_flags else "")),
        ("accelerators", ", ".join(host.gpus) or "none"),
        ("memory", f"{host.memory_gib:.1f} GiB{free}"),
        ("load", load),
        (
            "descriptors",
            f"{_limit(diagnosis.descriptors_soft)} (may be raised to {_limit(diagnosis.descriptors_hard)})",
        ),
        ("cache", f"{diagnosis.cache.size_bytes / 1e6:.0f} MB in {diagnosis.cache.folder}"),
        ("system", f"{host.os}, kernel {host.kernel}, Python {host.python}, servetune {host.servetune}"),
    ]


def _limit(value: int) -> str:
    return "no limit" if value == resource.RLIM_INFINITY else str(value)
