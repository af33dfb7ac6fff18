"""llama.cpp for real: every variant serves, failures have the right cause, our tokenizer agrees with the engine's."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from servetune import tokenizer, weights, workloads
from servetune.engines import get
from servetune.engines.process import Server, free_port
from servetune.errors import EngineFailed
from servetune.gguf_file import aligned, alignment_of, read_head
from servetune.records import Config, EngineSpec, Installed, OptionValue, WorkloadSpec

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

ENGINE = get("llamacpp")
SPEC = EngineSpec(name="llamacpp")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demonstration model, fetched once."""
    with pytest.MonkeyPatch.context() as patch:
        shared = os.environ.get("SERVETUNE_TEST_CACHE") or str(tmp_path_factory.mktemp("models"))
        patch.setenv("SERVETUNE_CACHE", shared)
        return weights.demo_model(lambda _: None)


@contextmanager
def serving(model: Path | str, log_dir: Path, **options: OptionValue) -> Iterator[Server]:
    """A ready server; raises EngineFailed if it does not get ready."""
    installed = ENGINE.find(SPEC)
    assert isinstance(installed, Installed), installed
    port = free_port()
    config = Config(engine="llamacpp", options={"threads": 1, "ctx_size": 2048, **options})
    command = ENGINE.command(config, spec=SPEC, installed=installed, model=str(model), port=port)
    server = Server.launch(command, port=port, log_path=log_dir / f"{port}.log")
    try:
        server.wait_ready(ENGINE, timeout_s=120, cancelled=lambda: False)
        yield server
    finally:
        server.stop()


def post(server: Server, path: str, body: dict[str, Any]) -> bytes:
    """The body of the answer to a JSON request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse().read()
    finally:
        connection.close()


def streamed_chat(server: Server, *, tokens: int) -> tuple[str, dict[str, int]]:
    """Text and usage of one streamed answer of exactly `tokens` tokens."""
    body = {
        "model": "any",
        "messages": [{"role": "user", "content": "The capital of France is"}],
        "max_completion_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    lines = post(server, "/v1/chat/completions", body).decode().splitlines()
    assert lines[-2:] == ["data: [DONE]", ""]
    messages = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    deltas = [message["choices"][0]["delta"] for message in messages if message["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas), messages[-1]["usage"]


@pytest.mark.parametrize("quantize", ["Q4_1", "Q4_0", "Q8_0", "F16"])
def test_every_variant_serves_text_of_the_length_that_is_asked_for(model: Path, quantize: str, tmp_path: Path) -> None:
    """Each variant loads, streams real words, counts them, and goes on beyond the end token when told to."""
    variant = weights.variant_file(model, quantize, lambda _: None)
    with serving(variant, tmp_path) as server:
        text, usage = streamed_chat(server, tokens=40)
        assert len(re.findall(r"[A-Za-z]{2,}", text)) > 8, text
        assert usage["completion_tokens"] == 40
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 4


def test_options_reach_the_engine(model: Path, tmp_path: Path) -> None:
    """Slots and context of the command line are those that the server reports."""
    options: dict[str, OptionValue] = {"parallel": 3, "ctx_size": 3072, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    with serving(model, tmp_path, **options, repack=False, flash_attn="on", kv_unified=False) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("GET", "/slots")
        slots = json.loads(connection.getresponse().read())
        connection.close()
        assert [slot["n_ctx"] for slot in slots] == [1024, 1024, 1024]
        assert streamed_chat(server, tokens=8)[1]["completion_tokens"] == 8


def failure(model: Path, log_dir: Path, **options: OptionValue) -> EngineFailed:
    """How a start that must fail fails."""
    with pytest.raises(EngineFailed) as caught, serving(model, log_dir, **options):
        pass
    return caught.value


def test_a_broken_file_is_a_bad_model(model: Path, tmp_path: Path) -> None:
    """A file that ends early is said to be a bad model, with the engine's line."""
    broken = tmp_path / "broken.gguf"
    with model.open("rb") as stream:
        broken.write_bytes(stream.read(3_000_000))
    seen = failure(broken, tmp_path)
    assert (seen.stage, seen.cause) == ("ready", "bad-model")
    assert "failed to load model" in seen.evidence


def test_a_context_beyond_memory_is_out_of_memory(model: Path, tmp_path: Path) -> None:
    """A KV space of a terabyte is refused by the allocator, and the evidence says so."""
    seen = failure(model, tmp_path, ctx_size=50_000_000)
    assert (seen.stage, seen.cause) == ("ready", "out-of-memory")
    assert "insufficient memory" in seen.evidence


