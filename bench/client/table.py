"""Medians over the repeats, and the tables that people read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from bench.client.conditions import CONDITIONS
from bench.client.measure import Row
from bench.client.truth import LATENCIES, STATISTICS

_FLOOR = "floor-cpp"
_NUMBERS: dict[str, Callable[[Row], float | None]] = {
    "chunks_per_s": lambda row: row["chunks_per_s"],
    "cpu_ms_per_1k": lambda row: row["cpu_ms_per_1k"],
    "own_cpu_ms_per_1k": lambda row: row.get("own_cpu_ms_per_1k"),
    "client_share": lambda row: row["client_share"],
    "server_share": lambda row: row["server_share"],
    "start_up_s": lambda row: row["start_up_s"],
    "rss_largest_mib": lambda row: row["memory_mib"]["largest"],
    "rss_total_mib": lambda row: row["memory_mib"]["total"],
    "rss_worker_mib": lambda row: row["memory_mib"]["worker"],
    "most_open": lambda row: row["server"]["max_open"],
    "not_completed": lambda row: row["requests"] - row["completed"],
    "unresolved_ttft": lambda row: row["facts"].get("unresolved_ttft"),
    "true_ttft_mean_ms": lambda row: row["true"]["ttft"]["mean"],
}


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def medians(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return of each condition and client the median of every figure over its sound runs."""
    pairs = list(dict.fromkeys((row["condition"], row["client"]) for row in rows))
    return [_medians_of(rows, condition, client) for condition, client in pairs]


def _medians_of(rows: Sequence[Row], condition: str, client: str) -> dict[str, Any]:
    own = [row for row in rows if (row["condition"], row["client"]) == (condition, client)]
    sound = [row for row in own if "failed" not in row]
    floors = {
        row["repeat"]: row["cpu_ms_per_1k"]
        for row in rows
        if (row["condition"], row["client"]) == (condition, _FLOOR) and "failed" not in row
    }
    result: dict[str, Any] = {"condition": condition, "client": client, "runs": len(sound)}
    result["failed"] = len(own) - len(sound)
    result |= {name: _median(number(row) for row in sound) for name, number in _NUMBERS.items()}
    # In the same repeat: the machine's speed changes between them.
    result["cpu_to_floor"] = _median(
        row["cpu_ms_per_1k"] / floors[row["repeat"]] for row in sound if floors.get(row["repeat"])
    )
    result["error_ms"] = {
        latency: {
            statistic: _median(row["error"].get(latency, {}).get(statistic) for row in sound)
            for statistic in STATISTICS
        }
        for latency in LATENCIES
    }
    return result


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _line(row: dict[str, Any]) -> list[str]:
    error = row["error_ms"]
    true_ms, off = row["true_ttft_mean_ms"], error["ttft"]["mean"]
    return [
        row["client"],
        *(_cell(error["ttft"][statistic], "+.2f") for statistic in STATISTICS),
        _cell(off / true_ms * 100 if true_ms and off is not None else None, "+.1f"),
        _cell(error["tpot"]["mean"], "+.3f"),
        _cell(error["tpot"]["p99"], "+.2f"),
        *(_cell(error["itl"][statistic], "+.2f") for statistic in STATISTICS),
        _cell(row["chunks_per_s"], ",.0f"),
        _cell(row["cpu_ms_per_1k"], ".2f"),
        _cell(row["own_cpu_ms_per_1k"], ".2f"),
        _cell(row["cpu_to_floor"], ".2f"),
        _cell(row["client_share"], ".2f"),
        _cell(row["server_share"], ".2f"),
        _cell(row["rss_largest_mib"], ".0f"),
        _cell(row["rss_total_mib"], ".0f"),
        _cell(row["rss_worker_mib"], ".0f"),
        _cell(row["start_up_s"], ".2f"),
        _cell(row["most_open"], ".0f"),
        _cell(row["not_completed"], ".0f"),
        _cell(row["unresolved_ttft"], ".2%"),
        f"{row['runs']}" + (f", {row['failed']} failed" if row["failed"] else ""),
    ]


_HEADS = [
    "client",
    *(f"TTFT {statistic}" for statistic in STATISTICS),
    *("TTFT mean, %", "TPOT mean", "TPOT p99"),
    *(f"ITL {statistic}" for statistic in STATISTICS),
    *("chunks/s", "CPU ms/1k", "own CPU ms/1k", "CPU / floor-cpp", "client share", "server share"),
    *("RSS largest MiB", "RSS all MiB", "RSS worker MiB", "start-up s"),
    *("most open", "not completed", "unresolved TTFT", "runs"),
]


def tables(rows: Sequence[Row]) -> str:
    """Return one Markdown table a condition: errors (reported minus true) in ms, and the cost."""
    text = []
    summary = medians(rows)
    for name in dict.fromkeys(row["condition"] for row in summary):
        lines = [_line(row) for row in summary if row["condition"] == name]
        text += [f"\n{name}: {CONDITIONS[name].about}\n", " | ".join(["", *_HEADS, ""]).strip()]
        text.append("|" + " --- |" * len(_HEADS))
        text += [" | ".join(["", *line, ""]).strip() for line in lines]
    failures = [row for row in rows if "failed" in row]
    text += [f"\nfailed: {row['client']}, {row['condition']}: {row['failed']}" for row in failures]
    return "\n".join(text)
