"""From the flags of `servetune bench` to the load that they describe."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from servetune import http1, tokenizer, workloads
from servetune.cli.bench_flags import CHAT_BACKENDS, COMPLETION_BACKENDS, GENERATE_BACKENDS, Flags, merged
from servetune.errors import HostProblem, UserError
from servetune.loadgen.run import LoadJob
from servetune.masking import mask_text
from servetune.records import Api, BodyRules, Load, OptionValue, RampUp, Transport, WorkloadSpec

_READY_POLL_S = 0.5
_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
)  # fmt: skip
_STRICT_ONLY = ("ttfot", "icl", "schedule_e2el")


def prepare(flags: Flags) -> tuple[LoadJob, WorkloadSpec]:
    """Return the load and its workload.

    Waits for the server where that is asked for, and asks it for its model where none is named. Raises UserError for
    what does not fit together, HostProblem for a server that does not answer.
    """
    _check(flags)
    spec = workload_of(flags)
    load = load_of(flags)
    headers = headers_of(flags)
    transport = transport_of(flags)
    url = flags.base_url or f"http://{http1.Url(host=flags.host, port=flags.port, path='').authority}"
    http1.parse_url(url)
    tokens = _tokenizer(flags, spec)
    requests = workloads.build(spec, seed=flags.seed, tokenizer=tokens)
    warmup = workloads.warmup_requests(spec, flags.num_warmups, seed=flags.seed, tokenizer=tokens)
    server = _Server(url, headers, transport)
    server.wait(flags.ready_check_timeout_sec)
    api = api_of(flags)
    rules = BodyRules(
        api=api,
        model=flags.served_model_name or flags.model or server.first_model(),
        definitions=flags.definitions,
        ignore_eos=_ignores_eos(flags, spec),
        stream=not flags.no_stream,
        extra=extra_of(flags, api),
    )
    job = LoadJob(
        url=url,
        requests=tuple(requests),
        warmup=tuple(warmup),
        rules=rules,
        load=load,
        arrival_seed=flags.seed,
        headers=headers,
        transport=transport,
        keep_text=flags.save_detailed and saves(flags),
        endpoint=flags.endpoint,
    )
    return job, spec


def saves(flags: Flags) -> bool:
    """Whether the figures are written to a file."""
    return flags.save_result or flags.append_result


def notes(flags: Flags) -> list[str]:
    """Return what a user may not expect of these flags."""
    found = []
    if flags.no_stream:
        found.append(
            "--no-stream asks for whole answers (not vllm's way of loading datasets): TTFT is the whole answer's"
        )
    if flags.save_detailed and not saves(flags):
        found.append("--save-detailed saves nothing without --save-result or --append-result")
    return found


def backend_of(flags: Flags) -> str | None:
    """Return the backend that is named; the name of old versions decided there."""
    return flags.endpoint_type or flags.backend


def api_of(flags: Flags) -> Api:
    """Return what is asked: as the endpoint says, else the backend, else completions (chat for the dataset chat)."""
    endpoint = flags.endpoint or ""
    if "chat" in endpoint:
        return "chat"
    if "completions" in endpoint:
        return "completions"
    if endpoint.endswith("/generate"):
        return "generate"
    backend = backend_of(flags)
    named: dict[str, Api] = {
        **dict.fromkeys(CHAT_BACKENDS, "chat"),
        **dict.fromkeys(COMPLETION_BACKENDS, "completions"),
        **dict.fromkeys(GENERATE_BACKENDS, "generate"),
    }
    if backend is not None:
        return named[backend]
    return "chat" if kind_of(flags) == "chat" else "completions"


def kind_of(flags: Flags) -> str:
    """Return the dataset: the one named, else random where there is a tokenizer for it, else chat."""
    return flags.dataset_name or ("random" if flags.tokenizer or flags.model else "chat")


def workload_of(flags: Flags) -> WorkloadSpec:
    """Return the workload that the dataset's flags describe."""
    kind = kind_of(flags)
    algorithm = "vllm-0.11" if flags.definitions == "vllm-0.11" else "vllm-0.33"
    given: dict[str, dict[str, OptionValue | None]] = {
        "chat": {"input_mean": flags.input_len, "output_mean": flags.output_len},
        "random": {
            "input_len": flags.input_len or flags.random_input_len,
            "output_len": flags.output_len or flags.random_output_len,
            "range_ratio": flags.random_range_ratio,
            "prefix_len": flags.random_prefix_len,
            "algorithm": algorithm,
        },
        "sharegpt": {
            "path": flags.dataset_path,
            "output_len": flags.output_len or flags.sharegpt_output_len,
            "algorithm": algorithm,
        },
    }
    params = {name: value for name, value in given[kind].items() if value is not None}
    return WorkloadSpec(name=kind, kind=kind, num_prompts=flags.num_prompts, params=params, seed=flags.seed)


def load_of(flags: Flags) -> Load:
    """Return how the requests are sent; raises UserError for a ramp that is not whole."""
    return Load(
        request_rate=None if math.isinf(flags.request_rate) else flags.request_rate,
        burstiness=flags.burstiness,
        max_concurrency=flags.max_concurrency,
        warmup_requests=flags.num_warmups,
        idle_timeout_s=flags.idle_timeout,
        total_timeout_s=flags.total_timeout,
        first_byte_timeout_s=flags.first_byte_timeout,
        connections=flags.connections,
        ramp_up=_ramp_up(flags),
        max_error_rate=flags.max_error_rate,
        overrun_factor=flags.overrun_factor,
        workers=flags.workers,
    )


