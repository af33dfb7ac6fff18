"""`servetune bench`: flags, output, exit codes, against real sockets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from servetune.cli.bench import Flags, api_of, prepare, workload_of
from servetune.cli.main import servetune
from servetune.errors import UserError
from servetune.interop.vllm_text import broken_identities, parse_block
from servetune.loadgen.run import read_records
from tests.unit.loadgen.scripted import GOOD, HEAD, Peer, ScriptedServer, event, good, serving, token


def bench(server: ScriptedServer, *arguments: str) -> Result:
    """Run the command against a server, with eight short chats unless told otherwise."""
    usual = ["--base-url", server.url, "--model", "m", "--dataset-name", "chat", "--num-prompts", "8"]
    return CliRunner().invoke(servetune, ["bench", *usual, *arguments])


def flags(**changes: Any) -> Flags:
    """The flags of a command line with only these options."""
    fields: dict[str, Any] = {
        "base_url": None, "host": "127.0.0.1", "port": 8000, "backend": None, "endpoint": None, "model": None,
        "served_model_name": None, "tokenizer": None, "dataset_name": None, "dataset_path": None,
        "random_input_len": 64, "random_output_len": 8, "random_range_ratio": 0.0, "random_prefix_len": 0,
        "sharegpt_output_len": None, "num_prompts": 2, "request_rate": float("inf"), "burstiness": 1.0,
        "max_concurrency": None, "num_warmups": 1, "seed": 0, "ignore_eos": None, "header": (),
        "definitions": "strict", "idle_timeout": 1.0, "total_timeout": 1.0, "save_result": False,
        "result_dir": Path(), "result_filename": None, "disable_tqdm": True, "as_json": False,
    }  # fmt: skip
    return Flags(**{**fields, **changes})


def test_the_text_block_on_stdout() -> None:
    """It can be read back, and its figures agree with each other."""
    with serving(good) as server:
        result = bench(server, "--max-concurrency", "2")
    assert result.exit_code == 0
    found = parse_block(result.stdout)
    assert found is not None
    assert (found.completed, found.failed, found.max_concurrency, found.definitions) == (8, 0, 2, "strict")
    assert (found.total_input_tokens, found.total_output_tokens) == (56, 16)
    assert broken_identities(found) == []


def test_json_on_stdout() -> None:
    """Everything about the run, and nothing else on stdout."""
    with serving(good) as server:
        result = bench(server, "--json", "--request-rate", "200", "--seed", "3", "--definitions", "vllm-0.11")
    found = json.loads(result.stdout)
    assert found["summary"]["completed"] == 8
    assert (found["load"]["request_rate"], found["workload"]["seed"]) == (200.0, 3)
    assert found["client"]["epoch_ns"] > 0
    assert (found["model"], found["interrupted"], len(found["workload_digest"])) == ("m", False, 16)


def test_the_first_model_that_the_server_lists() -> None:
    """Where none is named."""
    listing = b'{"data": [{"id": "first"}, {"id": "second"}]}'

    with serving(good) as server:
        server.answers_get = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(listing), listing)
        usual = ["bench", "--base-url", f"{server.url}/v1", "--num-prompts", "2"]
        result = CliRunner().invoke(servetune, usual)
        assert result.exit_code == 0
        assert all(json.loads(body)["model"] == "first" for body in server.bodies)
        server.answers_get = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"
        refused = CliRunner().invoke(servetune, usual)
    assert (refused.exit_code, "--model" in refused.stderr) == (2, True)


def test_failed_requests_are_told() -> None:
    """Some failed: exit code 0 and the reasons; all failed: exit code 1."""

    def half(peer: Peer, body: bytes) -> None:
        if b"Please" in body or peer.number % 2:
            peer.send(GOOD)
        else:
            peer.send(HEAD + token() + event({"error": f"broken {peer.number}"}))
            peer.close()

    with serving(half) as server:
        result = bench(server, "--num-warmups", "0")
    assert result.exit_code == 0
    assert "failed request: stream-error" in result.stderr

    def broken(peer: Peer, body: bytes) -> None:
        peer.send(HEAD + event({"error": f"broken {peer.number}"}))
        peer.close()

    with serving(broken) as server:
        result = bench(server, "--num-warmups", "0")
    assert result.exit_code == 1
    assert "other reasons" in result.stderr


def test_a_server_that_refuses_the_warmup() -> None:
    """Exit code 3 and the server's words."""
    with serving(lambda peer, _: peer.send(b"HTTP/1.1 400 Bad\r\nContent-Length: 4\r\n\r\nnope")) as server:
        result = bench(server)
    assert result.exit_code == 3
    assert "HTTP 400: nope" in result.stderr


