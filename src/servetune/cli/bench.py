"""`servetune bench`: load one server that already runs, and print its figures as `vllm bench serve` does."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import click
import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from servetune import findings, http1, metrics, tokenizer, workloads
from servetune.cli.console import print_json, say, stderr_console
from servetune.errors import HostProblem, UserError
from servetune.interop import vllm_json
from servetune.loadgen.run import LoadJob, read_records, run_load
from servetune.lock import measuring
from servetune.records import (
    BodyRules,
    ClientFacts,
    Config,
    Event,
    Finding,
    Load,
    LoadProgress,
    OptionValue,
    Record,
    Request,
    RequestRecord,
    Summary,
    WorkloadSpec,
)
from servetune.report.blocks import block

_CHAT_BACKENDS = ("openai-chat", "vllm-chat", "sglang-oai-chat")
_COMPLETION_BACKENDS = ("openai", "vllm", "sglang", "sglang-oai", "lmdeploy", "llama.cpp")
_MOST_ERRORS = 5


class Flags(Record, frozen=True, kw_only=True):
    """The command line."""

    base_url: str | None
    host: str
    port: int
    backend: str | None
    endpoint: str | None
    model: str | None
    served_model_name: str | None
    tokenizer: str | None
    dataset_name: str | None
    dataset_path: str | None
    random_input_len: int
    random_output_len: int
    random_range_ratio: float
    random_prefix_len: int
    sharegpt_output_len: int | None
    num_prompts: int
    request_rate: float
    burstiness: float
    max_concurrency: int | None
    num_warmups: int
    seed: int
    ignore_eos: bool | None
    header: tuple[str, ...]
    definitions: str
    idle_timeout: float
    total_timeout: float
    save_result: bool
    result_dir: Path
    result_filename: str | None
    disable_tqdm: bool
    as_json: bool


class BenchResult(Record, frozen=True, kw_only=True):
    """What `--json` prints."""

    url: str
    model: str
    workload: WorkloadSpec
    workload_digest: str
    load: Load
    summary: Summary
    client: ClientFacts
    findings: tuple[Finding, ...]
    interrupted: bool


_TARGET = (
    click.option("--base-url", metavar="URL", help="Address of the server; or give --host and --port."),
    click.option("--host", default="127.0.0.1", show_default=True),
    click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535)),
    click.option(
        "--backend",
        type=click.Choice((*_CHAT_BACKENDS, *_COMPLETION_BACKENDS)),
        help="As in vllm: names with -chat use chat completions, the others completions. Default: chat.",
    ),
    click.option("--endpoint", metavar="PATH", help="Path of the API, for example /v1/completions."),
    click.option("--model", metavar="NAME", help="Model name to ask for. Default: the first that the server lists."),
    click.option("--served-model-name", metavar="NAME", help="Name to ask for, where --model is a path."),
    click.option("--header", multiple=True, metavar="KEY=VALUE", help="Added to each request; may be repeated."),
)
_WORKLOAD = (
    click.option("--tokenizer", metavar="SOURCE", help="Folder, GGUF file or hub name. Default: --model."),
    click.option(
        "--dataset-name",
        type=click.Choice(sorted(workloads.BUILT_IN)),
        help="Default: random where a tokenizer or model is named, else chat (which needs no tokenizer).",
    ),
    click.option("--dataset-path", metavar="FILE", help="ShareGPT's JSON file."),
    click.option("--random-input-len", "--input-len", default=1024, show_default=True, type=click.IntRange(1)),
    click.option("--random-output-len", "--output-len", default=128, show_default=True, type=click.IntRange(1)),
    click.option("--random-range-ratio", default=0.0, type=click.FloatRange(0, 1, max_open=True)),
    click.option("--random-prefix-len", default=0, type=click.IntRange(0)),
    click.option("--sharegpt-output-len", type=click.IntRange(1), help="Default: as long as the recorded answers."),
    click.option("--num-prompts", default=1000, show_default=True, type=click.IntRange(1)),
    click.option("--seed", default=0, show_default=True, type=click.IntRange(0)),
    click.option(
        "--ignore-eos/--no-ignore-eos",
        default=None,
        help="Ask for exactly the output length. Default: as the definitions have it.",
    ),
)
_LOAD = (
    click.option(
        "--request-rate",
        default=float("inf"),
        show_default=True,
        type=click.FloatRange(0, min_open=True),
        help="Requests per second; inf sends all at once.",
    ),
    click.option("--burstiness", default=1.0, show_default=True, type=click.FloatRange(0, min_open=True)),
    click.option("--max-concurrency", type=click.IntRange(1), help="Most requests in flight."),
    click.option("--num-warmups", default=1, show_default=True, type=click.IntRange(0), help="Not measured."),
    click.option("--idle-timeout", default=120.0, show_default=True, type=click.FloatRange(0, min_open=True)),
    click.option("--total-timeout", default=3600.0, show_default=True, type=click.FloatRange(0, min_open=True)),
)
_OUTPUT = (
    click.option(
        "--definitions",
        type=click.Choice(tuple(metrics.PROFILES)),
        default="strict",
        show_default=True,
        help="Rules for prompts, request body and figures.",
    ),
    click.option("--save-result", is_flag=True, help="Write figures (in vllm's JSON form) and raw records."),
    click.option("--result-dir", type=click.Path(path_type=Path, file_okay=False), default=Path()),
    click.option("--result-filename", metavar="NAME"),
    click.option("--disable-tqdm", "--no-progress", is_flag=True, help="Show no progress."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout instead of the text block."),
)


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed((*_TARGET, *_WORKLOAD, *_LOAD, *_OUTPUT)):
        command = option(command)
    return command


_EPILOG = """\b
Examples:
  servetune bench --base-url http://127.0.0.1:8000 --num-prompts 100
  servetune bench --backend openai-chat --endpoint /v1/chat/completions \\
      --model Qwen/Qwen3-14B --dataset-name random --random-input-len 128 --random-output-len 4
