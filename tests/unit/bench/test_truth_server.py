"""The truth server of `bench/client/`: its file is read back and agrees with what a trivial client saw."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from bench.client.build import build_floor, build_server, compiler
from bench.client.truth import errors, measured, read_truth, true_figures, window

from servetune.engines.process import free_port

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++")

TOKENS = 5


class Built(NamedTuple):
    server: Path
    floor: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The programs, compiled once."""
    folder = tmp_path_factory.mktemp("built")
    return Built(build_server(folder), build_floor(folder))


@contextmanager
def serving(server: Path, out: Path, *options: str) -> Iterator[int]:
    """Run the server; its truth is in `out` afterwards."""
    port = free_port()
    argv = [str(server), "--port", str(port), "--out", str(out), *options]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"ready\n"
        try:
            yield port
        finally:
            process.terminate()
            process.wait(20)


def ask(port: int, body: dict[str, object], path: str = "/v1/completions") -> tuple[int, list[int], bytes]:
    """Send one request; returns the monotonic ns before it was sent, those of each read, and the answer."""
    text = json.dumps(body)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        before_ns = time.monotonic_ns()
        connection.sendall(f"POST {path} HTTP/1.1\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
        answer, reads_ns = b"", []
        while not answer.endswith((b"0\r\n\r\n", b"}]}", b"}}")):
            part = connection.recv(65536)
            assert part, answer
            reads_ns.append(time.monotonic_ns())
            answer += part
    return before_ns, reads_ns, answer


def test_truth_agrees_with_a_trivial_client(built: Built, tmp_path: Path) -> None:
    """Arrival lies behind the send, each write before its read, and all tokens are there."""
    out = tmp_path / "truth.bin"
    with serving(built.server, out, "--prefill-ms", "40", "--interval-ms", "10") as port:
        stream = {"max_tokens": TOKENS, "stream": True, "stream_options": {"include_usage": True}}
        before_ns, reads_ns, answer = ask(port, stream)
    (true,) = measured(read_truth(out), 1, TOKENS)
    assert before_ns <= true.arrived_ns <= reads_ns[0]
    assert len(true.writes_ns) == TOKENS
    assert true.writes_ns[0] - true.arrived_ns >= 40e6
    assert all(gap >= 0 for gap in true.writes_ns[1:] - true.writes_ns[:-1])
    assert reads_ns[-1] >= true.writes_ns[-1]
    assert answer.count(b'"text":" the"') == TOKENS
    assert answer.count(b'"completion_tokens":5') == 1
    assert answer.count(b"data: [DONE]") == 1


def test_figures_of_the_truth_agree_with_the_floor(built: Built, tmp_path: Path) -> None:
    """Nine figures of the floor are those of the truth."""
    out = tmp_path / "truth.bin"
    with serving(built.server, out, "--prefill-ms", "40", "--interval-ms", "10") as port:
        argv = [str(built.floor), str(port), "4", "8", str(TOKENS)]
        reported = json.loads(subprocess.run(argv, check=True, capture_output=True, timeout=60).stdout)
    answers = measured(read_truth(out), 8, TOKENS)
    assert reported["completed"] == len(answers) == 8
    assert window(answers, 4, is_paced=True).chunks == 8 * TOKENS
    off = errors(reported, true_figures(answers))
    # A wide bound: nothing is timed here, but a wrong unit or a wrong token would be off by more.
    assert all(abs(error) < 30 for latency in off.values() for error in latency.values())


@pytest.mark.parametrize(
    ("path", "body", "holds"),
    [
        ("/v1/completions", {"max_tokens": 3}, b'"text":" the the the"'),
        ("/v1/chat/completions", {"max_tokens": 2}, b'"content":" the the"'),
        ("/v1/chat/completions", {"max_completion_tokens": 2, "stream": True}, b'"delta":{"content":" the"}'),
        ("/v1/chat/completions", {"max_tokens": 2, "stream": True}, b'"role":"assistant"'),
    ],
)
@pytest.mark.parametrize("pace", [("--interval-ms", "1"), ("--interval-ms", "0", "--burst", "2")])
def test_forms_of_answers(
    built: Built, tmp_path: Path, path: str, body: dict[str, object], holds: bytes, pace: tuple[str, ...]
) -> None:
    """Whole answers, chat and roles, paced or not."""
    with serving(built.server, tmp_path / "truth.bin", "--prefill-ms", "0", "--role", "1", *pace) as port:
        _, _, answer = ask(port, body, path)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert holds in answer
    (true,) = read_truth(tmp_path / "truth.bin")
    assert true.is_finished
    assert len(true.writes_ns) == true.wanted


def test_another_file_is_refused(tmp_path: Path) -> None:
    """A file without the mark is no truth."""
    (tmp_path / "other").write_bytes(b"something else")
    with pytest.raises(ValueError, match="not a truth server's file"):
        read_truth(tmp_path / "other")
