"""`servetune bench`: flags, output, exit codes, against real sockets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers
from click.testing import CliRunner, Result
from tokenizers import decoders, models, pre_tokenizers

from servetune.cli.main import servetune
from servetune.engines import get
from servetune.engines.process import free_port
from servetune.interop.vllm_text import broken_identities, parse_block
from servetune.loadgen.run import read_records
from tests.unit.engines.processes import launch, mock_command, never
from tests.unit.loadgen.scripted import DONE, GOOD, HEAD, LAST, Peer, ScriptedServer, event, good, serving, token


def bench(server: ScriptedServer, *arguments: str) -> Result:
    """Run the command against a server, with eight short chats unless told otherwise."""
    usual = ["--base-url", server.url, "--model", "m", "--dataset-name", "chat", "--num-prompts", "8"]
    return CliRunner().invoke(servetune, ["bench", *usual, *arguments])


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
    assert "failed requests (kind, how many, what was said first):\n  stream-error  " in result.stderr

    def broken(peer: Peer, body: bytes) -> None:
        peer.send(HEAD + event({"error": f"broken {peer.number}"}))
        peer.close()

    with serving(broken) as server:
        result = bench(server, "--num-warmups", "0")
    assert result.exit_code == 1
    assert "  stream-error  8  " in result.stderr


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


def test_faults_in_json_and_what_is_no_failure() -> None:
    """Each kind with its count and first message; answers without usage are told, and are sound."""

    def script(peer: Peer, body: bytes) -> None:
        if peer.number == 0:
            peer.send(HEAD + token("a") + token("b") + DONE + LAST)
        else:
            peer.send(b"HTTP/1.1 429 Slow\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n")

    with serving(script) as server:
        result = bench(server, "--num-warmups", "0", "--max-concurrency", "2", "--json")
    found = json.loads(result.stdout)
    (fault,) = found["faults"]
    assert (fault["kind"], fault["count"]) == ("rate-limited", found["summary"]["failed"])
    assert found["answers_without_usage"] == found["summary"]["completed"] > 0
    assert "came without the server's token count" in result.stderr


def test_a_load_that_fails_too_often_ends_early() -> None:
    """At the declared error rate."""
    with serving(lambda peer, _: peer.send(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")) as server:
        options = ["--num-prompts", "400", "--max-concurrency", "2", "--max-error-rate", "0.5", "--num-warmups", "0"]
        result = bench(server, *options)
    assert result.exit_code == 1
    assert "ended early: " in result.stderr


def test_the_key_is_sent_and_never_shown(tmp_path: Path) -> None:
    """From a file; neither output nor saved figures hold it."""
    key = "sk-4711-not-to-be-seen"
    (tmp_path / "key").write_text(f"{key}\n")
    with serving(good) as server:
        options = ["--api-key-file", str(tmp_path / "key"), "--header", f"X-Key={key}", "--save-result"]
        result = bench(server, *options, "--result-dir", str(tmp_path / "out"))
        json_result = bench(server, *options, "--json", "--result-dir", str(tmp_path / "out"))
    assert (result.exit_code, json_result.exit_code) == (0, 0)
    assert all(f"Authorization: Bearer {key}".encode() in head for head in server.heads)
    shown = result.output + json_result.output
    saved = b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir())
    assert (key not in shown, key.encode() not in saved) == (True, True)


def test_whole_answers() -> None:
    """Without a stream: asked for so, measured so, and said."""
    answer = (
        b'{"choices": [{"message": {"content": "a b"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}'
    )
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(answer)
    with serving(lambda peer, _: peer.send(head + answer)) as server:
        result = bench(server, "--no-stream")
    found = parse_block(result.stdout)
    assert found is not None
    assert (found.completed, found.total_output_tokens) == (8, 16)
    assert all(json.loads(body)["stream"] is False for body in server.bodies)
    assert "note: --no-stream" in result.stderr


# --------------------------------------------------------------------------- lines pasted from vllm's users


@pytest.fixture(scope="module")
def mock_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A real serving process with the API of vllm."""
    port = free_port()
    server = launch(mock_command(port, "", speed=50.0), tmp_path_factory.mktemp("mock"), port)
    try:
        server.wait_ready(get("mock"), 20, never)
        yield port
    finally:
        server.stop(1.0)


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer of 256 tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE({sign: number for number, sign in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save(str(folder / "tokenizer.json"))
    return folder


def pasted(line: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run what a user pastes behind `servetune` in a shell, as the shell gives it to us."""
    command = f"{sys.executable} -m servetune.cli.main {line} {' '.join(more)}"
    return subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)


def test_the_usual_line_of_vllm(mock_port: int, tokenizer_folder: Path, tmp_path: Path) -> None:
    """Several lines, values behind one flag, detailed results: all as vllm's users write it."""
    done = pasted(f"""bench \\
        --backend vllm \\
        --model mock \\
        --tokenizer {tokenizer_folder} --trust-remote-code \\
        --endpoint /v1/completions \\
        --host 127.0.0.1 --port {mock_port} \\
        --dataset-name random \\
        --random-input-len 16 --random-output-len=4 \\
        --num_prompts 12 \\
        --request-rate 200 --burstiness 0.5 --max-concurrency 6 --seed 42 \\
        --goodput ttft:60000 tpot:60000 e2el:60000 \\
        --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 25,50,99.9 \\
        --metadata version=1.2 tp=1 \\
        --header X-Tenant=a X-Other=b \\
        --temperature 0.5 --top-p 0.9 --extra-body '{{"min_tokens": 1}}' \\
        --num-warmups 2 --ready-check-timeout-sec 10 --disable-tqdm \\
        --save-result --save-detailed --result-dir {tmp_path} --result-filename r.json""")
    assert done.returncode == 0, done.stderr
    found = parse_block(done.stdout)
    assert found is not None
    assert (found.completed, found.failed, found.max_concurrency, found.request_rate) == (12, 0, 6, 200.0)
    assert found.request_goodput == found.request_throughput
    assert set(found.latency_ms) == {"ttft", "tpot", "itl", "e2el"}
    assert set(found.latency_ms["ttft"]) == {"mean", "median", "p25", "p50", "p99.9"}
    assert "note: --trust-remote-code is left out" in done.stderr
    saved = json.loads((tmp_path / "r.json").read_text())
    assert (saved["backend"], saved["version"], saved["tp"], saved["request_rate"]) == ("vllm", "1.2", "1", 200.0)
    assert {"p25_ttft_ms", "p99.9_e2el_ms", "request_goodput"} <= saved.keys()
    assert (len(saved["input_lens"]), sum(saved["input_lens"])) == (12, saved["total_input_tokens"])
    assert (saved["output_lens"], saved["errors"]) == ([4] * 12, [""] * 12)
    assert all(saved["generated_texts"])
    sums = [ttft + sum(gaps) for ttft, gaps in zip(saved["ttfts"], saved["itls"], strict=True)]
    assert sums == pytest.approx(saved["latencies"])
    assert saved["start_times"] == sorted(saved["start_times"])


def test_a_ramp_of_vllm(mock_port: int, tmp_path: Path) -> None:
    """The rate rises; the file has vllm's name and keys, and further runs are added to it."""
    line = f"""bench --backend openai-chat --base-url http://127.0.0.1:{mock_port} --model mock --dataset-name chat \
        --num-prompts 20 --output-len 4 --ramp-up-strategy exponential --ramp-up-start-rps 50 \
        --ramp-up-end-rps 400 --burstiness inf --append-result --result-dir {tmp_path} --label test"""
    done = pasted(line)
    assert done.returncode == 0, done.stderr
    assert "Request rate ramp-up (RPS):              50.00 to 400.00, exponential" in done.stdout
    (path,) = tmp_path.glob("*.json")
    assert path.name.startswith("test-ramp-up-exponential-50qps-400qps-mock-")
    again = pasted(line, f"--result-filename {path.name}")
    assert again.returncode == 0, again.stderr
    runs = [json.loads(text) for text in path.read_text().splitlines()]
    assert [run["ramp_up_strategy"] for run in runs] == ["exponential", "exponential"]
    assert [run["label"] for run in runs] == ["test", "test"]


def test_definitions_and_a_server_that_is_named_by_its_url(mock_port: int) -> None:
    """The lines of vllm 0.33, latencies on request, JSON."""
    base = f"bench --base-url http://127.0.0.1:{mock_port}/v1 --backend openai-chat --dataset-name chat --num-prompts 4"
    old = pasted(f"{base} --output-len 4 --definitions vllm-0.33 --percentile-metrics e2el")
    found = parse_block(old.stdout)
    assert found is not None
    assert (found.definitions, set(found.latency_ms)) == (None, {"e2el"})
    ours = pasted(f"{base} --output-len 4 --percentile-metrics ttfot,e2el_including_client_queue,icl")
    found = parse_block(ours.stdout)
    assert found is not None
    assert (set(found.latency_ms), found.other) == ({"ttfot", "schedule_e2el", "icl"}, ())


def test_the_progress_of_a_terminal(mock_port: int) -> None:
    """One line that is written over, and is gone in the end."""
    line = (
        f"bench --port {mock_port} --num-prompts 30 --output-len 30 --request-rate 60 --model mock --dataset-name chat"
    )
    argv = [sys.executable, "-m", "servetune.cli.main", *line.split()]
    shown = in_a_terminal(argv)
    assert "warming up" in shown
    assert "/30 requests, " in shown
    assert " tokens/s, 0:00" in shown


def in_a_terminal(argv: list[str]) -> str:
    """Run a command whose stderr is a terminal; returns what it wrote there."""
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 4096):
                shown += data
        except OSError:  # what Linux says when the other side has gone
            pass
        finally:
            os.close(ours)
        assert process.wait(30) == 0
    return shown.decode()
