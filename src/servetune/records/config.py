"""Engines, their options, and configs: everything needed to start one server."""

from __future__ import annotations

from typing import Literal

from servetune.records.value import OptionValue, Record


class OptionSpec(Record, frozen=True, kw_only=True):
    """One option of an engine, as data of its catalogue (`engines/options/NAME.toml`)."""

    name: str
    type: Literal["bool", "int", "float", "choice", "str"]
    family: str
    """Group of options that are tuned in one step: scheduling, batching, memory, attention, ..."""
    doc: str
    """One line of what it does."""
    flag: str | None = None
    """Command-line flag; for type bool it is given when true and `off_flag` when false."""
    off_flag: str | None = None
    env: str | None = None
    default: OptionValue | None = None
    """The engine's own default; None: decided by the engine at start (see doc)."""
    choices: tuple[OptionValue, ...] = ()
    range: tuple[float, float] | None = None
    scale: Literal["linear", "log2"] = "linear"
    values: tuple[OptionValue, ...] = ()
    """Values worth trying when the user names none."""
    applies: Literal["launch", "load"] = "launch"
    requires: dict[str, tuple[OptionValue, ...]] = {}
    """Other options that must have one of these values for this one to be accepted at a non-default value."""
    versions: str = ""
    effect: str = ""
    """What is known about its effect on throughput and latency."""


class Catalogue(Record, frozen=True, kw_only=True):
    """All options of one engine."""

    engine: str
    options: dict[str, OptionSpec]


class Variant(Record, frozen=True, kw_only=True):
    """One form of the model's weights."""

    name: str
    model: str | None = None
    """Hub name, folder or file; None: the study's model."""
    quantize: str | None = None
    """Make it from the study's GGUF file with this quantisation (Q4_0, Q8_0, F16)."""
    note: str = ""


class Config(Record, frozen=True, kw_only=True):
    """Everything needed to start one server."""

    engine: str
    variant: str = ""
    """Name of the variant; "" is the study's model as it is."""
    options: dict[str, OptionValue] = {}
    """Only options that differ from the engine's defaults or are fixed by the study, sorted by name."""


class Axis(Record, frozen=True, kw_only=True):
    """An option with the values to try."""

    option: str
    values: tuple[OptionValue, ...]


class EngineSpec(Record, frozen=True, kw_only=True):
    """One engine of a study: how to start it and what to vary."""

    name: str
    command: str | None = None
    """Executable, when it is not the one found on PATH."""
    python: str | None = None
    url: str | None = None
    """A server that already runs (engine `endpoint`)."""
    options: dict[str, OptionValue] = {}
    """Options that every config of this engine starts from; one that is also an axis is varied from there."""
    axes: tuple[Axis, ...] = ()
    variants: tuple[Variant, ...] = ()
    env: dict[str, str] = {}
    ready_timeout_s: float = 300.0


class Installed(Record, frozen=True, kw_only=True):
    """An engine that was found on this machine."""

    engine: str
    version: str
    argv: tuple[str, ...]
    """The beginning of its command line."""
    how: str
    """How it was found, in words (on PATH, as a Python package, ...)."""


class Missing(Record, frozen=True, kw_only=True):
    """An engine that was not found."""

    engine: str
    reason: str
    remedy: str


class ModelFacts(Record, frozen=True, kw_only=True):
    """What a model file says about itself; None where it does not say."""

    path: str
    size_bytes: int
    architecture: str | None = None
    quantization: str | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    context_length: int | None = None
    name: str | None = None


class Command(Record, frozen=True, kw_only=True):
    """How one server is started."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    """Variables added to the environment."""
