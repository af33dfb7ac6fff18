"""Engines as processes: started, watched, explained and stopped, with nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

from servetune.engines import get, keeper
from servetune.engines.base import Engine
from servetune.engines.process import Server, free_port, is_port_free, process_start_time, stop_stale
from servetune.errors import EngineFailed
from servetune.records import Command
from tests.unit.engines.processes import Listening, Marked, launch, launch_mock, mock_command, never, python, wait_for

ENGINE = cast("Engine", Listening())
SLEEP = "import time; time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
ESCAPE = (
    "import subprocess, sys, time\n"
    "code = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'\n"
    "subprocess.Popen([sys.executable, '-S', '-c', code], start_new_session=True)\n"
    "print('escaped', flush=True)\n"
)


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Marked]:
    """Everything that a test starts; a test that leaves something behind fails."""
    marked = Marked(monkeypatch)
    yield marked
    marked.wait_until_gone()


def test_a_server_is_started_and_stopped(marked: Marked, tmp_path: Path) -> None:
    """Keeper and engine run, in sessions and groups of their own; stop leaves neither, and may be called again."""
    with launch_mock(tmp_path) as server:
        server.wait_ready(get("mock"), 20, never)
        assert set(marked.pids()) == {server.pid, server.keeper_pid}
        assert os.getsid(server.keeper_pid) == server.keeper_pid != os.getsid(0)
        assert os.getpgid(server.pid) == server.pid
        assert process_start_time(server.pid) == server.start_time
        assert server.is_alive()
        assert server.exit_code() is None
        assert server.url == f"http://127.0.0.1:{server.port}"
        assert (server.peak_rss_mib() or 0) > 5
        assert server.started_at <= time.time()
        server.stop()
        assert marked.pids() == []
        assert server.exit_code() == 0
        assert not server.is_alive()
        server.stop()
    assert "mock: ready" in server.log_tail(1)


def test_the_engine_gets_its_environment_folder_and_no_input(marked: Marked, tmp_path: Path) -> None:
    """Variables are added, the working folder is kept, standard input is empty, both outputs are in the log."""
    code = "import os, sys; print(os.environ['EXTRA'], os.getcwd(), repr(sys.stdin.read())); sys.stderr.write('err')"
    command = Command(argv=python(code).argv, env={"EXTRA": "more"})
    with Server.launch(command, port=free_port(), log_path=tmp_path / "log", cwd=tmp_path) as server:
        wait_for(lambda: server.exit_code() is not None)

    assert server.log_text() == f"more {tmp_path} ''\nerr"


def test_an_engine_that_ends_at_once_is_explained(marked: Marked, tmp_path: Path) -> None:
    """The exit is noticed without waiting for the time-out, with code and log line."""
    begin = time.monotonic()
    with launch(python("raise RuntimeError('boom')"), tmp_path) as server, pytest.raises(EngineFailed) as caught:
        server.wait_ready(ENGINE, 60, never)

    assert (caught.value.stage, caught.value.cause) == ("ready", "crashed")
    assert "exit code 1" in caught.value.evidence
    assert "RuntimeError: boom" in caught.value.evidence
    assert time.monotonic() - begin < 20


def test_an_engine_that_ends_well_but_too_early_has_crashed(marked: Marked, tmp_path: Path) -> None:
    """Exit code 0 before it is ready is no success."""
    with (
        launch(python("print('done')"), tmp_path) as server,
        pytest.raises(EngineFailed, match="exit code 0") as caught,
    ):
        server.wait_ready(ENGINE, 60, never)

    assert caught.value.cause == "crashed"


def test_an_engine_that_never_answers_is_hung(marked: Marked, tmp_path: Path) -> None:
    """The evidence holds the time and the last log lines; cancelling ends the wait earlier."""
    with launch(python("print('loading', flush=True);" + SLEEP), tmp_path) as server:
        with pytest.raises(EngineFailed, match="not ready after 1 s") as caught:
            server.wait_ready(ENGINE, 1, never)
        assert caught.value.cause == "hung"
        assert "loading" in caught.value.evidence
        with pytest.raises(EngineFailed) as caught:
            server.wait_ready(ENGINE, 600, lambda: True)
        assert caught.value.cause == "cancelled"


def test_a_program_that_is_not_there_is_said(marked: Marked, tmp_path: Path) -> None:
    """At launch, with the system's words; nothing is left running."""
    with pytest.raises(EngineFailed, match="No such file or directory: no-such-program") as caught:
        launch(Command(argv=("no-such-program",)), tmp_path)

    assert (caught.value.stage, caught.value.cause) == ("launch", "not-installed")


