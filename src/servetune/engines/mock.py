"""Engine `mock`: a real process that speaks the OpenAI API and obeys the known law of mock_law.py.

For tests and for learning the tool; its answers are nonsense and its figures are those of no model.
"""

from __future__ import annotations

import sys
from typing import Literal

from servetune import __version__
from servetune.engines.base import Explanation, command_line_options, explain_by_patterns
from servetune.engines.catalogue import load_catalogue
from servetune.records import Catalogue, Command, Config, EngineSpec, Failed, HostFacts, Installed, Missing, ModelFacts

_PATTERNS = {
    r"address already in use": "port-in-use",
    r"out of memory while serving": "out-of-memory-under-load",
    r"out of memory|no block beside": "out-of-memory",
    r"cannot load the model": "bad-model",
    r"unrecognized arguments|invalid choice|unknown option": "unknown-option",
    r"refused to start": "refused",
    r"illegal instruction": "unsupported-cpu",
}
"""Regular expression over a log line -> cause, most telling first."""


class Mock:
    """The mock engine, as base.Engine describes engines."""

    name = "mock"
    ready_path = "/health"
    accepts_ignore_eos = True
    model_form: Literal["gguf", "hub", "any-name"] = "any-name"

    def catalogue(self) -> Catalogue:
        """Return the options of options/mock.toml."""
        return load_catalogue("mock")

    def find(self, spec: EngineSpec) -> Installed | Missing:
        """Return this installation of servetune; the mock is part of it."""
        argv = (spec.python or sys.executable, "-m", "servetune.engines.mock_server")
        return Installed(engine=self.name, version=__version__, argv=argv, how="part of servetune")

    def preflight(self, config: Config, *, model: ModelFacts | None, host: HostFacts) -> Failed | None:  # noqa: ARG002 -- the protocol's
        """Return None: the mock needs nothing of the host, and its failures are meant to happen at the start."""
        return None

    def command(self, config: Config, *, spec: EngineSpec, installed: Installed, model: str, port: int) -> Command:
        """Return the command line; `model` is only the name that the server gives to itself."""
        argv = (*installed.argv, "--port", str(port), "--model", model, "--variant", config.variant)
        options = command_line_options(config, self.catalogue())
        return Command(argv=(*argv, *options), env=spec.env)

    def is_ready(self, status: int, body: bytes) -> bool:  # noqa: ARG002 -- the protocol's
        """Tell whether /health answered 200; while it starts, the mock answers 503."""
        return status == 200

    def explain(self, log: str, exit_code: int | None) -> Explanation | None:
        """Return what the log says, or the exit code if it says nothing."""
        return explain_by_patterns(log, exit_code, _PATTERNS)
