"""What the load client can do on this machine: a short load against a server that only answers."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servetune.errors import HostProblem
from servetune.limits import usable_cores
from servetune.loadgen.recordfile import read_records
from servetune.loadgen.run import LoadJob, run_load
from servetune.metrics import summarize
from servetune.records import BodyRules, ClientFacts, Distribution, Load, Record, Request, Summary

_TOKENS = 128
_WAIT_S = 10
SIZES = {"alone": 300, "paced": 768, "fast": 1024, "coalesced": 8192}
"""Requests of each load."""


class Calibration(Record, frozen=True, kw_only=True):
    """Figures of the load client alone, one worker."""

    stamps: str
    """Who gives the receive times."""
    added_ttft_ms: Distribution
    """TTFT against a server that answers at once: what client, kernel and loopback add."""
    paced_chunks_per_s: float
    """256 streams with an event every 20 ms."""
    paced_cpu_us: float
    """Processor time of the client for each of these chunks."""
    paced_itl_p99_ms: float
    paced_client_share: float
    chunks_per_s: float
    """One event a packet, as fast as the server writes: the server may have been the limit."""
    cpu_us: float
    """Processor time of the client for each of these chunks."""
    coalesced_chunks_per_s: float
    """A whole answer in one write."""
    coalesced_cpu_us: float
    workers: int
    """Most workers that a load of this machine gets by itself."""

    @property
    def worker_chunks_per_s(self) -> float:
        """Chunks per second that would fill one core."""
        return 1e6 / self.paced_cpu_us if self.paced_cpu_us else 0.0


def calibrate() -> Calibration:
    """Measure; takes about ten seconds. Raises HostProblem where the built-in server does not start."""
    alone, _ = _loaded(requests=SIZES["alone"], streams=1, tokens=1)
    paced, paced_facts = _loaded(requests=SIZES["paced"], streams=256, interval_ms=20.0)
    fast, fast_facts = _loaded(requests=SIZES["fast"], streams=256)
    coalesced, coalesced_facts = _loaded(requests=SIZES["coalesced"], streams=256, events_per_write=_TOKENS)
    return Calibration(
        stamps=paced_facts.stamps,
        added_ttft_ms=alone.latency["ttft"],
        paced_chunks_per_s=paced.output_throughput,
        paced_cpu_us=_cpu_us(paced, paced_facts),
        paced_itl_p99_ms=paced.latency["itl"].p99,
        paced_client_share=paced_facts.cpu_share,
        chunks_per_s=fast.output_throughput,
        cpu_us=_cpu_us(fast, fast_facts),
        coalesced_chunks_per_s=coalesced.output_throughput,
        coalesced_cpu_us=_cpu_us(coalesced, coalesced_facts),
        workers=max(1, usable_cores() - 1),
    )


def _cpu_us(summary: Summary, facts: ClientFacts) -> float:
    return facts.cpu_share * facts.duration_ns / 1e3 / max(1, summary.total_output_tokens)


def _loaded(
    *, requests: int, streams: int, tokens: int = _TOKENS, interval_ms: float = 0.0, events_per_write: int = 1
) -> tuple[Summary, ClientFacts]:
    asked = tuple(
        Request(index=index, prompt="word " * 64, prompt_tokens=64, output_tokens=tokens) for index in range(requests)
    )
    load = Load(max_concurrency=streams, warmup_requests=0, workers=1, total_timeout_s=120.0)
    with _server(interval_ms, events_per_write) as port, tempfile.TemporaryDirectory(prefix="servetune-") as folder:
        job = LoadJob(
            url=f"http://127.0.0.1:{port}",
            requests=asked,
            rules=BodyRules(api="completions", model="noop"),
            load=load,
        )
        out = Path(folder) / "records"
        facts = run_load(job, out=out, emit=lambda _: None, cancelled=lambda: False, server_alive=lambda: True)
        return summarize(read_records(out), facts, "strict"), facts


@contextmanager
def _server(interval_ms: float, events_per_write: int) -> Iterator[int]:
    argv = [
        *(sys.executable, "-m", "servetune.loadgen.noop_server"),
        *("--interval-ms", str(interval_ms), "--events-per-write", str(events_per_write)),
    ]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        port = server.stdout.readline()
        if not port:
            raise HostProblem(f"the built-in server ended with exit code {server.wait()}")
        try:
            yield int(port)
        finally:
            server.stdin.close()
            server.wait(_WAIT_S)
