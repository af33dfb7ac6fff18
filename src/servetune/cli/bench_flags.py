"""The flags of `servetune bench`: what they are called, what they hold, and how their values are read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import click

from servetune.cli.bench_paste import PastedCommand
from servetune.records import Record

DEFINITIONS = ("strict", "vllm-0.11", "vllm-0.33")
DATASETS = ("chat", "random", "sharegpt")
CHAT_BACKENDS = ("openai-chat", "vllm-chat", "sglang-oai-chat", "lmdeploy-chat")
COMPLETION_BACKENDS = ("openai", "vllm", "sglang-oai", "lmdeploy", "llama.cpp", "scalellm")
GENERATE_BACKENDS = ("sglang", "sglang-native")
_NO_TEXT_BACKENDS = (
    "openai-audio", "openai-embeddings", "openai-embeddings-chat", "openai-embeddings-clip",
    "openai-embeddings-vlm2vec", "infinity-embeddings", "infinity-embeddings-clip", "vllm-pooling", "vllm-rerank",
)  # fmt: skip
_OTHER_API_BACKENDS = ("tgi", "tensorrt-llm", "trt", "deepspeed-mii", "gserver", "truss")
LATENCIES = ("ttft", "tpot", "itl", "e2el", "ttfot", "icl", "schedule_e2el")
_SAME_LATENCY = {"e2el_including_client_queue": "schedule_e2el"}
GOODPUT_KEYS = ("ttft", "tpot", "e2el")


class Flags(Record, frozen=True, kw_only=True):
    """The command line, with every value read."""

    base_url: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    backend: str | None = None
    endpoint_type: str | None = None
    endpoint: str | None = None
    model: str | None = None
    served_model_name: str | None = None
    api_key: str | None = None
    api_key_file: str | None = None
    header: Mapping[str, str] = {}
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    insecure: bool = False
    proxy: str | None = None
    unix_socket: str | None = None
    ready_check_timeout_sec: float = 0.0

    tokenizer: str | None = None
    dataset_name: str | None = None
    dataset_path: str | None = None
    input_len: int | None = None
    output_len: int | None = None
    random_input_len: int = 1024
    random_output_len: int = 128
    random_range_ratio: float = 0.0
    random_prefix_len: int = 0
    sharegpt_output_len: int | None = None
    num_prompts: int = 1000
    seed: int = 0

    no_stream: bool = False
    ignore_eos: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logprobs: int | None = None
    extra_body: Mapping[str, Any] = {}

    request_rate: float = math.inf
    burstiness: float = 1.0
    max_concurrency: int | None = None
    ramp_up_strategy: Literal["linear", "exponential"] | None = None
    ramp_up_start_rps: float | None = None
    ramp_up_end_rps: float | None = None
    num_warmups: int = 1
    connections: Literal["keep", "new"] = "keep"
    workers: int | None = None
    first_byte_timeout: float | None = None
    idle_timeout: float = 120.0
    total_timeout: float = 3600.0
    max_error_rate: float | None = None
    overrun_factor: float = 4.0

    definitions: str = "strict"
    goodput: Mapping[str, float] = {}
    percentile_metrics: tuple[str, ...] = ()
    metric_percentiles: tuple[float, ...] = (99.0,)
    save_result: bool = False
    save_detailed: bool = False
    append_result: bool = False
    result_dir: Path = Path()
    result_filename: str | None = None
    label: str | None = None
    metadata: Mapping[str, str] = {}
    disable_tqdm: bool = False
    as_json: bool = False


# --------------------------------------------------------------------------- reading values


def _pairs(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise click.BadParameter(f"{text!r} has no = (write KEY=VALUE)")
        pairs[name.strip()] = value.strip()
    return pairs


def _headers(context: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    # A header may hold a key: its text is not repeated in the message.
    if any("=" not in text for text in given):
        raise click.BadParameter("one of them has no = (write KEY=VALUE)")
    return _pairs(context, param, given)


def _limits(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, float]:
    limits = {}
    for text in given:
        name, _colon, value = text.partition(":")
        try:
            limit = float(value)
        except ValueError:
            limit = -1.0
        if name not in GOODPUT_KEYS or not limit >= 0:
            raise click.BadParameter(f"{text!r}: write KEY:MILLISECONDS, KEY one of {', '.join(GOODPUT_KEYS)}")
        limits[name] = limit
    return limits


def _latencies(_: click.Context, __: click.Parameter, given: str | None) -> tuple[str, ...]:
    names = tuple(_SAME_LATENCY.get(name, name) for name in _listed(given))
    for name in names:
        if name not in LATENCIES:
            raise click.BadParameter(f"{name!r} is not measured (known: {', '.join(LATENCIES)})")
    return tuple(dict.fromkeys(names))


def _percentiles(_: click.Context, __: click.Parameter, given: str) -> tuple[float, ...]:
    try:
        found = tuple(dict.fromkeys(float(text) for text in _listed(given)))
    except ValueError:
        found = ()
    if not found or not all(0 <= percentile <= 100 for percentile in found):
        raise click.BadParameter(f"{given!r}: write numbers from 0 to 100, with commas between them")
    return found


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _json_objects(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for text in given:
        try:
            value = json.loads(text)
        except ValueError as bad:
            raise click.BadParameter(f"it is no JSON: {bad}") from bad
        if not isinstance(value, dict):
            raise click.BadParameter('it is no JSON object (write {"name": value})')
        whole = merged(whole, value)
    return whole


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the entries of `more` added, objects within objects too."""
    both = {
        name: merged(base[name], value) if isinstance(value, dict) and isinstance(base.get(name), dict) else value
        for name, value in more.items()
    }
    return {**base, **both}