def _ramp_up(flags: Flags) -> RampUp | None:
    start, end = flags.ramp_up_start_rps, flags.ramp_up_end_rps
    if flags.ramp_up_strategy is None:
        if start is not None or end is not None:
            raise UserError("--ramp-up-start-rps", "there is no ramp", "give --ramp-up-strategy linear or exponential")
        return None
    if not math.isinf(flags.request_rate):
        raise UserError("--ramp-up-strategy", "the ramp sets the rate", "leave --request-rate out")
    if start is None or end is None:
        raise UserError("--ramp-up-strategy", "its ends are missing", "give --ramp-up-start-rps and --ramp-up-end-rps")
    if start > end:
        raise UserError("--ramp-up-start-rps", f"{start:g} is more than {end:g}, where the ramp ends", "swap them")
    return RampUp(strategy=flags.ramp_up_strategy, start_rps=start, end_rps=end)


def headers_of(flags: Flags) -> dict[str, str]:
    """Return the headers of each request: the key, then those that the user names."""
    key = _key(flags)
    authorization = {} if key is None else {"Authorization": f"Bearer {key}"}
    named = {name.lower() for name in flags.header}
    return {name: text for name, text in authorization.items() if name.lower() not in named} | dict(flags.header)


def _key(flags: Flags) -> str | None:
    if flags.api_key is not None:
        return flags.api_key
    if flags.api_key_file is None:
        return os.environ.get("OPENAI_API_KEY") or None
    where = f"--api-key-file {flags.api_key_file}"
    try:
        key = Path(flags.api_key_file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as problem:
        words = problem.strerror if isinstance(problem, OSError) and problem.strerror else "it is no text"
        raise UserError(where, f"it cannot be read: {words}", "name a file that holds the key alone") from problem
    if not key:
        raise UserError(where, "it is empty", "name a file that holds the key alone")
    return key


def transport_of(flags: Flags) -> Transport:
    """Return how the server is reached."""
    return Transport(
        ca_file=flags.ca_file,
        client_cert=flags.client_cert,
        client_key=flags.client_key,
        insecure=flags.insecure,
        proxy=flags.proxy,
        unix_socket=flags.unix_socket,
    )


def extra_of(flags: Flags, api: Api) -> dict[str, Any]:
    """Return the fields that the sampling flags and --extra-body add to each request; the latter win."""
    sampling = {name: value for name in _SAMPLING if (value := getattr(flags, name)) is not None}
    if flags.logprobs is None:
        logprobs: Mapping[str, Any] = {}
    elif api == "chat":
        logprobs = {"logprobs": True, "top_logprobs": flags.logprobs}
    elif api == "completions":
        logprobs = {"logprobs": flags.logprobs}
    else:
        logprobs = {"return_logprob": True, "top_logprobs_num": flags.logprobs}
    if api == "generate" and sampling:
        sampling = {"sampling_params": sampling}
    return merged({**sampling, **logprobs}, flags.extra_body)


def _check(flags: Flags) -> None:
    """Raise UserError for flags that cannot be meant together."""
    if flags.api_key is not None and flags.api_key_file is not None:
        raise UserError("--api-key", "the key is given twice", "give --api-key or --api-key-file")
    if flags.dataset_path is not None and kind_of(flags) != "sharegpt":
        problem = f"the dataset {kind_of(flags)} reads no file"
        raise UserError(f"--dataset-path {flags.dataset_path}", problem, "add --dataset-name sharegpt")
    unknown = [name for name in flags.percentile_metrics if name in _STRICT_ONLY]
    if flags.definitions != "strict" and unknown:
        problem = f"{flags.definitions} does not define {unknown[0]}"
        raise UserError("--percentile-metrics", problem, "use --definitions strict")


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


# --------------------------------------------------------------------------- asking the server


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Server:
    """The server, before it is loaded."""

    def __init__(self, url: str, headers: Mapping[str, str], transport: Transport) -> None:
        self._shown = mask_text(url)
        self._models_url = f"{url.rstrip('/').removesuffix('/v1')}/v1/models"
        self._headers = headers
        self._transport = transport

    def wait(self, seconds: float) -> None:
        """Wait until it answers a question for its models, with whatever but a server's error."""
        deadline = time.monotonic() + seconds
        while seconds > 0:
            answer = self._models()
            if isinstance(answer, http1.Response) and answer.status < 500:
                return
            if time.monotonic() > deadline:
                reason = answer.reason if isinstance(answer, http1.NoAnswer) else f"HTTP {answer.status}"
                raise HostProblem(f"{self._shown}: not ready after {seconds:g} s (--ready-check-timeout-sec): {reason}")
            time.sleep(_READY_POLL_S)

    def first_model(self) -> str:
        """Return the first model that it lists."""
        answer = self._models()
        if isinstance(answer, http1.NoAnswer):
            hint = "is the server running? --base-url or --host and --port name it"
            raise HostProblem(f"{self._shown}: {answer.reason} ({hint})")
        try:
            return msgspec.json.decode(answer.body, type=_Models).data[0].id
        except (msgspec.DecodeError, IndexError) as bad:
            said = f"{self._shown} lists no model (HTTP {answer.status})"
            raise UserError("--model", said, "name the model to ask for") from bad

    def _models(self) -> http1.Response | http1.NoAnswer:
        return http1.get(self._models_url, headers=self._headers, transport=self._transport)
