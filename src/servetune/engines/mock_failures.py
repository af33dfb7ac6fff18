"""Failures that the mock engine commits on demand: the modes, and how `--fail MODE:ARGUMENT` is read.

Values only: mock_server.py, mock_core.py and mock_api.py do what a mode says.
"""

from __future__ import annotations

from servetune.records import Record

MODES: dict[str, str] = {
    "refuse-start": "writes a message and ends with exit code 1",
    "bad-model": "says that it cannot load the model and ends with exit code 1",
    "oom-start": "writes what engines write when the GPU's memory is too small, and ends with exit code 1",
    "hang-start": "listens, but answers 503 for ever",
    "slow-start": "answers 503 for ARGUMENT seconds (10) before it is ready",
    "oom-load": "runs out of memory and ends with exit code 1 in request ARGUMENT (4), after its second token",
    "crash-mid-stream": "ends with a traceback and exit code 1 in request ARGUMENT (4), after its second token",
    "killed-load": "gets SIGKILL in request ARGUMENT (4), after its second token",
    "hang-load": "stops generating for all streams in request ARGUMENT (4), after its second token",
    "http-500": "answers every ARGUMENTth (1) request with status 500",
    "http-429": "answers every ARGUMENTth (1) request with status 429",
    "broken-sse": "sends half an SSE message after half of the tokens of every ARGUMENTth (1) stream, then closes",
    "error-in-stream": "sends an error object after half of the tokens of every ARGUMENTth (1) stream, then closes",
    "split-utf8": "sends text of multi-byte characters, each message in two packets that part a character",
    "no-usage": "never sends usage, even if asked",
    "spawn-escapee": "starts a child that leaves its group and session, and does not care for SIGTERM",
    "ignore-sigterm": "does not end at SIGTERM",
}
"""Mode -> what the engine does."""

_DEFAULT_ARGUMENTS = {
    "slow-start": 10.0,
    "oom-load": 4.0,
    "crash-mid-stream": 4.0,
    "killed-load": 4.0,
    "hang-load": 4.0,
}


class Failure(Record, frozen=True, kw_only=True):
    """One failure on demand; mode "" is a healthy engine."""

    mode: str = ""
    argument: float = 1.0

    def hits_stream(self, number: int) -> bool:
        """Tell whether request `number` (from 1) is one that a per-request mode spoils."""
        return number % max(int(self.argument), 1) == 0

    def ends_at(self, number: int, generated: int) -> bool:
        """Tell whether an under-load mode strikes when request `number` (from 1) gets token `generated`."""
        return number >= self.argument and generated >= 2


def parse_failure(text: str) -> Failure:
    """Read MODE or MODE:ARGUMENT; raises ValueError with the known modes."""
    mode, _, argument = text.partition(":")
    if mode and mode not in MODES:
        raise ValueError(f"unknown option value --fail {mode}; modes: {', '.join(MODES)}")
    return Failure(mode=mode, argument=float(argument) if argument else _DEFAULT_ARGUMENTS.get(mode, 1.0))
