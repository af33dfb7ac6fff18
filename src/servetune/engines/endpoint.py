"""A server that already runs, at a URL: servetune starts and stops nothing, only the load is varied."""

from __future__ import annotations

from typing import Literal

from servetune.engines.base import Explanation
from servetune.engines.catalogue import load_catalogue
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
)


class Endpoint:
    """The engine `endpoint` (see engines.base.Engine)."""

    name = "endpoint"
    ready_path = "/v1/models"
    accepts_ignore_eos = True
    model_form: Literal["gguf", "hub", "any-name"] = "any-name"

    def catalogue(self) -> Catalogue:
        """Return the options of the load, the only ones that can be varied."""
        return load_catalogue("endpoint")

    def find(self, spec: EngineSpec) -> Installed | Missing:
        """Return how the server is reached; Missing when the study names no URL."""
        if spec.url:
            return Installed(engine=self.name, version="", argv=(), how=f"answers at {spec.url}")
        return Missing(engine=self.name, reason="no URL is given", remedy='add url = "http://HOST:PORT" to [[engine]]')

    def preflight(self, config: Config, *, model: ModelFacts | None, host: HostFacts) -> Failed | None:
        """Return None: nothing is started, so nothing can be refused before."""
        del config, model, host
        return None

    def command(self, config: Config, *, spec: EngineSpec, installed: Installed, model: str, port: int) -> Command:
        """Return an empty command: the server runs already."""
        del config, spec, installed, model, port
        return Command(argv=())

    def is_ready(self, status: int, body: bytes) -> bool:
        """Tell whether the server answers at all."""
        del body
        return status < 500

    def explain(self, log: str, exit_code: int | None) -> Explanation | None:
        """Return None: there is no log of a server that servetune did not start."""
        del log, exit_code
        return None