def test_a_taken_port_is_said_before_the_start(marked: Marked, tmp_path: Path) -> None:
    """Whoever listens there, no process is started."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert not is_port_free(port)
        with pytest.raises(EngineFailed, match=f"127.0.0.1:{port}") as caught:
            launch(python(SLEEP), tmp_path, port)
    assert (caught.value.stage, caught.value.cause) == ("launch", "port-in-use")


class _Anyone(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


def test_another_program_that_answers_in_the_engines_place_is_noticed(marked: Marked, tmp_path: Path) -> None:
    """A port taken after the check does not pass for a ready engine."""
    port = free_port()
    with launch(python(SLEEP), tmp_path, port) as server, HTTPServer(("127.0.0.1", port), _Anyone) as other:
        thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            with pytest.raises(EngineFailed, match="another program answers") as caught:
                server.wait_ready(ENGINE, 20, never)
        finally:
            other.shutdown()
            thread.join()
    assert caught.value.cause == "port-in-use"


def test_the_mock_says_itself_that_its_port_is_taken(marked: Marked, tmp_path: Path) -> None:
    """An engine that loses the race for its port is explained by its log."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        command = mock_command(other.getsockname()[1])
        with launch(command, tmp_path) as server, pytest.raises(EngineFailed) as caught:
            server.wait_ready(get("mock"), 20, never)
    assert (caught.value.stage, caught.value.cause) == ("ready", "port-in-use")


def test_an_engine_that_ignores_sigterm_is_killed_after_the_grace_time(marked: Marked, tmp_path: Path) -> None:
    """Stop takes the grace time and less than 2 s more."""
    server = launch(python(DEAF), tmp_path)
    wait_for(lambda: "deaf" in server.log_text())
    begin = time.monotonic()
    server.stop(grace_s=0.5)
    took = time.monotonic() - begin

    assert 0.5 <= took < 2.5
    assert server.exit_code() == -signal.SIGKILL
    assert marked.pids() == []


def test_a_stopped_engine_is_woken_to_end(marked: Marked, tmp_path: Path) -> None:
    """SIGSTOP does not save it from SIGTERM."""
    server = launch(python(SLEEP), tmp_path)
    os.kill(server.pid, signal.SIGSTOP)
    begin = time.monotonic()
    server.stop(grace_s=5)

    assert server.exit_code() == -signal.SIGTERM
    assert time.monotonic() - begin < 4


def test_children_that_left_the_group_are_stopped_too(marked: Marked, tmp_path: Path) -> None:
    """A deaf grandchild in a session of its own does not survive stop()."""
    server = launch(python(ESCAPE + SLEEP), tmp_path)
    wait_for(lambda: "escaped" in server.log_text())
    assert len(marked.pids()) == 3
    server.stop()

    assert marked.pids() == []


def test_an_engine_that_ends_by_itself_leaves_no_children(marked: Marked, tmp_path: Path) -> None:
    """Without any word from us."""
    server = launch(python(ESCAPE), tmp_path)
    wait_for(lambda: server.exit_code() is not None)

    assert server.exit_code() == 0
    marked.wait_until_gone(5)
    server.stop()


def test_a_killed_engine_is_told_from_one_that_we_stopped(marked: Marked, tmp_path: Path) -> None:
    """SIGKILL from outside is seen at once."""
    with launch_mock(tmp_path) as server:
        server.wait_ready(get("mock"), 20, never)
        os.kill(server.pid, signal.SIGKILL)
        wait_for(lambda: not server.is_alive())
        assert server.exit_code() == -signal.SIGKILL
        found = get("mock").explain(server.log_text(), server.exit_code())
    assert found is not None
    assert found.cause == "killed"


