"""From flags to the load."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from servetune.cli.bench_flags import Flags
from servetune.cli.bench_job import api_of, extra_of, headers_of, load_of, prepare, workload_of
from servetune.errors import HostProblem, UserError
from servetune.records import RampUp
from tests.unit.loadgen.scripted import good, serving


def flags(**changes: Any) -> Flags:
    """A few short chats for a model that is named."""
    return Flags(**{"model": "m", "dataset_name": "chat", "num_prompts": 2, **changes})


@pytest.mark.parametrize(
    ("changes", "api"),
    [
        ({}, "chat"),
        ({"dataset_name": "random"}, "completions"),
        ({"backend": "openai-chat"}, "chat"),
        ({"backend": "vllm"}, "completions"),
        ({"backend": "sglang"}, "generate"),
        ({"backend": "sglang", "endpoint": "/v1/completions"}, "completions"),
        ({"backend": "vllm", "endpoint_type": "openai-chat"}, "chat"),
        ({"endpoint": "/v1/completions"}, "completions"),
        ({"endpoint": "/generate"}, "generate"),
        ({"endpoint": "/other", "backend": "openai"}, "completions"),
        ({"backend": "openai", "endpoint": "/v1/chat/completions"}, "chat"),
    ],
)
def test_which_api(changes: dict[str, Any], api: str) -> None:
    """The endpoint says it, else the backend, else the dataset."""
    assert api_of(flags(**changes)) == api


def test_which_workload() -> None:
    """Random where a tokenizer is at hand, as in vllm; chat needs none. Definitions choose the algorithm."""
    assert workload_of(Flags()).kind == "chat"
    random = workload_of(Flags(model="m", definitions="vllm-0.11", random_input_len=7))
    assert (random.kind, random.params["input_len"], random.params["algorithm"]) == ("random", 7, "vllm-0.11")
    recorded = workload_of(flags(dataset_name="sharegpt", dataset_path="f.json"))
    assert recorded.params == {"path": "f.json", "algorithm": "vllm-0.33"}


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("random", {"input_len": 5, "output_len": 6}),
        ("chat", {"input_mean": 5, "output_mean": 6}),
        ("sharegpt", {"output_len": 6}),
    ],
)
def test_lengths_for_any_dataset(kind: str, params: dict[str, int]) -> None:
    """As --input-len and --output-len of vllm."""
    found = workload_of(flags(dataset_name=kind, input_len=5, output_len=6)).params
    assert params.items() <= found.items()


def test_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name, key, headers, load, body rules, and the way to the server."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    job, _ = prepare(
        flags(
            served_model_name="name",
            header={"A": "b"},
            request_rate=3.0,
            connections="new",
            workers=2,
            first_byte_timeout=5.0,
            max_error_rate=0.1,
            overrun_factor=2.0,
            insecure=True,
            ca_file="ca.pem",
            save_detailed=True,
            append_result=True,
        )
    )
    assert (job.rules.model, job.load.request_rate, job.rules.ignore_eos) == ("name", 3.0, True)
    assert job.headers == {"Authorization": "Bearer k", "A": "b"}
    assert (len(job.requests), len(job.warmup), job.url) == (2, 1, "http://127.0.0.1:8000")
    assert (job.load.connections, job.load.workers, job.load.first_byte_timeout_s) == ("new", 2, 5.0)
    assert (job.load.max_error_rate, job.load.overrun_factor, job.keep_text) == (0.1, 2.0, True)
    assert (job.transport.insecure, job.transport.ca_file) == (True, "ca.pem")


def test_where_the_key_comes_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The flag, else the file, else the environment; a header of the user's wins over all."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "key").write_text("from-file\n")
    assert headers_of(flags()) == {}
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    assert headers_of(flags(api_key_file=str(tmp_path / "key"))) == {"Authorization": "Bearer from-file"}
    assert headers_of(flags(api_key="given")) == {"Authorization": "Bearer given"}
    assert headers_of(flags(header={"authorization": "Basic x"})) == {"authorization": "Basic x"}
    (tmp_path / "key").write_text("\n")
    for path in (tmp_path / "key", tmp_path / "none", tmp_path):
        with pytest.raises(UserError, match="--api-key-file"):
            headers_of(flags(api_key_file=str(path)))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"definitions": "strict"}, True),
        ({"definitions": "vllm-0.11"}, False),
        ({"definitions": "vllm-0.33"}, False),
        ({"definitions": "vllm-0.11", "ignore_eos": True}, True),
        ({"definitions": "strict", "ignore_eos": False}, False),
    ],
)
def test_ignore_eos_by_definitions(changes: dict[str, Any], expected: bool) -> None:
    """The user's word wins."""
    assert prepare(flags(**changes))[0].rules.ignore_eos is expected


def test_sampling_and_log_probabilities() -> None:
    """Each API has its own place for them; the extra body wins."""
    asked = flags(temperature=0.5, top_k=3, logprobs=2, extra_body={"top_k": 4})
    assert extra_of(asked, "completions") == {"temperature": 0.5, "top_k": 4, "logprobs": 2}
    assert extra_of(asked, "chat") == {"temperature": 0.5, "top_k": 4, "logprobs": True, "top_logprobs": 2}
    native = flags(temperature=0.5, logprobs=2, extra_body={"sampling_params": {"top_p": 0.1}})
    assert extra_of(native, "generate") == {
        "sampling_params": {"temperature": 0.5, "top_p": 0.1},
        "return_logprob": True,
        "top_logprobs_num": 2,
    }


def test_a_ramp() -> None:
    """Both ends, and no rate beside it."""
    given = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 9.0}
    assert load_of(flags(**given)).ramp_up == RampUp(strategy="linear", start_rps=1.0, end_rps=9.0)
    for change in (
        {"request_rate": 2.0},
        {"ramp_up_end_rps": None},
        {"ramp_up_end_rps": 0.5},
        {"ramp_up_strategy": None},
    ):
        with pytest.raises(UserError, match="--ramp-up"):
            load_of(flags(**{**given, **change}))


def test_mistakes_of_the_user() -> None:
    """A data set without a tokenizer or with a file too many, a key twice, figures that a profile does not have."""
    with pytest.raises(UserError, match="--tokenizer"):
        prepare(flags(dataset_name="random", model=None))
    with pytest.raises(UserError, match="reads no file"):
        prepare(flags(dataset_path="x.json"))
    with pytest.raises(UserError, match="given twice"):
        prepare(flags(api_key="a", api_key_file="b"))
    with pytest.raises(UserError, match="does not define icl"):
        prepare(flags(definitions="vllm-0.33", percentile_metrics=("icl",)))
    with pytest.raises(UserError, match="ftp"):
        prepare(flags(base_url="ftp://x"))


def test_waiting_for_a_server() -> None:
    """Until it answers with anything but a server's error; not for ever."""
    with serving(good) as server:
        server.answers_get = b"HTTP/1.1 503 Loading\r\nContent-Length: 0\r\n\r\n"

        def become_ready() -> None:
            time.sleep(0.3)
            server.answers_get = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"

        thread = threading.Thread(target=become_ready)
        thread.start()
        prepare(flags(base_url=server.url, ready_check_timeout_sec=20.0))
        thread.join()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(HostProblem, match="not ready after"):
        prepare(flags(base_url=f"http://127.0.0.1:{port}", ready_check_timeout_sec=0.1))
