"""The mock engine's program: `python -m servetune.engines.mock_server --port N [options]`.

Reads the command line, fails at the start if told so, and answers HTTP requests with the API of mock_api.py and the
times of mock_core.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from servetune.engines.catalogue import load_catalogue, value_error
from servetune.engines.mock_api import Answer, error_body, read_generation
from servetune.engines.mock_core import Core, Stream
from servetune.engines.mock_failures import parse_failure
from servetune.engines.mock_http import Connection, HttpRequest, Listener
from servetune.engines.mock_law import Law, NoRoom
from servetune.records import Config, OptionSpec, OptionValue

LAUNCH_VARIABLE = "SERVETUNE_MOCK_LAUNCH"
"""Environment variable with the number of the launch, for noise that can be repeated."""
_START_ERRORS = {
    "refuse-start": "mock: refused to start (told to fail)",
    "bad-model": "mock: cannot load the model: not a file of weights (told to fail)",
    "oom-start": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (told to fail)",
}


class App:
    """Routes requests; knows the core and whether it is ready."""

    def __init__(self, core: Core, *, model: str, logs_requests: bool) -> None:
        self.core = core
        self.model = model
        self.is_ready = False
        self._logs_requests = logs_requests
        self._received = 0

    def handle(self, connection: Connection, request: HttpRequest) -> None:
        """Answer one request, or hand it to the core."""
        path = request.path.partition("?")[0]
        match request.method, path:
            case "GET", "/health":
                self._health(connection)
            case "GET", "/v1/models":
                model = {"id": self.model, "object": "model", "owned_by": "servetune"}
                connection.respond(200, json.dumps({"object": "list", "data": [model]}).encode())
            case "GET", "/metrics":
                connection.respond(200, self._metrics(), media="text/plain; version=0.0.4")
            case "POST", "/v1/completions" | "/v1/chat/completions":
                self._generate(connection, request, is_chat=path.endswith("chat/completions"))
            case _, "/health" | "/v1/models" | "/metrics" | "/v1/completions" | "/v1/chat/completions":
                connection.respond(405, error_body("method not allowed"))
            case _:
                connection.respond(404, error_body(f"there is no {path}"))

    def _health(self, connection: Connection) -> None:
        if self.is_ready:
            connection.respond(200, b'{"status": "ok"}')
        else:
            connection.respond(503, error_body("loading", "unavailable_error"))

    def _generate(self, connection: Connection, request: HttpRequest, *, is_chat: bool) -> None:
        if not self.is_ready:
            connection.respond(503, error_body("loading", "unavailable_error"))
            return
        self._received += 1
        if self._logs_requests:
            sys.stdout.write(f"request {self._received}: {request.path}, {len(request.body)} bytes\n")
        failure = self.core.failure
        if failure.mode in ("http-500", "http-429") and failure.hits_stream(self._received):
            status = int(failure.mode.removeprefix("http-"))
            connection.respond(status, error_body("told to fail", "server_error"), extra="Retry-After: 1\r\n")
            return
        try:
            generation = read_generation(request.body, is_chat=is_chat)
        except ValueError as error:
            connection.respond(400, error_body(str(error)))
            return
        if not self.core.scheduler.fits(generation.prompt_tokens, generation.output_tokens):
            connection.respond(400, error_body("the request is longer than the KV space"))
            return
        answer = Answer(generation, self._received, int(time.time()), wide=failure.mode == "split-utf8")
        self.core.submit(Stream(self._received, connection, request, answer))

    def _metrics(self) -> bytes:
        core = self.core
        values = {
            "prompt_tokens_total": ("counter", core.prompt_tokens),
            "generation_tokens_total": ("counter", core.output_tokens),
            "requests_finished_total": ("counter", core.finished),
            "preemptions_total": ("counter", core.scheduler.preemptions),
            "requests_running": ("gauge", len(core.scheduler.running)),
            "requests_waiting": ("gauge", len(core.scheduler.waiting)),
            "kv_blocks_free": ("gauge", core.scheduler.free_blocks),
        }
        lines = [f"# TYPE mock:{name} {kind}\nmock:{name} {value}\n" for name, (kind, value) in values.items()]
        return "".join(lines).encode()


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line: what every engine needs, and each option of the catalogue."""
    parser = argparse.ArgumentParser(prog="mock_server", description="A serving engine with a known law.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="mock")
    parser.add_argument("--variant", default="")
    parser.add_argument("--truth", type=Path, help="append one JSON line with the true times of each request")
    for option in load_catalogue("mock").options.values():
        _add_option(parser, option)
    return parser


def _add_option(parser: argparse.ArgumentParser, option: OptionSpec) -> None:
    assert option.flag is not None
    if option.type == "bool":
        parser.add_argument(option.flag, dest=option.name, action=argparse.BooleanOptionalAction, default=None)
    else:
        kind = type(option.default)
        parser.add_argument(option.flag, dest=option.name, type=kind, default=None)


def read_config(arguments: argparse.Namespace) -> Config:
    """Return the config of the command line; raises ValueError for a value that the catalogue does not allow."""
    options: dict[str, OptionValue] = {}
    for name, option in load_catalogue("mock").options.items():
        value = getattr(arguments, name)
        if value is None:
            continue
        if problem := value_error(option, value):
            raise ValueError(f"unknown option value {option.flag}: {problem}")
        options[name] = value
    return Config(engine="mock", variant=arguments.variant, options=options)


def read_law(path: str) -> Law:
    """Read a law from a TOML or JSON file ("" is the default one); raises OSError, ValueError."""
    if not path:
        return Law()
    data = Path(path).read_bytes()
    try:
        decoder = msgspec.json.decode if path.endswith(".json") else msgspec.toml.decode
        return decoder(data, type=Law)
    except msgspec.MsgspecError as error:
        raise ValueError(f"law {path}: {error}") from error


async def serve(app: App, port: int) -> None:
    """Serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    failure = app.core.failure
    if failure.mode == "ignore-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        loop.add_signal_handler(signal.SIGTERM, ended.set)
    Listener(loop, port, app.handle)
    generation = asyncio.create_task(app.core.run())
    sys.stdout.write(f"mock: listening on 127.0.0.1:{port}\n")
    sys.stdout.flush()
    if failure.mode == "slow-start":
        loop.call_later(failure.argument, _become_ready, app)
    elif failure.mode != "hang-start":
        _become_ready(app)
    waits = asyncio.create_task(ended.wait())
    await asyncio.wait([generation, waits], return_when=asyncio.FIRST_COMPLETED)
    if generation.done():
        generation.result()


def _become_ready(app: App) -> None:
    app.is_ready = True
    sys.stdout.write("mock: ready\n")
    sys.stdout.flush()


def start_escapee() -> int:
    """Start a grandchild in a session of its own that ignores SIGTERM; return the pid of the child that made it."""
    sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
    spawn = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleeper!r}], start_new_session=True)"
    child = subprocess.Popen([sys.executable, "-c", spawn], start_new_session=True)
    child.wait()
    return child.pid


def prepare(arguments: argparse.Namespace) -> App:
    """Build the app of a command line; raises ValueError, OSError, NoRoom with what forbids the start."""
    config = read_config(arguments)
    failure = parse_failure(str(config.options.get("fail", "")))
    law = read_law(str(config.options.get("law", "")))
    launch = os.environ.get(LAUNCH_VARIABLE) or f"{os.getpid()}-{time.time_ns()}"
    sys.stdout.write(f"mock: launch {launch}, variant {arguments.variant!r}\n")
    core = Core(config, law, launch=launch, failure=failure, truth=arguments.truth)
    return App(core, model=arguments.model, logs_requests=bool(config.options.get("log_requests", False)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the mock engine; returns its exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        app = prepare(arguments)
        if refusal := _START_ERRORS.get(app.core.failure.mode):
            sys.stderr.write(f"{refusal}\n")
            return 1
        if app.core.failure.mode == "spawn-escapee":
            start_escapee()
        asyncio.run(serve(app, arguments.port))
    except NoRoom as error:
        sys.stderr.write(f"mock: out of memory: {error}\n")
        return 1
    except (ValueError, OSError) as error:
        sys.stderr.write(f"mock: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
