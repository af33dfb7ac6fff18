"""`servetune bench`: load one server that already runs, and print its figures as `vllm bench serve` does.

The load worker is started before anything else, so that its start takes place while the prompts are made; what is
needed only for that, or only for the figures, is imported when its time comes.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from servetune.cli.bench_flags import GROUPS, BenchCommand, Flags
from servetune.cli.bench_paste import NOTES
from servetune.cli.bench_progress import progress
from servetune.cli.console import say
from servetune.loadgen.run import first_worker, read_records, run_load
from servetune.lock import measuring
from servetune.masking import mask_text

_EPILOG = """\b
Flags of vllm bench serve work as they are pasted: --num_prompts 100, --goodput ttft:200 tpot:50.
Examples:
  servetune bench --base-url http://127.0.0.1:8000 --num-prompts 100
  servetune bench --backend openai-chat --endpoint /v1/chat/completions \\
      --model Qwen/Qwen3-14B --dataset-name random --random-input-len 128 --random-output-len 4
"""


@click.command(cls=BenchCommand, params=[option for group in GROUPS.values() for option in group], epilog=_EPILOG)
@click.pass_context
def bench(context: click.Context, /, **given: Any) -> None:
    """Load one server that already runs and print its figures."""
    flags = Flags(**given)
    for note in context.meta[NOTES]:
        say(f"note: {note}")
    with tempfile.TemporaryDirectory(prefix="servetune-bench-") as folder, first_worker() as worker:
        from servetune.cli import bench_job  # noqa: PLC0415  # see above

        job, spec = bench_job.prepare(flags)
        for note in bench_job.notes(flags):
            say(f"note: {note}")
        records_path = Path(folder) / "requests.records"
        with (
            measuring(f"bench of {mask_text(job.url)}"),
            _stopping() as stopped,
            progress(quiet=flags.disable_tqdm) as emit,
        ):
            client = run_load(
                job, out=records_path, emit=emit, cancelled=stopped, server_alive=lambda: True, first=worker
            )
        from servetune.cli import bench_output  # noqa: PLC0415

        records = read_records(records_path)
        result = bench_output.result(flags, job, spec, client, records, interrupted=stopped())
        bench_output.show(result, flags)
        if bench_job.saves(flags):
            bench_output.save(result, flags, job, records, records_path)
    if result.interrupted:
        say("interrupted: the figures above are those of the requests that had finished")
        context.exit(130)
    context.exit(0 if result.summary.completed else 1)


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Turn SIGINT, SIGTERM and SIGHUP into a question that the load asks."""
    received: list[int] = []
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {name: signal.signal(name, lambda number, _: received.append(number)) for name in names}
    try:
        yield lambda: bool(received)
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
