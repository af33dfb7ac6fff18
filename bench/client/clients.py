"""The load clients that are compared: how each is called, and where its figures stand. Nothing of theirs is here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.client.conditions import Condition
from bench.client.truth import LATENCIES, STATISTICS, Figures

_HERE = Path(__file__).parent
_PROMPT_TOKENS = 64
_NEVER_ONLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
_SILENT = {"DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false"}
_ASK_VERSIONS = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


class Setting(NamedTuple):
    """What a client is started with."""

    python: Path
    """The interpreter that has the client; its scripts lie beside it."""
    port: int
    condition: Condition
    requests: int
    tokenizer: Path
    folder: Path
    """Working folder of the client: what it writes is read there."""
    floor: Path
    """The floor in C++, built."""

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self.port}"


class Reported(NamedTuple):
    """What a client says."""

    completed: int
    figures: Figures
    facts: dict[str, Any]
    """What servetune's client says about itself."""


class Client(NamedTuple):
    """One load client."""

    name: str
    package: str | None
    """The distribution that has to be installed; None for ours and the floors."""
    argv: Callable[[Setting], list[str]]
    read: Callable[[Setting], Reported]
    start_up_s: float
    """About how long it takes to its first request, for the estimate of the whole duration."""
    chunks_per_s: float
    """About how many chunks it takes on one core at best, likewise."""
    is_slow: bool = True
    env: Mapping[str, str] = _NEVER_ONLINE
    skips: frozenset[str] = frozenset()
    """Conditions that it does not stand, or takes minutes for."""


class Installed(NamedTuple):
    """A client that can be run here."""

    client: Client
    python: Path
    version: str


def environment(client: Client, folder: Path) -> dict[str, str]:
    """Return the environment of a client: the user's, without what would change the measurement."""
    kept = {name: value for name, value in os.environ.items() if name not in _NEVER_ONLINE and name != "PYTHONPATH"}
    return {**kept, **_SILENT, **client.env, "SERVETUNE_LOCK": str(folder / "measure.lock")}


def _distribution(source: Mapping[str, Any], mean: str, median: str, p99: str) -> dict[str, float]:
    named = zip(STATISTICS, (mean, median, p99), strict=True)
    return {statistic: float(source[key]) for statistic, key in named if source.get(key) is not None}


def _printed(setting: Setting, program: str) -> dict[str, Any]:
    printed: dict[str, Any] = json.loads((setting.folder / f"{program}.out").read_text())
    return printed


def _load(condition: Condition) -> list[str]:
    if condition.rate:
        return ["--request-rate", str(condition.rate)]
    return ["--max-concurrency", str(condition.concurrency)]


def _servetune(setting: Setting) -> list[str]:
    condition = setting.condition
    workers = ["--workers", str(condition.workers)] if condition.workers else []
    return [
        *(str(setting.python), "-m", "servetune.cli.main", "bench", "--json", "--no-progress"),
        *("--base-url", setting.url, "--backend", "openai", "--model", "stub-model"),
        *("--tokenizer", str(setting.tokenizer), "--dataset-name", "random"),
        *("--random-input-len", str(_PROMPT_TOKENS), "--random-output-len", str(condition.tokens)),
        *("--num-warmups", "0", "--num-prompts", str(setting.requests), *_load(condition), *workers),
    ]


def _read_servetune(setting: Setting) -> Reported:
    printed = _printed(setting, setting.python.name)
    latencies = printed["summary"]["latency"]
    figures = {name: _distribution(latencies[name], *STATISTICS) for name in LATENCIES if name in latencies}
    facts = {**printed["client"], "findings": [finding["code"] for finding in printed["findings"]]}
    return Reported(printed["summary"]["completed"], figures, facts)


def _floor_arguments(setting: Setting) -> list[str]:
    condition = setting.condition
    rate = [str(condition.rate)] if condition.rate else []
    numbers = (setting.port, condition.concurrency, setting.requests, condition.tokens)
    return [*map(str, numbers), *rate]


def _floor_cpp(setting: Setting) -> list[str]:
    return [str(setting.floor), *_floor_arguments(setting)]


def _floor_py(setting: Setting) -> list[str]:
    return [str(setting.python), str(_HERE / "floor.py"), *_floor_arguments(setting)]


def _read_floor(setting: Setting, program: str) -> Reported:
    printed = _printed(setting, program)
    return Reported(printed["completed"], {name: printed[name] for name in LATENCIES if name in printed}, {})


