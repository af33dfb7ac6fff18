"""What is asked, and how it is sent."""

from __future__ import annotations

from typing import Any, Literal

from servetune.records.raw import Api
from servetune.records.value import OptionValue, Record


class RampUp(Record, frozen=True, kw_only=True):
    """A request rate that rises from `start_rps` to `end_rps` over the requests of a load."""

    strategy: Literal["linear", "exponential"]
    start_rps: float
    end_rps: float


class Load(Record, frozen=True, kw_only=True):
    """How requests are sent."""

    request_rate: float | None = None
    """Mean arrivals per second; None: all at once."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of the gaps; 1 is a Poisson process."""
    max_concurrency: int | None = None
    warmup_requests: int = 1
    idle_timeout_s: float = 120.0
    """A stream that is silent for longer is cut and counted as failed."""
    total_timeout_s: float = 3600.0
    first_byte_timeout_s: float | None = None
    """Longest wait for the first byte of an answer; None: only the other two limits hold."""
    connections: Literal["keep", "new"] = "keep"
    """keep: a pool of open connections is used again; new: each request has its own."""
    ramp_up: RampUp | None = None
    """With it, the rate rises over the run and `request_rate` is not used."""
    max_error_rate: float | None = None
    """The load ends early once more than this share of the requests that ended have failed (after 20 of them)."""
    overrun_factor: float = 4.0
    """An answer with more than this many times the tokens asked for is cut (and never before 64 events)."""
    workers: int | None = None
    """Processes that send; None: chosen from the expected chunks per second and the free cores."""


class WorkloadSpec(Record, frozen=True, kw_only=True):
    """One workload of a study: what is asked and how it is sent."""

    name: str
    kind: str
    num_prompts: int
    params: dict[str, OptionValue] = {}
    """Parameters of this kind (input_len, output_len, path, ...)."""
    load: Load = Load()
    seed: int | None = None
    """None: derived from study, workload and repeat, so that each repeat has fresh prompts."""


class Request(Record, frozen=True, kw_only=True):
    """One request of a workload, before it is turned into bytes."""

    index: int
    prompt: str
    prompt_tokens: int | None
    """Tokens of the raw prompt by our tokenizer; None: there is no tokenizer."""
    output_tokens: int
    """Most tokens to generate."""


class BodyRules(Record, frozen=True, kw_only=True):
    """How a Request becomes the JSON body that one engine accepts under one set of definitions."""

    api: Api = "chat"
    model: str = "model"
    definitions: str = "strict"
    ignore_eos: bool = True
    """Ask for exactly `output_tokens`; False where an engine refuses the field."""
    include_usage: bool = True
    stream: bool = True
    """False: the whole answer comes at once, and its first token cannot be timed."""
    extra: dict[str, Any] = {}
    """Fields added to each body, any JSON values."""