def test_a_server_that_is_not_there() -> None:
    """Exit code 3 and what to check."""
    with serving(good) as server:
        url = server.url
    result = CliRunner().invoke(servetune, ["bench", "--base-url", url])
    assert result.exit_code == 3
    assert "is the server running?" in result.stderr


def test_saved_results(tmp_path: Path) -> None:
    """VLLM's keys in JSON, and the raw records beside it."""
    with serving(good) as server:
        result = bench(server, "--save-result", "--result-dir", str(tmp_path / "new"), "--result-filename", "r.json")
    assert result.exit_code == 0
    saved = json.loads((tmp_path / "new" / "r.json").read_text())
    assert (saved["completed"], saved["num_prompts"], saved["request_rate"]) == (8, 8, "inf")
    assert saved["definitions"] == "strict"
    assert {"mean_ttft_ms", "p99_itl_ms", "mean_e2el_ms", "date", "model_id", "duration"} <= saved.keys()
    assert len(read_records(tmp_path / "new" / "r.records")) == 8


def test_results_that_cannot_be_saved(tmp_path: Path) -> None:
    """The figures are printed before."""
    (tmp_path / "file").write_text("")
    with serving(good) as server:
        result = bench(server, "--save-result", "--result-dir", str(tmp_path / "file" / "x"))
    assert result.exit_code == 3
    assert parse_block(result.stdout) is not None


def test_interrupt_shows_what_finished(tmp_path: Path) -> None:
    """SIGINT: partial figures and exit code 130."""
    waiting = threading.Event()

    def script(peer: Peer, body: bytes) -> None:
        if len(server.bodies) < 4:
            peer.send(GOOD)
        else:
            waiting.set()
            server.stopping.wait(20)

    with serving(script) as server:
        argv = [sys.executable, "-m", "servetune.cli.main", "bench", "--base-url", server.url, "--model", "m"]
        options = ["--dataset-name", "chat", "--num-prompts", "20", "--max-concurrency", "1"]
        process = subprocess.Popen([*argv, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert waiting.wait(20)
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    found = parse_block(stdout)
    assert found is not None
    assert (found.completed, found.failed) == (2, 18)
    assert "interrupted" in stderr


@pytest.mark.parametrize(
    ("changes", "api"),
    [
        ({}, "chat"),
        ({"backend": "openai-chat"}, "chat"),
        ({"backend": "vllm"}, "completions"),
        ({"endpoint": "/v1/completions"}, "completions"),
        ({"backend": "openai", "endpoint": "/v1/chat/completions"}, "chat"),
    ],
)
def test_which_api(changes: dict[str, Any], api: str) -> None:
    """The endpoint says it, else the backend."""
    assert api_of(flags(**changes)) == api


def test_which_workload() -> None:
    """Random where a tokenizer is at hand, as in vllm; chat needs none. Definitions choose the algorithm."""
    assert workload_of(flags()).kind == "chat"
    random = workload_of(flags(model="m", definitions="vllm-0.11", random_input_len=7))
    assert (random.kind, random.params["input_len"], random.params["algorithm"]) == ("random", 7, "vllm-0.11")
    recorded = workload_of(flags(dataset_name="sharegpt", dataset_path="f.json"))
    assert recorded.params == {"path": "f.json", "algorithm": "vllm-0.33"}


def test_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name, key, headers, load and body rules."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    job, _ = prepare(
        flags(dataset_name="chat", model="path", served_model_name="name", header=("A = b",), request_rate=3.0)
    )
    assert (job.rules.model, job.load.request_rate, job.rules.ignore_eos) == ("name", 3.0, True)
    assert job.headers == {"Authorization": "Bearer k", "A": "b"}
    assert (len(job.requests), len(job.warmup), job.url) == (2, 1, "http://127.0.0.1:8000")


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
    job, _ = prepare(flags(dataset_name="chat", model="m", **changes))
    assert job.rules.ignore_eos is expected


def test_mistakes_of_the_user() -> None:
    """A header without a sign, a data set without a tokenizer."""
    with pytest.raises(UserError, match="KEY=VALUE"):
        prepare(flags(dataset_name="chat", model="m", header=("oops",)))
    with pytest.raises(UserError, match="--tokenizer"):
        prepare(flags(dataset_name="random"))
    result = CliRunner().invoke(servetune, ["bench", "--num-promts", "3"])
    assert (result.exit_code, "--num-prompts" in result.stderr) == (2, True)