def _vllm(setting: Setting) -> list[str]:
    condition = setting.condition
    return [
        *(str(setting.python), "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai"),
        *("--endpoint", "/v1/completions", "--host", "127.0.0.1", "--port", str(setting.port)),
        *("--model", "stub-model", "--tokenizer", str(setting.tokenizer), "--dataset-name", "random"),
        *("--random-input-len", str(_PROMPT_TOKENS), "--random-output-len", str(condition.tokens)),
        *("--num-prompts", str(setting.requests), *_load(condition), "--ignore-eos", "--disable-tqdm", "--save-result"),
        *("--result-dir", str(setting.folder), "--result-filename", "result.json"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99"),
    ]


def _flat(result: Mapping[str, Any]) -> Reported:
    figures = {
        name: _distribution(result, f"mean_{name}_ms", f"median_{name}_ms", f"p99_{name}_ms") for name in LATENCIES
    }
    return Reported(result["completed"], figures, {})


def _read_flat(setting: Setting) -> Reported:
    return _flat(json.loads((setting.folder / "result.json").read_text().splitlines()[-1]))


def _sglang(setting: Setting, module: str, *more: str) -> list[str]:
    condition = setting.condition
    return [
        *(str(setting.python), "-m", f"sglang.benchmark.{module}", "--backend", "vllm", "--host", "127.0.0.1"),
        *("--port", str(setting.port), "--dataset-name", "random-ids", "--random-range-ratio", "1"),
        *("--random-input-len", str(_PROMPT_TOKENS), "--random-output-len", str(condition.tokens)),
        *("--num-prompts", str(setting.requests), *_load(condition), "--model", "stub-model"),
        *("--tokenizer", str(setting.tokenizer), "--disable-tqdm"),
        *("--output-file", str(setting.folder / "result.json"), *more),
    ]


def _guidellm(setting: Setting) -> list[str]:
    condition = setting.condition
    profile = (
        f"kind=poisson,rate={condition.rate}" if condition.rate else f"kind=concurrent,streams={condition.concurrency}"
    )
    backend = f"kind=openai_http,target={setting.url},model=stub-model,request_format=/v1/completions"
    data = f"kind=synthetic_text,prompt_tokens={_PROMPT_TOKENS},output_tokens={condition.tokens}"
    return [
        *(str(setting.python.parent / "guidellm"), "run", "--backend", backend, "--profile", profile),
        *("--constraint", f"kind=max_requests,count={setting.requests}", "--data", data),
        *("--tokenizer", f"kind=huggingface_auto,model={setting.tokenizer}"),
        *("--output", f"kind=json,path={setting.folder / 'result.json'}", "--disable-console-interactive"),
    ]


def _read_guidellm(setting: Setting) -> Reported:
    metrics = json.loads((setting.folder / "result.json").read_text())["benchmarks"][0]["metrics"]
    figures = {}
    # Its inter-token latency is one value a request: what others call TPOT.
    for name, key in (("ttft", "time_to_first_token_ms"), ("tpot", "inter_token_latency_ms")):
        values = metrics[key]["successful"]
        figures[name] = _distribution({**values, "p99": values["percentiles"]["p99"]}, *STATISTICS)
    return Reported(metrics["request_totals"]["successful"], figures, {})


def _aiperf(setting: Setting) -> list[str]:
    condition = setting.condition
    load = (
        ["--request-rate", str(condition.rate), "--arrival-pattern", "poisson"]
        if condition.rate
        else ["--concurrency", str(condition.concurrency)]
    )
    return [
        *(str(setting.python.parent / "aiperf"), "profile", "-m", "stub-model", "--url", setting.url),
        *("--endpoint-type", "completions", "--streaming", *load, "--request-count", str(setting.requests)),
        *("--isl", str(_PROMPT_TOKENS), "--osl", str(condition.tokens), "--tokenizer", str(setting.tokenizer)),
        *("--extra-inputs", "ignore_eos:true", "--ui", "none", "--use-legacy-max-tokens"),
        *("--use-server-token-count", "--no-gpu-telemetry", "--no-server-metrics", "--export-level", "records"),
    ]


def _read_aiperf(setting: Setting) -> Reported:
    (path,) = (setting.folder / "artifacts").glob("*/profile_export_aiperf.json")
    result = json.loads(path.read_text())
    keys = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "itl": "inter_chunk_latency"}
    figures = {name: _distribution(result[key], "avg", "p50", "p99") for name, key in keys.items() if key in result}
    return Reported(int(result["request_count"]["avg"]), figures, {})


