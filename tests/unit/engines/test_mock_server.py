"""The mock engine as a real process: its law in real time, its truth file, and every failure on demand."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from servetune.engines import get
from servetune.engines.mock_failures import MODES
from servetune.engines.mock_law import DEFAULT_LAW, Shape, figures, launch_factor, run_factor
from servetune.engines.mock_server import LAUNCH_VARIABLE
from servetune.engines.process import Server, free_port
from servetune.errors import EngineFailed
from servetune.records import Command, Config, OptionValue
from tests.unit.engines.client import Reply, exchange, post, post_many, stream_body
from tests.unit.engines.processes import Marked, launch, mock_command, never

QUIET: dict[str, OptionValue] = {"launch_noise": 0.0, "run_noise": 0.0}
Start = Callable[..., Server]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Start]:
    """Start a ready mock; every process is gone afterwards."""
    marked, servers = Marked(monkeypatch), []

    def begin(*flags: str, **options: OptionValue) -> Server:
        port = free_port()
        command = mock_command(port, "", **options)
        server = launch(Command(argv=(*command.argv, *flags)), tmp_path, port)
        servers.append(server)
        server.wait_ready(get("mock"), 20, never)
        return server

    yield begin
    for server in servers:
        server.stop(0.3)
    marked.wait_until_gone()


def truth_of(path: Path) -> list[dict[str, Any]]:
    """The entries of a truth file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_endpoints_answer(start: Start) -> None:
    """Health, models, metrics, and errors for what is not there."""
    server = start(speed=20.0)
    post(server.port, stream_body(4))
    metrics = exchange(server.port, path="/metrics").body.decode()

    assert json.loads(exchange(server.port).body) == {"status": "ok"}
    assert json.loads(exchange(server.port, path="/v1/models?x=1").body)["data"][0]["id"] == "mock"
    assert "mock:generation_tokens_total 4\n" in metrics
    assert "mock:prompt_tokens_total 3\n" in metrics
    assert exchange(server.port, path="/nothing").status == 404
    assert exchange(server.port, method="DELETE").status == 405
    assert exchange(server.port, b"{", method="POST", path="/v1/completions").status == 400
    assert post(server.port, stream_body(20_000)).status == 400