def _backend(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    text = (*COMPLETION_BACKENDS, *CHAT_BACKENDS, *GENERATE_BACKENDS)
    if given is None or given in text:
        return given
    if given in _NO_TEXT_BACKENDS:
        raise click.BadParameter(f"{given} generates no text, which is what is measured here")
    if given in _OTHER_API_BACKENDS:
        raise click.BadParameter(f"the API of {given} is not spoken here (its OpenAI-compatible one is: openai-chat)")
    raise click.BadParameter(f"{given!r} is not known (known: {', '.join(text)})")


def _dataset(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    if given is not None and given not in DATASETS:
        raise click.BadParameter(f"{given!r} is not offered (there are: {', '.join(DATASETS)})")
    return given


# --------------------------------------------------------------------------- the flags

_ABOVE_0 = click.FloatRange(0, min_open=True)
_FROM_1 = click.IntRange(1)
_FROM_0 = click.IntRange(0)


def _flag(*names: str, **more: Any) -> click.Option:
    return click.Option(names, **more)


GROUPS: dict[str, tuple[click.Option, ...]] = {
    "Server": (
        _flag("--base-url", metavar="URL", help="Address of the server; or give --host and --port."),
        _flag("--host", default="127.0.0.1", show_default=True),
        _flag("--port", default=8000, show_default=True, type=click.IntRange(1, 65535)),
        _flag(
            "--backend",
            metavar="NAME",
            callback=_backend,
            help="As in vllm: openai, vllm: completions; openai-chat: chat; sglang: its own /generate. Default: "
            "completions; chat for the dataset chat.",
        ),
        _flag("--endpoint-type", metavar="NAME", callback=_backend, help="What old versions of vllm call --backend."),
        _flag("--endpoint", metavar="PATH", help="Path of the API, for example /v1/completions; decides the API."),
        _flag("--model", metavar="NAME", help="Model name to ask for. Default: the first that the server lists."),
        _flag("--served-model-name", metavar="NAME", help="Name to ask for, where --model is a path."),
        _flag("--api-key", metavar="KEY", help="Sent as bearer token. Default: $OPENAI_API_KEY. Never shown."),
        _flag("--api-key-file", metavar="FILE", help="File with the key: unseen by other users' ps."),
        _flag(
            "--header",
            multiple=True,
            metavar="KEY=VALUE...",
            callback=_headers,
            help="Added to each request; wins over the key.",
        ),
        _flag("--ca-file", metavar="FILE", help="PEM file with the authorities to trust. Default: the system's."),
        _flag("--client-cert", metavar="FILE", help="PEM file with a certificate of our own."),
        _flag("--client-key", metavar="FILE", help="Its private key, where that is another file."),
        _flag("--insecure", is_flag=True, help="Accept any certificate."),
        _flag("--proxy", metavar="URL", help="HTTP proxy to connect through; those of the environment are not used."),
        _flag("--unix-socket", metavar="PATH", help="Connect to this socket instead of host and port."),
        _flag(
            "--ready-check-timeout-sec",
            default=0.0,
            metavar="SECONDS",
            type=click.FloatRange(0),
            help="Wait up to this long until the server lists its models.",
        ),
    ),
    "Prompts": (
        _flag("--tokenizer", metavar="SOURCE", help="Folder, GGUF file or hub name. Default: --model."),
        _flag(
            "--dataset-name",
            metavar="|".join(DATASETS),
            callback=_dataset,
            help="Default: random where a tokenizer or model is named, else chat (which needs no tokenizer).",
        ),
        _flag("--dataset-path", metavar="FILE", help="ShareGPT's JSON file."),
        _flag("--input-len", type=_FROM_1, metavar="N", help="Input length, whatever the dataset's flag is called."),
        _flag("--output-len", type=_FROM_1, metavar="N", help="Output length, likewise."),
        _flag("--random-input-len", default=1024, show_default=True, type=_FROM_1, metavar="N"),
        _flag("--random-output-len", default=128, show_default=True, type=_FROM_1, metavar="N"),
        _flag("--random-range-ratio", default=0.0, type=click.FloatRange(0, 1, max_open=True), metavar="R"),
        _flag("--random-prefix-len", default=0, type=_FROM_0, metavar="N"),
        _flag("--sharegpt-output-len", type=_FROM_1, metavar="N", help="Default: as long as the recorded answers."),
        _flag("--num-prompts", default=1000, show_default=True, type=_FROM_1, metavar="N"),
        _flag("--seed", default=0, show_default=True, type=_FROM_0, metavar="N"),
    ),
    "Answers": (
        _flag(
            "--ignore-eos/--no-ignore-eos",
            default=None,
            help="Ask for exactly the output length. Default: as the definitions have it.",
        ),
        _flag("--temperature", type=float, metavar="T", help="Default: as the definitions have it (strict: 0)."),
        _flag("--top-p", type=float, metavar="P"),
        _flag("--top-k", type=int, metavar="K"),
        _flag("--min-p", type=float, metavar="P"),
        _flag("--frequency-penalty", type=float, metavar="X"),
        _flag("--presence-penalty", type=float, metavar="X"),
        _flag("--repetition-penalty", type=float, metavar="X"),
        _flag("--logprobs", type=_FROM_0, metavar="N", help="Ask for the N best log probabilities of each token."),
        _flag(
            "--extra-body",
            multiple=True,
            metavar="JSON",
            callback=_json_objects,
            help="Fields added to each request; they win. Also as --extra-body.NAME VALUE.",
        ),
        _flag("--no-stream", is_flag=True, help="Ask for whole answers: their first token cannot be timed."),
    ),
    "Load": (
        _flag(
            "--request-rate",
            default=math.inf,
            show_default=True,
            type=_ABOVE_0,
            metavar="R",
            help="Requests per second; inf sends all at once.",
        ),
        _flag("--burstiness", default=1.0, show_default=True, type=_ABOVE_0, metavar="B", help="1: Poisson arrivals."),
        _flag("--max-concurrency", type=_FROM_1, metavar="N", help="Most requests in flight."),
        _flag("--ramp-up-strategy", type=click.Choice(("linear", "exponential")), help="Let the rate rise."),
        _flag("--ramp-up-start-rps", type=_ABOVE_0, metavar="R", help="Rate of the first request."),
        _flag("--ramp-up-end-rps", type=_ABOVE_0, metavar="R", help="Rate of the last request."),
        _flag("--num-warmups", default=1, show_default=True, type=_FROM_0, metavar="N", help="Not measured."),
        _flag(
            "--connections",
            default="keep",
            show_default=True,
            type=click.Choice(("keep", "new")),
            help="new: each request opens its own.",
        ),
        _flag("--workers", type=_FROM_1, metavar="N", help="Processes that send. Default: as many as are needed."),
        _flag("--first-byte-timeout", type=_ABOVE_0, metavar="SECONDS", help="Default: none."),
        _flag("--idle-timeout", default=120.0, show_default=True, type=_ABOVE_0, metavar="SECONDS"),
        _flag("--total-timeout", default=3600.0, show_default=True, type=_ABOVE_0, metavar="SECONDS"),
        _flag(
            "--max-error-rate",
            type=click.FloatRange(0, 1),
            metavar="SHARE",
            help="End early once more than this share has failed.",
        ),
        _flag(
            "--overrun-factor",
            default=4.0,
            show_default=True,
            type=click.FloatRange(1),
            metavar="X",
            help="Cut an answer of more than X times the tokens asked for.",
        ),
    ),
    "Figures": (
        _flag(
            "--definitions",
            type=click.Choice(DEFINITIONS),
            default="strict",
            show_default=True,
            help="Rules for prompts, request body and figures.",
        ),
        _flag(
            "--goodput",
            multiple=True,
            metavar="KEY:MS...",
            callback=_limits,
            help="Count requests/s within these limits, e.g. ttft:200 tpot:50 e2el:4000.",
        ),
        _flag(
            "--percentile-metrics",
            metavar="NAMES",
            callback=_latencies,
            help=f"Latencies to print, with commas between them: {', '.join(LATENCIES)}.",
        ),
        _flag(
            "--metric-percentiles",
            default="99",
            show_default=True,
            metavar="NUMBERS",
            callback=_percentiles,
            help="Percentiles of each, e.g. 50,90,99.9.",
        ),
        _flag("--save-result", is_flag=True, help="Write figures (in vllm's JSON form) and raw records."),
        _flag("--save-detailed", is_flag=True, help="With them the times and the text of every request."),
        _flag("--append-result", is_flag=True, help="Add the figures to the file, as one more line."),
        _flag("--result-dir", type=click.Path(path_type=Path, file_okay=False), default=Path(), metavar="FOLDER"),
        _flag("--result-filename", metavar="NAME"),
        _flag("--label", metavar="TEXT", help="First part of the file's name. Default: the backend."),
        _flag("--metadata", multiple=True, metavar="KEY=VALUE...", callback=_pairs, help="Saved with the figures."),
        _flag("--disable-tqdm", "--no-progress", is_flag=True, help="Show no progress."),
        _flag("--json", "as_json", is_flag=True, help="Print JSON on stdout instead of the text block."),
    ),
}
"""Heading in the help text -> its flags."""


class BenchCommand(PastedCommand):
    """The command with its flags under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags, group by group."""
        help_option = self.get_help_option(ctx)
        groups = {**GROUPS, "Help": () if help_option is None else (help_option,)}
        for heading, options in groups.items():
            with formatter.section(heading):
                formatter.write_dl([row for option in options if (row := option.get_help_record(ctx)) is not None])
