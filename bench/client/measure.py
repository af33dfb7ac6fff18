"""One run: a fresh server, one client, and what both say of it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.client.clients import Installed, Reported, Setting, environment
from bench.client.conditions import Condition
from bench.client.processes import Group, Watch, cores
from bench.client.truth import Answer, errors, measured, read_truth, true_figures, window

from servetune.engines.process import free_port

_SAMPLE_S = 0.01
_START_S = 20.0
_END_S = 60.0
_LONGEST_S = 900
_TAIL = 400
_NS_PER_S = 1e9

Row = dict[str, Any]
"""One run as it is written to the result."""


class Bench(NamedTuple):
    """What all runs share."""

    server: Path
    floor: Path
    tokenizer: Path


def measure(bench: Bench, installed: Installed, condition: Condition, folder: Path) -> Row:
    """Run one client once; a client that fails gives a row with `failed`, the end of what it printed."""
    client = installed.client
    requests = condition.requests_for(is_slow=client.is_slow)
    setting = Setting(
        installed.python, free_port(), condition, requests, bench.tokenizer, folder / "client", bench.floor
    )
    setting.folder.mkdir()
    row: Row = {"condition": condition.name, "client": client.name, "requests": requests}
    server_core, client_core = cores()
    groups = Group("server", server_core), Group("client", None if condition.workers else client_core)
    try:
        watch = Watch(*groups)
        with _serving(bench.server, setting, groups[0], folder):
            begin_ns = time.monotonic_ns()
            failure = _run_client(installed, setting, groups[1], watch)
        server = json.loads((folder / f"{bench.server.name}.out").read_text())
        answers = measured(read_truth(folder / "truth.bin"), requests, condition.tokens)
        row["server"] = {**server, "weighted": groups[0].is_weighted, "pinned": server_core is not None}
        if failure or not answers:
            return {**row, "failed": failure or "the server saw no request of it"}
        first_ns = min(answer.arrived_ns for answer in read_truth(folder / "truth.bin"))
        row["start_up_s"] = (first_ns - begin_ns) / _NS_PER_S
        return {**row, **_figures(answers, client.read(setting), condition, watch)}
    except (OSError, ValueError, KeyError) as problem:
        return {**row, "failed": f"{type(problem).__name__}: {problem}"}
    finally:
        for group in groups:
            group.close()


@contextmanager
def _serving(program: Path, setting: Setting, group: Group, folder: Path) -> Iterator[None]:
    condition = setting.condition
    argv = [
        *(str(program), "--port", str(setting.port), "--out", str(folder / "truth.bin")),
        *("--prefill-ms", str(condition.prefill_ms), "--interval-ms", str(condition.interval_ms)),
        *("--burst", str(condition.burst), "--max-run-s", str(_LONGEST_S)),
    ]
    server = group.start(argv, env={}, folder=folder)
    said = folder / f"{program.name}.err"
    until = time.monotonic() + _START_S
    while "ready" not in said.read_text():
        if server.poll() is not None or time.monotonic() > until:
            raise OSError(f"the server did not start: {said.read_text()}")
        time.sleep(0.01)
    try:
        yield
    finally:
        server.terminate()
        try:
            server.wait(_END_S)
        except subprocess.TimeoutExpired:
            group.kill()
            server.wait(_END_S)


def _run_client(installed: Installed, setting: Setting, group: Group, watch: Watch) -> str:
    """Run the client to its end; returns why it failed, or nothing."""
    client = installed.client
    argv = client.argv(setting)
    watch.sample()
    process = group.start(argv, env=environment(client, setting.folder), folder=setting.folder)
    until = time.monotonic() + _LONGEST_S
    while process.poll() is None:
        if time.monotonic() > until:
            group.kill()
            process.wait(_END_S)
            return f"it had not ended after {_LONGEST_S} s"
        watch.sample()
        time.sleep(_SAMPLE_S)
    watch.sample()
    if process.returncode == 0:
        return ""
    said = "".join((setting.folder / f"{Path(argv[0]).name}.{end}").read_text()[-_TAIL:] for end in ("out", "err"))
    return f"exit code {process.returncode}: {said}"


def _figures(answers: list[Answer], reported: Reported, condition: Condition, watch: Watch) -> Row:
    seen = window(answers, condition.concurrency, is_paced=condition.is_paced)
    server_s, client_s = watch.cpu_s(seen.begin_ns, seen.end_ns)
    span_s = (seen.end_ns - seen.begin_ns) / _NS_PER_S
    true = true_figures(answers)
    facts = reported.facts
    row: Row = {
        "answered": len(answers),
        "completed": reported.completed,
        "span_s": span_s,
        "chunks_per_s": seen.chunks_per_s,
        "cpu_ms_per_1k": client_s * 1e6 / seen.chunks,
        "client_share": client_s / span_s,
        "server_share": server_s / span_s,
        "memory_mib": watch.memory()._asdict(),
        "true": true,
        "reported": reported.figures,
        "error": errors(reported.figures, true),
        "facts": facts,
    }
    if facts:
        row["own_cpu_ms_per_1k"] = facts["cpu_share"] * facts["duration_ns"] / seen.chunks / 1e3
    return row