def _evalscope(setting: Setting) -> list[str]:
    condition = setting.condition
    load = (
        ["--open-loop", "--rate", str(condition.rate)] if condition.rate else ["--parallel", str(condition.concurrency)]
    )
    return [
        *(str(setting.python.parent / "evalscope"), "perf", "--model", "stub-model", "--api", "openai"),
        *("--url", f"{setting.url}/v1/completions", *load, "-n", str(setting.requests), "--dataset", "random"),
        *("--tokenizer-path", str(setting.tokenizer), "--stream", "--no-test-connection"),
        *("--min-prompt-length", str(_PROMPT_TOKENS), "--max-prompt-length", str(_PROMPT_TOKENS)),
        *("--min-tokens", str(condition.tokens), "--max-tokens", str(condition.tokens)),
    ]


def _read_evalscope(setting: Setting) -> Reported:
    (path,) = (setting.folder / "outputs").glob("*/*/*/benchmark_summary.json")
    summary = json.loads(path.read_text())
    rows = json.loads((path.parent / "benchmark_percentile.json").read_text())
    percentiles = {row["Percentiles"]: row for row in rows}
    figures = {}
    for name in LATENCIES:
        key = f"{name.upper()} (ms)"
        values = {"mean": summary[f"Avg {key}"], "median": percentiles["50%"][key], "p99": percentiles["99%"][key]}
        figures[name] = {statistic: float(value) for statistic, value in values.items()}
    return Reported(summary["Success Requests"], figures, {})


CLIENTS = {
    client.name: client
    for client in (
        Client("servetune", None, _servetune, _read_servetune, 1, 1_000_000, is_slow=False),
        Client("floor-cpp", None, _floor_cpp, lambda setting: _read_floor(setting, "floor"), 0.1, 5e6, is_slow=False),
        Client(
            "floor-py",
            None,
            _floor_py,
            lambda setting: _read_floor(setting, setting.python.name),
            *(0.2, 4e6),
            is_slow=False,
        ),
        Client("vllm", "vllm", _vllm, _read_flat, 19, 80_000),
        Client(
            "sglang-rust",
            "sglang",
            lambda setting: _sglang(setting, "rust_client", "--disable-retokenize"),
            _read_flat,
            *(10, 200_000),
        ),
        Client("sglang-py", "sglang", lambda setting: _sglang(setting, "serving"), _read_flat, 13, 80_000),
        Client(
            "guidellm",
            "guidellm",
            _guidellm,
            _read_guidellm,
            *(42, 10_000),
            skips=frozenset({"firehose-coalesced", "streams-10000"}),
        ),
        Client(
            "aiperf",
            "aiperf",
            _aiperf,
            _read_aiperf,
            *(14, 14_000),
            # It refuses the path of a tokenizer when it is told to stay offline.
            env={},
            skips=frozenset({"firehose-coalesced", "streams-10000"}),
        ),
        Client("evalscope", "evalscope", _evalscope, _read_evalscope, 10, 50_000),
    )
}


def _python_of(path: Path) -> Path | None:
    candidates = (path / "bin" / "python", path) if path.is_dir() else (path,)
    return next((candidate.absolute() for candidate in candidates if candidate.is_file()), None)


def find_clients(rivals: Sequence[Path]) -> list[Installed]:
    """Return ours, the floors, and the rivals that are installed here or in the given environments."""
    packages = sorted({client.package for client in CLIENTS.values() if client.package})
    found: dict[str, tuple[Path, str]] = {}
    for path in (Path(sys.executable), *rivals):
        python = _python_of(path)
        if python is None:
            raise SystemExit(f"no Python in {path}: give the folder of a virtual environment, or an interpreter")
        asked = subprocess.run([python, "-c", _ASK_VERSIONS, *packages], capture_output=True, check=True, text=True)
        for name, version in json.loads(asked.stdout).items():
            found.setdefault(name, (python, version))
    installed = []
    for client in CLIENTS.values():
        if client.package is None:
            installed.append(Installed(client, Path(sys.executable), "this checkout"))
        elif client.package in found:
            installed.append(Installed(client, *found[client.package]))
    return installed
