"""Holds load clients against the truth: `python -m bench.client.run`, or `make bench-client`.

Builds a server that knows when each request reached it and when each token was written, and runs servetune's client,
two floors and the rivals that are installed, one after the other, client and server on a core each. Prints the errors
of TTFT, TPOT and ITL (reported minus true), what each client costs, and writes all runs as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.client.build import build_floor, build_server, compiler, train_tokenizer
from bench.client.clients import CLIENTS, Installed, find_clients
from bench.client.conditions import CONDITIONS, QUICK, Condition
from bench.client.measure import Bench, Row, measure
from bench.client.processes import cores
from bench.client.table import medians, tables

_ROOT = Path(__file__).parents[2]
_BUILT = _ROOT / "build" / "bench-client"
_RESULT = _ROOT / "bench" / "results" / "client.json"
_REPEATS = 5
_AROUND_S = 2.0


def _runs(conditions: Sequence[Condition], clients: Sequence[Installed]) -> list[tuple[Condition, Installed]]:
    """Return what one repeat measures, in order."""
    return [
        (condition, installed)
        for condition in conditions
        for installed in clients
        if condition.name not in installed.client.skips
        and (condition.workers is None or installed.client.name == "servetune")
    ]


def _duration_min(runs: Sequence[tuple[Condition, Installed]], repeats: int) -> float:
    seconds = (
        installed.client.start_up_s
        + condition.load_s(installed.client.chunks_per_s, is_slow=installed.client.is_slow)
        + _AROUND_S
        for condition, installed in runs
    )
    return repeats * sum(seconds) / 60


def _whole_campaign_min(*, with_rivals: bool) -> float:
    clients = [client for client in CLIENTS.values() if with_rivals or client.package is None]
    installed = [Installed(client, Path(sys.executable), "") for client in clients]
    return _duration_min(_runs(list(CONDITIONS.values()), installed), _REPEATS)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.client.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=(
            f"All conditions, {_REPEATS} repeats: about {_whole_campaign_min(with_rivals=False):.0f} minutes without "
            f"rivals, {_whole_campaign_min(with_rivals=True):.0f} with all of them. Nothing else should run meanwhile."
        ),
    )
    parser.add_argument("--conditions", type=_names, help=f"some of {','.join(CONDITIONS)}; default: all")
    parser.add_argument("--clients", type=_names, help=f"some of {','.join(CLIENTS)}; default: all that are installed")
    parser.add_argument("--repeats", type=int, help=f"default: {_REPEATS}")
    parser.add_argument(
        "--rivals-python",
        type=_names,
        default=_names(os.environ.get("SERVETUNE_RIVALS", "")),
        metavar="PATH,...",
        help="virtual environments (or interpreters) with rivals; default: $SERVETUNE_RIVALS",
    )
    parser.add_argument(
        "--instrument", type=Path, metavar="DIR", help="use the server DIR/sse_server.cpp, with the same options"
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"one repeat of {' and '.join(QUICK)}, written to build/bench-client/"
    )
    parser.add_argument("--out", type=Path, help="default: bench/results/client.json")
    arguments = parser.parse_args()
    for given, known in ((arguments.conditions, CONDITIONS), (arguments.clients, CLIENTS)):
        for name in given or ():
            if name not in known:
                parser.error(f"{name} is unknown; there are {', '.join(known)}")
    arguments.conditions = arguments.conditions or (list(QUICK) if arguments.quick else list(CONDITIONS))
    arguments.repeats = arguments.repeats or (1 if arguments.quick else _REPEATS)
    arguments.out = arguments.out or (_BUILT / "client.json" if arguments.quick else _RESULT)
    return arguments


def _machine() -> dict[str, Any]:
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }


def _chosen(installed: Sequence[Installed], wanted: Sequence[str] | None) -> list[Installed]:
    names = {one.client.name for one in installed}
    missing = [name for name in (wanted or CLIENTS) if name not in names]
    if missing:
        print(f"not installed, so left out: {', '.join(missing)} (--rivals-python)", file=sys.stderr)
    return [one for one in installed if wanted is None or one.client.name in wanted]


def main() -> int:
    """Measure all, print and write; returns the exit code: 1 if a run of ours or of a floor failed."""
    arguments = _arguments()
    if sys.platform != "linux":
        print("bench-client needs Linux: its server measures with the kernel's receive times", file=sys.stderr)
        return 3
    if compiler() is None:
        print("bench-client needs g++ (Debian and Ubuntu: apt-get install g++)", file=sys.stderr)
        return 3
    clients = _chosen(find_clients([Path(name) for name in arguments.rivals_python]), arguments.clients)
    runs = _runs([CONDITIONS[name] for name in arguments.conditions], clients)
    print(f"{len(runs)} runs, {arguments.repeats} times: {_duration_min(runs, arguments.repeats):.0f} minutes or so")
    if None in cores():
        print("server and client share the cores: fewer than two are free, or taskset is missing", file=sys.stderr)
    rows: list[Row] = []
    result: dict[str, Any] = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
        "server": "sse_server" if arguments.instrument else "truth_server",
        "versions": {one.client.name: one.version for one in clients},
        "conditions": {name: CONDITIONS[name]._asdict() for name in arguments.conditions},
    }
    with tempfile.TemporaryDirectory(prefix="servetune-bench-client-") as name:
        folder = Path(name)
        bench = Bench(
            build_server(_BUILT, arguments.instrument), build_floor(_BUILT), train_tokenizer(folder / "tokenizer")
        )
        for repeat in range(arguments.repeats):
            for number, (condition, installed) in enumerate(runs):
                with tempfile.TemporaryDirectory(dir=folder) as own:
                    row = {"repeat": repeat, **measure(bench, installed, condition, Path(own))}
                rows.append(row)
                print(f"{repeat + 1}.{number + 1} {_one_line(row)}", flush=True)
            _write(arguments.out, {**result, "repeats": repeat + 1, "medians": medians(rows), "rows": rows})
    print(tables(rows))
    ours = {name for name, client in CLIENTS.items() if client.package is None}
    return 1 if any("failed" in row and row["client"] in ours for row in rows) else 0


def _one_line(row: Row) -> str:
    about = f"{row['condition']} {row['client']}:"
    if "failed" in row:
        return f"{about} failed: {row['failed'].strip().splitlines()[-1]}"
    off = ", ".join(f"{name} {value:+.3f}" for name, value in row["error"].get("ttft", {}).items())
    return (
        f"{about} TTFT {off} ms; {row['chunks_per_s']:,.0f} chunks/s, {row['cpu_ms_per_1k']:.2f} ms CPU/1k, "
        f"server {row['server_share']:.2f}, start-up {row['start_up_s']:.2f} s"
    )


def _write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
