"""Runs one load against one server: prepares the requests, starts the load worker, watches it, returns its facts.

This is the part of the load client that lives in servetune's own process. It never touches the sockets.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from servetune.errors import HostProblem, LoadFailed
from servetune.http1 import Url, parse_url, request_bytes
from servetune.loadgen.arrivals import offsets_ns
from servetune.loadgen.body import body_bytes, endpoint_path
from servetune.loadgen.job import Finished, GaveUp, Message, PreparedRequest, Progress, Target, WorkerJob
from servetune.loadgen.recordfile import read_records
from servetune.records import BodyRules, ClientFacts, Event, Load, LoadProgress, Record, Request

__all__ = ["LoadJob", "read_records", "run_load"]

_LOOK_EVERY_S = 0.1
_DEAD_SERVER_GRACE_S = 1.0
_HAND_OVER_S = 15.0
_PROBE_TIMEOUT_S = 5.0
_HEADERS = {"Accept": "text/event-stream", "Content-Type": "application/json", "User-Agent": "servetune"}


class LoadJob(Record, frozen=True, kw_only=True):
    """One load: what is sent, where, and how."""

    url: str
    """Root of the server (`http://127.0.0.1:8000`); a path before the API's is kept."""
    requests: tuple[Request, ...]
    warmup: tuple[Request, ...] = ()
    """Sent first and not recorded; their prompts are not those of `requests`."""
    rules: BodyRules = BodyRules()
    load: Load = Load()
    arrival_seed: int = 0
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Added to each request (Authorization, ...)."""
    keep_text: bool = False
    """Keep the visible text of each answer in its record."""
    endpoint: str | None = None
    """Path of the API where it is not the usual one."""


def run_load(
    job: LoadJob,
    *,
    out: Path,
    emit: Callable[[Event], None],
    cancelled: Callable[[], bool],
    server_alive: Callable[[], bool],
) -> ClientFacts:
    """Run `job`, writing a record of each request to `out` as it ends, and return what the client says about itself.

    When `cancelled` turns true, or `server_alive` false while requests are pending, the requests that have not ended
    are recorded as failed and the load ends soon after; this is no error here. Raises LoadFailed with cause
    "warmup-failed" if no warm-up request was answered (evidence: why), "client-failed" if the worker could not do its
    work; HostProblem if the records cannot be written; UserError for an address or header that cannot be used.
    """
    with tempfile.TemporaryDirectory(prefix="servetune-load-") as folder:
        job_path = Path(folder) / "job"
        job_path.write_bytes(msgspec.msgpack.encode(_worker_job(job)))
        with (Path(folder) / "stderr").open("w+b") as stderr, _worker(job_path, out, stderr.fileno()) as worker:
            watch = _Watch(worker, total=len(job.requests), emit=emit)
            last = watch.follow(cancelled, server_alive)
            stderr.seek(0)
            said = stderr.read().decode("utf-8", "replace")
    return _conclude(last, worker.returncode, said)


def _conclude(last: Message | None, exit_code: int | None, stderr: str) -> ClientFacts:
    if isinstance(last, Finished):
        return last.facts
    if isinstance(last, GaveUp) and last.cause == "records-not-written":
        raise HostProblem(f"the records cannot be written: {last.evidence}")
    if isinstance(last, GaveUp):
        raise LoadFailed(last.cause, last.evidence)
    lines = stderr.strip().splitlines()[-5:]
    raise LoadFailed("client-failed", "\n".join([f"the load worker ended with exit code {exit_code}", *lines]))


# --------------------------------------------------------------------------- preparation


def _worker_job(job: LoadJob) -> WorkerJob:
    url = parse_url(job.url)
    due = offsets_ns(len(job.requests), job.load, job.arrival_seed)
    return WorkerJob(
        target=_target(url),
        warmup=_prepared(job, url, job.warmup, (0,) * len(job.warmup)),
        requests=_prepared(job, url, job.requests, due),
        max_in_flight=job.load.max_concurrency,
        has_rate=job.load.request_rate is not None,
        idle_timeout_s=job.load.idle_timeout_s,
        total_timeout_s=job.load.total_timeout_s,
        keep_text=job.keep_text,
        api=job.rules.api,
    )


def _prepared(
    job: LoadJob, url: Url, requests: tuple[Request, ...], due_ns: tuple[int, ...]
) -> tuple[PreparedRequest, ...]:
    path = endpoint_path(url.path, job.rules, job.endpoint)
    headers: Mapping[str, str] = {**_HEADERS, **job.headers}
    return tuple(
        PreparedRequest(
            index=request.index,
            wire=request_bytes(
                "POST", path, authority=url.authority, headers=headers, body=body_bytes(request, job.rules)
            ),
            due_ns=due,
            requested_tokens=request.output_tokens,
            local_prompt_tokens=request.prompt_tokens,
        )
        for request, due in zip(requests, due_ns, strict=True)
    )


def _target(url: Url) -> Target:
    """Resolve the address; where a name has several, take the first that accepts a connection."""
    try:
        found = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except OSError as problem:
        raise LoadFailed("client-failed", f"{url.host}: {problem.strerror or problem}") from problem
    targets = [Target(family=family, address=address) for family, _, _, _, address in found]
    if len(targets) == 1:
        return targets[0]
    return next((target for target in targets if _accepts(target)), targets[0])


def _accepts(target: Target) -> bool:
    with socket.socket(target.family, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(target.address)
        except OSError:
            return False
    return True


# --------------------------------------------------------------------------- the worker process


@contextmanager
def _worker(job_path: Path, out: Path, stderr: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start the worker in a session of its own, so that the terminal's signals do not reach it; end it in any case."""
    argv = [sys.executable, "-m", "servetune.loadgen.worker", str(job_path), str(out)]
    worker = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
    )
    try:
        yield worker
    finally:
        _end(worker)