def test_streams_and_whole_answers_hold_the_asked_tokens(start: Start) -> None:
    """Completions and chats, streamed and not."""
    server = start(speed=20.0)
    chat = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 5, "ignore_eos": True}
    streamed = post(server.port, stream_body(5))
    chatted = post(server.port, {**chat, "stream": True}, "/v1/chat/completions")
    whole = json.loads(post(server.port, chat, "/v1/chat/completions").body)

    assert streamed.messages[-1] == b"[DONE]"
    assert len(streamed.values) == 6
    assert streamed.values[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    assert len(chatted.values) == 6
    assert chatted.values[0]["choices"][0]["delta"]["role"] == "assistant"
    assert len(whole["choices"][0]["message"]["content"].split()) == 5


def test_one_connection_serves_many_requests(start: Start) -> None:
    """Keep-alive, also when the next request comes before the answer is complete, and in pieces."""
    server = start(speed=20.0)
    body = json.dumps({**stream_body(2), "stream": False}).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(request + request[:30])
        time.sleep(0.05)
        connection.sendall(request[30:-5])
        time.sleep(0.05)
        connection.sendall(request[-5:])
        data = b""
        while data.count(b"text_completion") < 2:
            data += connection.recv(65536)

    assert data.count(b"HTTP/1.1 200 OK") == 2


def test_the_truth_file_says_what_happened(start: Start, tmp_path: Path) -> None:
    """Arrival by the kernel, one time a token right before its send, in order, before the client has it."""
    truth = tmp_path / "truth.jsonl"
    server = start("--truth", str(truth), **QUIET)
    before_ns = time.time_ns()
    reply = post(server.port, stream_body(6))
    (entry,) = truth_of(truth)

    assert len(entry["writes_ns"]) == entry["output_tokens"] == 6
    assert entry["prompt_tokens"] == 3
    moments = [before_ns, entry["arrival_ns"], entry["complete_ns"], *entry["writes_ns"], entry["done_ns"]]
    assert moments == sorted(moments)
    assert entry["done_ns"] <= reply.received_ns[-1]
    first_token = next(at for at, data in zip(reply.received_ns, reply.packets, strict=True) if b"alpha" in data)
    assert 0 <= first_token - entry["writes_ns"][0] < 1_000_000_000


@pytest.mark.parametrize(("concurrency", "options"), [(32, {"kv_tokens": 65536}), (2, {"async_scheduling": True})])
def test_real_time_follows_the_law(
    start: Start, tmp_path: Path, concurrency: int, options: dict[str, OptionValue]
) -> None:
    """The server takes as long as the law says (a step less if requests arrive at once, more on a busy machine)."""
    truth = tmp_path / "truth.jsonl"
    shape = Shape(requests=2 * concurrency, input_tokens=60, output_tokens=20, concurrency=concurrency)
    server = start("--truth", str(truth), **QUIET, **options)
    post_many(server.port, [stream_body(20, "word " * 60)] * shape.requests, concurrency)
    entries = truth_of(truth)
    begin, end = min(entry["arrival_ns"] for entry in entries), max(entry["done_ns"] for entry in entries)
    law = figures(DEFAULT_LAW, Config(engine="mock", options=options), shape)

    assert len(entries) == shape.requests
    assert 0.9 < (end - begin) / 1e9 / law.duration_s < 1.6


def test_the_noise_of_a_launch_can_be_repeated(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The launch's number in the environment fixes it; the server is as much slower or faster as the law says."""
    options: dict[str, OptionValue] = {"launch_noise": 1.0, "run_noise": 0.5, "seed": 3}
    config = Config(engine="mock", options=options)
    names = [str(number) for number in range(40)]
    slow = min(names, key=lambda name: launch_factor(config, name) * run_factor(config, name, 1))
    factor = launch_factor(config, slow) * run_factor(config, slow, 1)
    monkeypatch.setenv(LAUNCH_VARIABLE, slow)
    truth = tmp_path / "truth.jsonl"
    server = start("--truth", str(truth), **options, speed=5.0)
    post(server.port, stream_body(4))
    (entry,) = truth_of(truth)
    law = figures(
        DEFAULT_LAW, Config(engine="mock", options={"speed": 5.0}), Shape(requests=1, input_tokens=3, output_tokens=4)
    )

    assert factor < 0.5
    assert 0.9 < (entry["done_ns"] - entry["arrival_ns"]) / 1e9 / (law.duration_s / factor) < 1.6
    assert f"mock: launch {slow}," in server.log_text()


def test_a_law_of_ones_own_is_read(start: Start, tmp_path: Path) -> None:
    """From TOML or JSON; a wrong one is refused with its name."""
    law = tmp_path / "law.json"
    law.write_text('{"weights_s": 0.2, "structural": false, "gains": {"async_scheduling": {"true": 100.0}}}')
    fast = start(law=str(law), async_scheduling=True, **QUIET)
    begin = time.monotonic()
    post(fast.port, stream_body(20))
    assert time.monotonic() - begin < 20 * 0.2
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("weight = 1")
    with pytest.raises(EngineFailed, match=r"wrong\.toml"):
        start(law=str(wrong))


def test_an_idle_mock_costs_nothing(start: Start) -> None:
    """Less than one clock tick in a fifth of a second."""
    server = start(speed=20.0)
    post(server.port, stream_body(2))

    def ticks() -> int:
        fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(0.2)
    assert ticks() - before <= 1


def test_a_client_that_goes_away_frees_its_place(start: Start) -> None:
    """Its sequence is removed and the next request is served."""
    server = start(max_num_seqs=1)
    body = json.dumps(stream_body(4000)).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert b"200 OK" in connection.recv(1000)
    assert len(post(server.port, stream_body(2), timeout_s=10).values) == 3
    assert "mock:requests_running 0\n" in exchange(server.port, path="/metrics").body.decode()


# --------------------------------------------------------------------------- failures on demand

START_FAILURES = {
    "refuse-start": "refused",
    "bad-model": "bad-model",
    "oom-start": "out-of-memory",
    "hang-start": "hung",
    "nonsense": "unknown-option",
}
END_FAILURES = {"oom-load:2": "out-of-memory-under-load", "crash-mid-stream:2": "crashed", "killed-load:2": "killed"}


@pytest.mark.parametrize("mode", START_FAILURES)
def test_failures_at_the_start_have_their_cause(mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And their evidence; no process is left."""
    marked, port = Marked(monkeypatch), free_port()
    with launch(mock_command(port, fail=mode), tmp_path, port) as server, pytest.raises(EngineFailed) as caught:
        server.wait_ready(get("mock"), 0.8 if mode == "hang-start" else 20, never)

    assert (caught.value.stage, caught.value.cause) == ("ready", START_FAILURES[mode])
    assert caught.value.evidence.strip()
    assert marked.pids() == []


def test_a_config_without_room_is_out_of_memory(start: Start) -> None:
    """The law itself can refuse to start."""
    with pytest.raises(EngineFailed) as caught:
        start(kv_tokens=128)
    assert caught.value.cause == "out-of-memory"


def test_a_slow_start_is_waited_for(start: Start) -> None:
    """Until it is ready it answers 503."""
    begin = time.monotonic()
    start(fail="slow-start:0.7")
    assert time.monotonic() - begin >= 0.7


@pytest.mark.parametrize("mode", END_FAILURES)
def test_failures_under_load_end_the_process_in_mid_stream(start: Start, mode: str) -> None:
    """The first request is served, the second breaks after some tokens, and the log says why."""
    server = start(fail=mode, speed=10.0)
    assert post(server.port, stream_body(4)).messages[-1] == b"[DONE]"
    broken = post(server.port, stream_body(4))
    code = _exit_code(server)
    found = get("mock").explain(server.log_text(), code)

    assert b"[DONE]" not in broken.body
    assert b"alpha" in broken.body
    assert found is not None
    assert (found.cause, bool(found.evidence)) == (END_FAILURES[mode], True)


def _exit_code(server: Server) -> int | None:
    end = time.monotonic() + 10
    while server.is_alive() and time.monotonic() < end:
        time.sleep(0.01)
    return server.exit_code()


def test_a_hang_under_load_stops_all_streams(start: Start) -> None:
    """The process lives and answers /health, but no token comes."""
    server = start(fail="hang-load:1", speed=10.0)
    with pytest.raises(TimeoutError):
        post(server.port, stream_body(10), timeout_s=0.5)
    assert server.is_alive()
    assert exchange(server.port).status == 200


@pytest.mark.parametrize(("mode", "statuses"), [("http-500:2", [200, 500, 200, 500]), ("http-429", [429] * 4)])
def test_errors_by_status(start: Start, mode: str, statuses: list[int]) -> None:
    """Every request or every nth."""
    server = start(fail=mode, speed=50.0)
    assert [post(server.port, stream_body(2)).status for _ in range(4)] == statuses


@pytest.mark.parametrize("mode", ["broken-sse", "error-in-stream"])
def test_streams_break_in_their_middle(start: Start, mode: str) -> None:
    """After half of the tokens, without an end of the chunked body."""
    server = start(fail=mode, speed=50.0)
    reply = post(server.port, stream_body(8))

    assert [b"alpha" in reply.body, b"delta" in reply.body, b"[DONE]" in reply.body] == [True, True, False]
    assert not reply.packets[-1].endswith(b"0\r\n\r\n")
    assert (b'"error"' in reply.body) == (mode == "error-in-stream")


def test_characters_are_parted_by_packets(start: Start) -> None:
    """Packets end inside a character, and the whole is still right."""
    server = start(fail="split-utf8", speed=2.0)
    reply = post(server.port, stream_body(4))

    assert any(_ends_inside_a_character(packet) for packet in reply.packets)
    assert "".join(value["choices"][0]["text"] for value in reply.values[:-1]) == (
        " \u00e9t\u00e9 \u6f22\u5b57 \u043c\u0438\u0440 \U0001f642"
    )


def _ends_inside_a_character(packet: bytes) -> bool:
    try:
        packet.decode()
    except UnicodeDecodeError:
        return True
    return False


def test_usage_can_be_withheld(start: Start) -> None:
    """Though it was asked for."""
    server = start(fail="no-usage", speed=50.0)
    reply: Reply = post(server.port, stream_body(3))

    assert len(reply.values) == 3
    assert not any("usage" in value for value in reply.values)
    assert reply.messages[-1] == b"[DONE]"


def test_every_mode_has_a_test() -> None:
    """Modes of the process itself are tested in test_process.py."""
    here = Path(__file__).read_text() + Path(__file__).with_name("test_process.py").read_text()
    assert [mode for mode in MODES if f'"{mode}' not in here] == []


def test_a_request_that_is_too_large_is_refused(start: Start) -> None:
    """Before it is read."""
    server = start(speed=50.0)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")
