"""Every error that servetune raises on purpose.

    ServetuneError              never raised itself; carries the exit code
    ├── UserError               2    the input is wrong: where, what, what to do
    │   └── StudyFileError      2    all mistakes of one study file at once
    ├── HostProblem             3    this machine cannot do it (no engine, disk full, no permission)
    │   ├── StoreError          3    the study folder cannot be read or written
    │   └── LockHeld            3    another study is measuring on this host
    ├── EngineFailed            -    one engine did not start or died; trial.py turns it into a Failed value
    ├── LoadFailed              -    the load client could not do its work; trial.py turns it into a Failed value
    └── Interrupted             130  SIGINT, SIGTERM or SIGHUP

A failed request or a failed trial is a value (records.RequestError, records.Failed), not an exception:
an exception is only for what the caller cannot continue from.
"""

from __future__ import annotations


class ServetuneError(Exception):
    """Base of all errors that are shown to the user as one message, without a traceback."""

    exit_code = 3


class UserError(ServetuneError):
    """The user's input is wrong.

    `where` names the place (a file with its path inside, a flag), `problem` says what is wrong there and
    `fix` what to do about it.
    """

    exit_code = 2

    def __init__(self, where: str, problem: str, fix: str = "") -> None:
        self.where = where
        self.problem = problem
        self.fix = fix
        super().__init__(f"{where}: {problem}" + (f" ({fix})" if fix else ""))


class StudyFileError(UserError):
    """A study file with one or more mistakes; `mistakes` holds one UserError for each."""

    def __init__(self, path: str, mistakes: list[UserError]) -> None:
        self.mistakes = mistakes
        count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        super().__init__(path, count)

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.problem}", *(f"  {mistake}" for mistake in self.mistakes)]
        return "\n".join(lines)


class HostProblem(ServetuneError):
    """This machine cannot do what was asked; the message says what is missing and what to do."""

    exit_code = 3


class StoreError(HostProblem):
    """The study folder cannot be read or written (permission, disk full, damaged file)."""


class LockHeld(HostProblem):
    """Another study is measuring on this host, so that figures of both would be spoilt."""


class EngineFailed(ServetuneError):
    """One engine did not start, was not ready in time, or died.

    `stage` and `cause` are those of records.Failed; `evidence` is the part of the log that shows it.
    """

    def __init__(self, stage: str, cause: str, evidence: str) -> None:
        self.stage = stage
        self.cause = cause
        self.evidence = evidence
        super().__init__(f"{stage}: {cause}: {evidence}")


class LoadFailed(ServetuneError):
    """The load client's process died or could not begin; `evidence` is what it said."""

    def __init__(self, cause: str, evidence: str) -> None:
        self.cause = cause
        self.evidence = evidence
        super().__init__(f"load client: {cause}: {evidence}")


class Interrupted(ServetuneError):
    """The user or the system asked servetune to stop; what is measured is stored."""

    exit_code = 130

    def __init__(self, signal_name: str) -> None:
        self.signal_name = signal_name
        super().__init__(f"interrupted by {signal_name}; everything measured so far is stored")