"""


@click.command(epilog=_EPILOG)
@_with_options
@click.pass_context
def bench(context: click.Context, /, **given: Any) -> None:
    """Load one server that already runs and print its figures."""
    flags = Flags(**given)
    job, spec = prepare(flags)
    with tempfile.TemporaryDirectory(prefix="servetune-bench-") as folder, measuring(f"bench of {job.url}"):
        records_path = Path(folder) / "requests.records"
        with _stopping() as stopped:
            client = _measured(job, records_path, stopped, quiet=flags.disable_tqdm)
        records = read_records(records_path)
        result = _result(flags, job, spec, client, records, interrupted=bool(stopped()))
        _show(result, records, as_json=flags.as_json)
        if flags.save_result:
            _save(flags, job, result, records_path)
    if result.interrupted:
        say("interrupted: the figures above are those of the requests that had finished")
        context.exit(130)
    context.exit(0 if result.summary.completed else 1)


def prepare(flags: Flags) -> tuple[LoadJob, WorkloadSpec]:
    """Turn the command line into a load; raises UserError for what does not fit together."""
    url = flags.base_url or f"http://{http1.Url(host=flags.host, port=flags.port, path='').authority}"
    spec = workload_of(flags)
    tokens = _tokenizer(flags, spec)
    rules = BodyRules(
        api=api_of(flags),
        model=_model(flags, url),
        definitions=flags.definitions,
        ignore_eos=_ignores_eos(flags, spec),
    )
    load = Load(
        request_rate=None if flags.request_rate == float("inf") else flags.request_rate,
        burstiness=flags.burstiness,
        max_concurrency=flags.max_concurrency,
        warmup_requests=flags.num_warmups,
        idle_timeout_s=flags.idle_timeout,
        total_timeout_s=flags.total_timeout,
    )
    requests = _requests(spec, flags.seed, tokens)
    warmup = workloads.warmup_requests(spec, flags.num_warmups, seed=flags.seed, tokenizer=tokens)
    job = LoadJob(
        url=url,
        requests=requests,
        warmup=tuple(warmup),
        rules=rules,
        load=load,
        arrival_seed=flags.seed,
        headers=_headers(flags),
        endpoint=flags.endpoint,
    )
    return job, spec


def api_of(flags: Flags) -> Literal["chat", "completions"]:
    """Chat or completions: what the endpoint says, else the backend, else chat."""
    if flags.endpoint:
        return "chat" if "chat" in flags.endpoint else "completions"
    return "completions" if flags.backend in _COMPLETION_BACKENDS else "chat"


def workload_of(flags: Flags) -> WorkloadSpec:
    """Return the workload that the dataset options describe."""
    kind = flags.dataset_name or ("random" if flags.tokenizer or flags.model else "chat")
    algorithm = "vllm-0.11" if flags.definitions == "vllm-0.11" else "vllm-0.33"
    given: dict[str, dict[str, OptionValue | None]] = {
        "random": {
            "input_len": flags.random_input_len,
            "output_len": flags.random_output_len,
            "range_ratio": flags.random_range_ratio,
            "prefix_len": flags.random_prefix_len,
            "algorithm": algorithm,
        },
        "sharegpt": {
            "path": flags.dataset_path,
            "output_len": flags.sharegpt_output_len,
            "algorithm": algorithm,
        },
    }
    params = {name: value for name, value in given.get(kind, {}).items() if value is not None}
    return WorkloadSpec(name=kind, kind=kind, num_prompts=flags.num_prompts, params=params, seed=flags.seed)


def _requests(spec: WorkloadSpec, seed: int, tokens: tokenizer.Tokenizer | None) -> tuple[Request, ...]:
    return tuple(workloads.build(spec, seed=seed, tokenizer=tokens))


def _tokenizer(flags: Flags, spec: WorkloadSpec) -> tokenizer.Tokenizer | None:
    source = flags.tokenizer or flags.model
    needed = workloads.KINDS[spec.kind].needs_tokenizer
    if source is None and needed:
        raise UserError("--tokenizer", f"the dataset {spec.kind} needs one", "name it, or use --dataset-name chat")
    return tokenizer.load(source) if source and (needed or flags.tokenizer) else None


def _ignores_eos(flags: Flags, spec: WorkloadSpec) -> bool:
    if flags.ignore_eos is not None:
        return flags.ignore_eos
    if flags.definitions == "strict":
        return True
    return flags.definitions == "vllm-0.33" and spec.kind == "random"


def _headers(flags: Flags) -> dict[str, str]:
    headers = {}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    for text in flags.header:
        name, separator, text_value = text.partition("=")
        if not separator:
            raise UserError(f"--header {text}", "it has no =", "write KEY=VALUE")
        headers[name.strip()] = text_value.strip()
    return headers


def _model(flags: Flags, url: str) -> str:
    """Name to ask for: the one given, else the first one that the server lists."""
    if flags.served_model_name or flags.model:
        return flags.served_model_name or flags.model or ""
    base = url.rstrip("/").removesuffix("/v1")
    answer = http1.get(f"{base}/v1/models", headers=_headers(flags))
    if isinstance(answer, http1.NoAnswer):
        raise HostProblem(f"{url}: {answer.reason} (is the server running? --base-url or --host and --port name it)")
    listed = _listed_models(answer.body)
    if not listed:
        raise UserError("--model", f"{url} lists no model", "name the model to ask for")
    return listed[0]


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _listed_models(body: bytes) -> list[str]:
    try:
        return [model.id for model in msgspec.json.decode(body, type=_Models).data]
    except msgspec.DecodeError:
        return []


# --------------------------------------------------------------------------- measuring


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


def _measured(job: LoadJob, out: Path, stopped: Callable[[], bool], *, quiet: bool) -> ClientFacts:
    with _progress(len(job.requests), quiet=quiet) as emit:
        return run_load(job, out=out, emit=emit, cancelled=stopped, server_alive=lambda: True)


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[Event], None]]:
    console = stderr_console()
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=total, note="")

        def show(event: Event) -> None:
            if isinstance(event, LoadProgress):
                failed = f", {event.failed} failed" if event.failed else ""
                bar.update(task, completed=event.done, note=f"{event.chunks_per_s:,.0f} tokens/s{failed}")

        yield show


# --------------------------------------------------------------------------- results


def _result(
    flags: Flags,
    job: LoadJob,
    spec: WorkloadSpec,
    client: ClientFacts,
    records: list[RequestRecord],
    *,
    interrupted: bool,
) -> BenchResult:
    summary = metrics.summarize(records, client, flags.definitions)
    found = findings.of_run(summary, client, load=job.load, config=Config(engine="endpoint"), records=records)
    return BenchResult(
        url=job.url,
        model=job.rules.model,
        workload=spec,
        workload_digest=workloads.digest(job.requests),
        load=job.load,
        summary=summary,
        client=client,
        findings=found,
        interrupted=interrupted,
    )


def _show(result: BenchResult, records: list[RequestRecord], *, as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        sys.stdout.write(block(result.summary, result.load) + "\n")
    errors = dict.fromkeys(
        f"{record.error.kind}: {record.error.message}" for record in records if record.error is not None
    )
    for text in list(errors)[:_MOST_ERRORS]:
        say(f"failed request: {text}")
    if len(errors) > _MOST_ERRORS:
        say(f"... and {len(errors) - _MOST_ERRORS} other reasons")
    for finding in result.findings:
        say(f"{finding.severity}: {finding.code}: {finding.evidence} ({finding.advice})")


def _save(flags: Flags, job: LoadJob, result: BenchResult, records_path: Path) -> None:
    moment = datetime.now(UTC)
    stem = f"{result.model.rpartition('/')[2]}-{moment:%Y%m%d-%H%M%S}"
    path = flags.result_dir / (flags.result_filename or f"{stem}.json")
    about = {
        "date": f"{moment:%Y%m%d-%H%M%S}",
        "backend": flags.backend or f"openai-{job.rules.api}",
        "label": None,
        "model_id": result.model,
        "tokenizer_id": flags.tokenizer or flags.model,
        "seed": flags.seed,
        "dataset_name": result.workload.kind,
        "workload_digest": result.workload_digest,
        "endpoint": flags.endpoint,
        "url": result.url,
        "servetune": msgspec.to_builtins(result.client),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = msgspec.json.format(msgspec.json.encode(vllm_json.result(result.summary, result.load, about)))
        path.write_bytes(written + b"\n")
        path.with_suffix(".records").write_bytes(records_path.read_bytes())
    except OSError as problem:
        raise HostProblem(f"{path}: {problem.strerror}") from problem
    say(f"written: {path} and {path.with_suffix('.records').name}")