def _end(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.close()
    try:
        worker.wait(_HAND_OVER_S)
    except subprocess.TimeoutExpired:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    worker.stdout.close()


class _Watch:
    """Reads the worker's messages, passes its progress on, and stops it when it should stop."""

    def __init__(self, worker: subprocess.Popen[bytes], *, total: int, emit: Callable[[Event], None]) -> None:
        self._worker = worker
        self._total = total
        self._emit = emit
        self._text = b""
        self._last: Message | None = None
        self._chunks = (0, 0.0)
        self._stop_at: float | None = None
        self._kill_at: float | None = None

    def follow(self, cancelled: Callable[[], bool], server_alive: Callable[[], bool]) -> Message | None:
        """Return the worker's last message, or None if it died without one."""
        assert self._worker.stdout is not None
        stdout = self._worker.stdout.fileno()
        while True:
            ready, _, _ = select.select([stdout], [], [], _LOOK_EVERY_S)
            if ready:
                data = os.read(stdout, 65536)
                if not data:
                    return self._last
                self._take(data)
            self._consider_stop(cancelled, server_alive)

    def _take(self, data: bytes) -> None:
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            message: Message = msgspec.json.decode(line, type=Message)
            if isinstance(message, Progress):
                self._emit(self._progress(message))
            else:
                self._last = message

    def _progress(self, message: Progress) -> LoadProgress:
        chunks, at_s = self._chunks
        self._chunks = (message.chunks, message.elapsed_s)
        passed_s = message.elapsed_s - at_s
        return LoadProgress(
            done=message.done,
            total=self._total,
            failed=message.failed,
            chunks_per_s=(message.chunks - chunks) / passed_s if passed_s > 0 else 0.0,
            elapsed_s=message.elapsed_s,
        )

    def _consider_stop(self, cancelled: Callable[[], bool], server_alive: Callable[[], bool]) -> None:
        now = time.monotonic()
        if self._kill_at is not None:
            if now > self._kill_at:
                os.killpg(self._worker.pid, signal.SIGKILL)
            return
        if self._stop_at is None and not server_alive():
            # What the server sent before its death, and the resets that it causes, are still on their way.
            self._stop_at = now + _DEAD_SERVER_GRACE_S
        if cancelled() or (self._stop_at is not None and now > self._stop_at):
            assert self._worker.stdin is not None
            self._worker.stdin.close()
            self._kill_at = now + _HAND_OVER_S
