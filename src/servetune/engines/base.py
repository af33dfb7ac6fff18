"""What every engine must be able to say, and the words for why one failed.

An engine is one file of functions from values to values: this module knows no engine, starts no process and reads no
file. `engines/process.py` owns start, wait and stop for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, Protocol

from servetune.records import (
    Catalogue,
    Command,
    Config,
    EngineSpec,
    Failed,
    HostFacts,
    Installed,
    Missing,
    ModelFacts,
    OptionValue,
    Record,
)

CAUSES: dict[str, str] = {
    "out-of-memory": "there was not enough memory to start",
    "out-of-memory-under-load": "the engine started, then ran out of memory while it served requests",
    "port-in-use": "another program listens on the port that the engine was given",
    "bad-model": "the model file is missing, damaged, or of a kind that the engine cannot load",
    "unknown-option": "the engine does not know an option, or refuses its value",
    "crashed": "the engine ended by itself, with an error",
    "killed": "the engine was ended by a signal from outside (SIGKILL: often the kernel's memory killer)",
    "hung": "the engine runs but was not ready, or did not answer, in the time it was given",
    "unsupported-cpu": "the engine was built for instructions that this processor does not have",
    "refused": "the engine refused to start this configuration",
    "not-installed": "the engine's program cannot be started",
    "client-failed": "the load client could not do its work; the engine may be well",
    "all-requests-failed": "the engine ran, but no request was answered",
    "cancelled": "servetune was asked to stop",
}
"""Every cause that a records.Failed may have, with what it means."""


class Explanation(Record, frozen=True, kw_only=True):
    """Why an engine ended, as far as its log and exit code tell."""

    cause: str
    """One of CAUSES."""
    evidence: str
    """The log lines that show it."""


class Engine(Protocol):
    """One serving program: how it is found, started, recognised as ready, and what its log means.

    All methods but `find` are pure; `find` looks at the file system and may ask a program for its version.
    """

    name: str
    ready_path: str
    """Path that answers once the model is loaded."""
    accepts_ignore_eos: bool
    """False: the engine refuses a request body with `ignore_eos`."""
    model_form: Literal["gguf", "hub", "any-name"]
    """What `command` takes as model: a GGUF file, a hub name or folder, or any name (nothing is loaded)."""

    def catalogue(self) -> Catalogue:
        """Return every option of this engine."""
        ...

    def find(self, spec: EngineSpec) -> Installed | Missing:
        """Look for the engine on this machine, at the place that `spec` names if it names one."""
        ...

    def preflight(self, config: Config, *, model: ModelFacts | None, host: HostFacts) -> Failed | None:
        """Return why `config` cannot run on `host` (stage preflight), if that is certain before a start."""
        ...

    def command(self, config: Config, *, spec: EngineSpec, installed: Installed, model: str, port: int) -> Command:
        """Return the exact command line that serves `model` (a path or hub name) on loopback `port`."""
        ...

    def is_ready(self, status: int, body: bytes) -> bool:
        """Tell whether this answer of `ready_path` means that requests will be served."""
        ...

    def explain(self, log: str, exit_code: int | None) -> Explanation | None:
        """Return what the end of the log (and the exit code; None while it runs) say about a failure."""
        ...


_ERROR_LIKE = re.compile(
    r"error|exception|fatal|fail|abort|assert|cannot|can't|could not|unable|invalid|unknown|unsupported|unrecognized"
    r"|out of memory|no such|denied|refus|killed|panic|in use|illegal instruction|segmentation|traceback",
    re.IGNORECASE,
)
_LONGEST_LINE = 300


def decisive_lines(log: str, *, count: int = 3) -> str:
    """Return the last `count` lines of `log` that look like errors, or its last lines if none does.

    Repeats and blank lines are dropped and long lines are cut. The answer is "" for a log without text.
    """
    lines = [line.strip()[:_LONGEST_LINE] for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR_LIKE.search(line)]
    newest_first = dict.fromkeys(reversed(errors or lines))
    return "\n".join(reversed(list(newest_first)[:count]))


def lines_matching(log: str, pattern: str, *, count: int = 3) -> str:
    """Return the last `count` different lines of `log` in which the regular expression `pattern` is found."""
    found = re.compile(pattern, re.IGNORECASE)
    newest_first = dict.fromkeys(
        line.strip()[:_LONGEST_LINE] for line in reversed(log.splitlines()) if found.search(line)
    )
    return "\n".join(reversed(list(newest_first)[:count]))


def explain_by_patterns(log: str, exit_code: int | None, patterns: Mapping[str, str]) -> Explanation | None:
    """Match `patterns` (regular expression -> cause, most telling first) against `log`, then read the exit code.

    A negative exit code is the number of the signal that ended the process. None: nothing points at a failure.
    """
    for pattern, cause in patterns.items():
        if evidence := lines_matching(log, pattern):
            return Explanation(cause=cause, evidence=evidence)
    return explain_exit(log, exit_code)


_SIGILL, _SIGKILL, _SIGTERM = 4, 9, 15


def explain_exit(log: str, exit_code: int | None) -> Explanation | None:
    """Return what the exit code alone says; None for a process that still runs or ended well."""
    if exit_code is None or exit_code == 0:
        return None
    last_lines = decisive_lines(log)
    if exit_code == -_SIGILL:
        return Explanation(cause="unsupported-cpu", evidence=_join("illegal instruction (SIGILL)", last_lines))
    if exit_code in (-_SIGKILL, -_SIGTERM):
        return Explanation(cause="killed", evidence=_join(f"ended by signal {-exit_code}", last_lines))
    ended = f"ended by signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    return Explanation(cause="crashed", evidence=_join(ended, last_lines))


def _join(first: str, rest: str) -> str:
    return f"{first}\n{rest}" if rest else first


def command_line_options(
    config: Config, catalogue: Catalogue, *, fixed: Mapping[str, OptionValue] | None = None
) -> tuple[str, ...]:
    """Return the flags for `fixed` and the options of `config` (which win), sorted by option name.

    A bool gives its flag or off_flag alone; an option without a flag gives nothing.
    """
    chosen = {**(fixed or {}), **config.options}
    arguments: list[str] = []
    for name in sorted(chosen):
        option, value = catalogue.options[name], chosen[name]
        if isinstance(value, bool):
            switch = option.flag if value else option.off_flag
            arguments += [switch] if switch else []
        elif option.flag:
            arguments += [option.flag, str(value)]
    return tuple(arguments)