@pytest.mark.parametrize("code", [SLEEP, ESCAPE + SLEEP, DEAF])
def test_even_a_killed_keeper_leaves_nothing(marked: Marked, tmp_path: Path, code: str) -> None:
    """The engine dies with its keeper, and stop() finds what it left by its environment."""
    server = launch(python("print('begun', flush=True)\n" + code), tmp_path)
    wait_for(lambda: ("escaped" if "Popen" in code else "begun") in server.log_text())
    os.kill(server.keeper_pid, signal.SIGKILL)
    wait_for(lambda: not server.is_alive())
    server.stop()

    assert server.exit_code() == -signal.SIGKILL
    marked.wait_until_gone(5)


def test_a_keeper_asked_to_end_stops_its_engine(marked: Marked, tmp_path: Path) -> None:
    """SIGTERM to the keeper's stored pid is how a later start cleans up; SIGINT and SIGHUP do nothing."""
    server = launch(python(SLEEP), tmp_path)
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(server.keeper_pid, number)
    time.sleep(0.1)
    assert server.is_alive()
    os.kill(server.keeper_pid, signal.SIGTERM)
    marked.wait_until_gone(5)
    assert server.exit_code() == -signal.SIGTERM
    server.stop()


def test_a_stale_process_is_stopped_only_if_it_is_the_same(marked: Marked) -> None:
    """Pid and start time must both fit; a deaf one is killed with its children after the grace time."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", ESCAPE + DEAF], start_new_session=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert [process.stdout.readline(), process.stdout.readline()] == [b"escaped\n", b"deaf\n"]
    started = process_start_time(process.pid)
    assert started is not None
    assert not stop_stale(process.pid, started + 1)
    assert process.poll() is None
    assert stop_stale(process.pid, started, grace_s=0.2)
    assert process.wait(5) == -signal.SIGKILL
    assert process_start_time(process.pid) is None
    assert not stop_stale(process.pid, started)
    process.stdout.close()


def test_free_ports_are_free() -> None:
    """Nothing listens there."""
    assert is_port_free(free_port())


PARENT = """
import sys, time
from pathlib import Path
from servetune.engines.process import Server, free_port
from servetune.records import Command
from tests.unit.engines.processes import launch_mock, never
from servetune.engines import get
server = launch_mock(Path(sys.argv[1]), fail=sys.argv[2])
server.wait_ready(get("mock"), 20, never)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("delay_s", [0.0, 0.15, 0.25, 0.3, 0.4])
def test_kill_9_of_the_parent_while_it_launches_leaves_nothing(marked: Marked, tmp_path: Path, delay_s: float) -> None:
    """At moments from before the keeper exists until the engine is ready."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), "spawn-escapee"], stdout=subprocess.PIPE)
    time.sleep(delay_s)
    parent.kill()
    parent.communicate()

    assert marked.wait_until_gone(15) < 15


@pytest.mark.parametrize("fail", ["", "ignore-sigterm", "spawn-escapee"])
def test_kill_9_of_the_parent_while_it_serves_leaves_nothing(marked: Marked, tmp_path: Path, fail: str) -> None:
    """Also of an engine that does not end by itself, or whose child left its group and session."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), fail], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    assert len(marked.pids()) == (4 if fail == "spawn-escapee" else 3)
    parent.kill()
    parent.communicate()

    assert marked.wait_until_gone(15) < 15


def test_ctrl_c_at_the_terminal_does_not_reach_engine_or_keeper(marked: Marked, tmp_path: Path) -> None:
    """Both are outside the group that the terminal signals."""
    with launch(python(SLEEP), tmp_path) as server:
        groups = {os.getpgid(pid) for pid in (server.pid, server.keeper_pid)}
        assert os.getpgid(0) not in groups
        assert len(groups) == 2


def test_the_keeper_needs_no_installed_package() -> None:
    """It runs isolated and without site-packages, and ends at the end of its input."""
    done = subprocess.run([sys.executable, "-I", "-S", keeper.__file__], input=b"", capture_output=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