def test_a_port_that_is_taken_after_the_check_is_said(model: Path, tmp_path: Path) -> None:
    """The launcher itself says that it cannot bind, and explain finds it."""
    installed = ENGINE.find(SPEC)
    assert isinstance(installed, Installed)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        config = Config(engine="llamacpp", options={"threads": 1, "ctx_size": 512})
        command = ENGINE.command(config, spec=SPEC, installed=installed, model=str(model), port=port)
        done = _run(command.argv, tmp_path)
    seen = ENGINE.explain(done[1], done[0])
    assert done[0] == 1
    assert seen is not None
    assert seen.cause == "port-in-use"


def _run(argv: tuple[str, ...], folder: Path) -> tuple[int, str]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=folder, check=False)
    return done.returncode, done.stderr


def test_sigkill_is_seen_as_killed(model: Path, tmp_path: Path) -> None:
    """A server that is killed from outside ends with the cause `killed`."""
    with serving(model, tmp_path) as server:
        os.kill(server.pid, 9)
        end = time.monotonic() + 10
        while server.is_alive() and time.monotonic() < end:
            time.sleep(0.02)
        seen = ENGINE.explain(server.log_tail(50), server.exit_code())
    assert seen is not None
    assert seen.cause == "killed"


TEXTS = (
    "Hello, world!",
    "The year 2026 had 365 days; 1234567 tokens cost 0.0042.",
    "it's I'm we've they'LL don't  double  spaces\ttabs\n\nnew lines \r\n trailing   ",
    "naïve café über straße, 漢字かな交じり文, Ελληνικά, русский, العربية, हिन्दी",
    "def f(x):\n    return x ** 2  # squared\n\n\nclass A: pass",
    "emoji 🙂🎉👩‍👩‍👧 and symbols ≤ ≠ ± → «quotes» … ½ ² ٣ Ⅷ",
    "<|im_start|>user\nspecial tokens<|im_end|>",
    "$100+tax=<b>bold</b>^2~|pipe|",
    "",
    " ",
    "a" * 300,
    "\x00\x07 control \x7f",
)


@pytest.mark.parametrize("pre", sorted(tokenizer.PRE_TOKENIZERS))
def test_the_rebuilt_tokenizer_agrees_with_the_engine(model: Path, pre: str, tmp_path: Path) -> None:
    """For each kind of text splitting, our ids of varied text are those of the engine's /tokenize."""
    other = tmp_path / "model.gguf"
    write_with_pre_tokenizer(model, pre, other)
    ours = tokenizer.load(str(other))
    with serving(other, tmp_path) as server:
        for text in TEXTS:
            answer = json.loads(post(server, "/tokenize", {"content": text, "parse_special": True}))
            assert ours.encode(text) == answer["tokens"], text


@pytest.mark.parametrize(
    ("kind", "params"),
    [("chat", {"input_mean": 60}), ("random", {"input_len": 100, "prefix_len": 10, "output_len": 4})],
)
def test_prompts_have_the_tokens_that_the_engine_counts(
    model: Path, kind: str, params: dict[str, OptionValue], tmp_path: Path
) -> None:
    """The lengths of requests are those of the engine's own tokenizer; random ones are all exact."""
    ours = tokenizer.load(str(model))
    spec = WorkloadSpec(name="w", kind=kind, num_prompts=20, params=params)
    requests = workloads.build(spec, seed=7, tokenizer=ours)
    with serving(model, tmp_path) as server:
        for request in requests:
            answer = json.loads(post(server, "/tokenize", {"content": request.prompt}))
            assert len(answer["tokens"]) == request.prompt_tokens
    if kind == "random":
        assert {request.prompt_tokens for request in requests} == {110}


def write_with_pre_tokenizer(model: Path, pre: str, target: Path) -> None:
    """Copy a GGUF file with another name of its pre-tokenizer."""
    head = read_head(model)
    old = head.metadata["tokenizer.ggml.pre"].encode()
    with model.open("rb") as source, target.open("wb") as sink:
        copied = weights._new_head(head, source, "Q4_1", [tensor.type_number for tensor in head.tensors])
        at = head.value_at["tokenizer.ggml.pre"]
        copied = copied[:at] + struct.pack("<Q", len(pre)) + pre.encode() + copied[at + 8 + len(old) :]
        sink.write(copied.ljust(aligned(len(copied), alignment_of(head.metadata)), b"\0"))
        source.seek(head.data_start)
        sink.write(source.read())
