"""Every key of a study file as data: the reader checks against it and the reference page is made from it.

Knows neither TOML nor files.
"""

from __future__ import annotations

import math
from typing import Literal

from servetune.metrics import METRICS, PROFILES
from servetune.records import Budget, Limits, Load, Objective, OptionValue, Record
from servetune.weights import QUANTIZATIONS

KeyType = Literal["text", "whole number", "number", "table", "list of tables", "text or table"]


class Bounds(Record, frozen=True, kw_only=True):
    """The numbers that a key accepts."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    """True: `low` itself is not accepted."""
    high_open: bool = False

    def accept(self, value: float) -> bool:
        """Tell whether `value` lies inside."""
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below

    def words(self) -> str:
        """Say the bounds in words, like "above 0.5 and below 1"."""
        parts = []
        if self.low != -math.inf:
            parts.append(f"{'above' if self.low_open else 'at least'} {_figure(self.low)}")
        if self.high != math.inf:
            parts.append(f"{'below' if self.high_open else 'at most'} {_figure(self.high)}")
        return " and ".join(parts)


def _figure(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.15g}"


class Key(Record, frozen=True, kw_only=True):
    """One key of one table."""

    name: str
    type: KeyType
    doc: str
    required: bool = False
    default: OptionValue | None = None
    """What is used when the key is absent; None: see `absent`."""
    absent: str = ""
    """What its absence means, in words, where that is no value."""
    choices: tuple[str, ...] = ()
    bounds: Bounds | None = None
    is_name: bool = False
    """The text becomes part of file names, so it is held to NAME_PATTERN."""
    is_secret: bool = False
    """The value is never repeated in a message."""


class Table(Record, frozen=True, kw_only=True):
    """One table of the file with its keys."""

    header: str
    """As it is written in the file: `[study]`, `[[engine]]`."""
    doc: str
    keys: tuple[Key, ...]

    def key(self, name: str) -> Key:
        """Return the key `name`; raises KeyError if the table has none."""
        return {key.name: key for key in self.keys}[name]


NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
NAME_WORDS = "letters, digits, dot, dash and underscore, beginning with a letter or digit, at most 80"
YEAR_S = 365 * 24 * 3600.0
BUDGET_UNITS_S = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
"""Key of [budget] -> seconds in one."""

_ABOVE_ZERO = Bounds(low=0, low_open=True)
_OBJECTIVE, _BUDGET, _LOAD = Objective(), Budget(), Load()

ROOT = Table(
    header="",
    doc="The tables of the file. One `[[engine]]` and one `[[workload]]` at least.",
    keys=(
        Key(name="study", type="table", required=True, doc="What is asked."),
        Key(name="objective", type="table", absent="all defaults", doc="What makes one config better than another."),
        Key(name="limits", type="table", absent="all defaults", doc="What a config must keep to be allowed to win."),
        Key(name="budget", type="table", absent="all defaults", doc="What the study may cost."),
        Key(name="engine", type="list of tables", required=True, doc="The engines to compare."),
        Key(name="workload", type="list of tables", required=True, doc="What the engines are asked."),
    ),
)

STUDY = Table(
    header="[study]",
    doc="What is asked.",
    keys=(
        Key(name="name", type="text", required=True, is_name=True, doc=f"Name of the study's folder: {NAME_WORDS}."),
        Key(
            name="model",
            type="text",
            absent="needed, unless every engine has a `url`",
            doc="Model to serve: a GGUF file, a folder, or a hub name. Relative paths start at the study file.",
        ),
        Key(
            name="baseline",
            type="text or table",
            absent="the first engine",
            doc='What gains are measured against: the name of an engine, or a table like `{ engine = "llamacpp", '
            'variant = "F16", options = { threads = 2 } }`. Its options are added to the engine\'s own.',
        ),
        Key(
            name="definitions",
            type="text",
            default="strict",
            choices=tuple(PROFILES),
            doc="Set of rules for prompts, request body and metrics; figures under different sets are not compared.",
        ),
        Key(
            name="quality",
            type="text",
            default="report",
            choices=("report", "required"),
            doc="`report`: a winner with other weights than the baseline's carries the finding `quality-not-checked`; "
            "`required`: it may not win.",
        ),
        Key(
            name="tokenizer",
            type="text",
            absent="the model's own",
            doc="Tokenizer for prompt lengths: a folder, a GGUF file, or a hub name.",
        ),
        Key(name="search", type="text", default="staged", choices=("staged",), doc="How configs are chosen."),
        Key(
            name="seed",
            type="whole number",
            default=0,
            bounds=Bounds(low=0, high=2**63 - 1),
            doc="Everything random is drawn from it.",
        ),
    ),
)

BASELINE = Table(
    header="baseline = { ... }",
    doc="A baseline that is more than an engine's name.",
    keys=(
        Key(name="engine", type="text", required=True, doc="Name of an engine of this study."),
        Key(name="variant", type="text", absent="the engine's first", doc="Name of one of its variants."),
        Key(name="options", type="table", absent="none", doc="Options of the baseline beside the engine's own."),
    ),
)

OBJECTIVE = Table(
    header="[objective]",
    doc="What makes one config better than another.",
    keys=(
        Key(
            name="maximize",
            type="text",
            default=_OBJECTIVE.metric,
            choices=tuple(METRICS),
            doc="Metric to make large. Only one of `maximize` and `minimize` may be given.",
        ),
        Key(
            name="minimize",
            type="text",
            absent="`maximize` is used",
            choices=tuple(METRICS),
            doc="Metric to make small.",
        ),
        Key(name="on", type="text", absent="the first workload", doc="Workload on which it is measured."),
        Key(
            name="min_gain",
            type="number",
            default=_OBJECTIVE.min_gain,
            bounds=Bounds(low=0, high=10),
            doc="Smallest gain that counts, as a fraction: a smaller one is not adopted.",
        ),
        Key(
            name="confidence",
            type="number",
            default=_OBJECTIVE.confidence,
            bounds=Bounds(low=0.5, high=1, low_open=True, high_open=True),
            doc="Per study: the probability that any adopted step truly gains nothing is at most 1 - confidence.",
        ),
    ),
)

MAX_LOSS = Key(
    name="max_loss",
    type="number",
    default=Limits().max_loss,
    bounds=Bounds(low=0, high=1),
    doc="Largest loss of the objective's metric that is accepted on any workload, as a fraction.",
)


def limit_keys() -> tuple[Key, ...]:
    """Return the keys of [limits]: one for each metric, and max_loss."""
    bounds = {"success_rate": Bounds(low=0, high=1)}
    metrics = [
        Key(
            name=metric.name,
            type="number",
            absent="no limit",
            bounds=bounds.get(metric.name, _ABOVE_ZERO),
            doc=f"{'Upper' if metric.better == 'lower' else 'Lower'} bound"
            + (f" in {metric.unit}" if metric.unit else "")
            + f": {metric.label}.",
        )
        for metric in METRICS.values()
    ]
    return (MAX_LOSS, *metrics)


LIMITS = Table(
    header="[limits]",
    doc="What a config must keep to be allowed to win: any metric with its bound (a largest value for a latency, a "
    "smallest for a rate), on the objective's workload.",
    keys=limit_keys(),
)

BUDGET = Table(
    header="[budget]",
    doc="What the study may cost. Give at most one of `hours`, `minutes` and `seconds`.",
    keys=(
        Key(
            name="hours",
            type="number",
            default=_BUDGET.seconds / BUDGET_UNITS_S["hours"],
            bounds=Bounds(low=0, low_open=True, high=YEAR_S / BUDGET_UNITS_S["hours"]),
            doc="Time that measuring may take.",
        ),
        Key(
            name="minutes",
            type="number",
            absent="`hours` is used",
            bounds=Bounds(low=0, low_open=True, high=YEAR_S / BUDGET_UNITS_S["minutes"]),
            doc="The same in minutes.",
        ),
        Key(
            name="seconds",
            type="number",
            absent="`hours` is used",
            bounds=Bounds(low=0, low_open=True, high=YEAR_S),
            doc="The same in seconds.",
        ),
        Key(
            name="max_repeats",
            type="whole number",
            default=_BUDGET.max_repeats,
            bounds=Bounds(low=2, high=1000),
            doc="Most launches of one config in one step; a step ends sooner when its decision is clear.",
        ),
        Key(
            name="max_configs",
            type="whole number",
            absent="no limit",
            bounds=Bounds(low=1, high=100_000),
            doc="Most different configs that are tried.",
        ),
        Key(
            name="runs_per_launch",
            type="whole number",
            default=_BUDGET.runs_per_launch,
            bounds=Bounds(low=1, high=100),
            doc="Runs of the objective's workload on each launched server.",
        ),
    ),
)

ENGINE = Table(
    header="[[engine]]",
    doc="One engine: how to start it and what to vary. `servetune engines NAME` lists its options.",
    keys=(
        Key(name="name", type="text", required=True, doc="Which engine; each may be named once."),
        Key(name="command", type="text", absent="found on PATH", doc="Its executable."),
        Key(name="python", type="text", absent="servetune's own", doc="Python interpreter that has the engine."),
        Key(
            name="url",
            type="text",
            is_secret=True,
            absent="the engine is started",
            doc="Address of a server that already runs (engine `endpoint`).",
        ),
        Key(
            name="ready_timeout_s",
            type="number",
            default=300.0,
            bounds=Bounds(low=0, low_open=True, high=24 * 3600),
            doc="Time that a launch may take until it is ready, in seconds.",
        ),
        Key(
            name="options",
            type="table",
            absent="none",
            doc="Options of every config of this engine. One that is an axis too is where that axis starts; its value "
            "must be one of the axis.",
        ),
        Key(
            name="axes",
            type="table",
            absent="none",
            doc="Options to vary, each with the list of values to try (two at least).",
        ),
        Key(name="variant", type="list of tables", absent="the study's model", doc="Forms of the weights to try."),
        Key(
            name="env",
            type="table",
            is_secret=True,
            absent="none",
            doc="Environment variables of the engine. They are copied into the study's folder as they are; a secret "
            "is better set in the shell, whose environment the engine inherits.",
        ),
    ),
)

VARIANT = Table(
    header="[[engine.variant]]",
    doc="One form of the model's weights. Give either `model` or `quantize`, or neither for the study's model as it "
    "is, which is not tried beside variants unless it is one of them.",
    keys=(
        Key(name="name", type="text", required=True, is_name=True, doc="Name in tables and in `baseline`."),
        Key(name="model", type="text", absent="the study's model", doc="File, folder or hub name of these weights."),
        Key(
            name="quantize",
            type="text",
            absent="as it is",
            choices=QUANTIZATIONS,
            doc="Make it from the study's GGUF file with this quantisation.",
        ),
        Key(name="note", type="text", default="", doc="Printed beside it in the report."),
    ),
)

LOAD_KEYS = (
    Key(
        name="request_rate",
        type="number",
        absent="all requests at once",
        bounds=_ABOVE_ZERO,
        doc="Mean arrivals per second.",
    ),
    Key(
        name="burstiness",
        type="number",
        default=_LOAD.burstiness,
        bounds=_ABOVE_ZERO,
        doc="Shape of the gamma distribution of the gaps between arrivals; 1 is a Poisson process.",
    ),
    Key(
        name="max_concurrency",
        type="whole number",
        absent="no limit",
        bounds=Bounds(low=1, high=1_000_000),
        doc="Most requests in flight.",
    ),
    Key(
        name="warmup_requests",
        type="whole number",
        default=_LOAD.warmup_requests,
        bounds=Bounds(low=0, high=1_000_000),
        doc="Requests, with prompts of their own, before the measured ones.",
    ),
    Key(
        name="idle_timeout_s",
        type="number",
        default=_LOAD.idle_timeout_s,
        bounds=_ABOVE_ZERO,
        doc="A stream that is silent for longer is cut and counted as failed.",
    ),
    Key(
        name="total_timeout_s",
        type="number",
        default=_LOAD.total_timeout_s,
        bounds=_ABOVE_ZERO,
        doc="Longest time of one request.",
    ),
)
"""How the requests of a workload are sent; the names are those of records.Load."""

WORKLOAD = Table(
    header="[[workload]]",
    doc="One workload: what is asked and how it is sent. The parameters of its kind stand beside these keys.",
    keys=(
        Key(name="name", type="text", required=True, is_name=True, doc="Name in tables and in `objective.on`."),
        Key(name="kind", type="text", required=True, doc="Which kind of workload."),
        Key(
            name="num_prompts",
            type="whole number",
            required=True,
            bounds=Bounds(low=1, high=10_000_000),
            doc="Requests of one run.",
        ),
        Key(
            name="seed",
            type="whole number",
            absent="fresh prompts at each repeat",
            bounds=Bounds(low=0, high=2**63 - 1),
            doc="Seed of the prompts, the same at each repeat.",
        ),
        *LOAD_KEYS,
    ),
)

TABLES = (STUDY, BASELINE, OBJECTIVE, LIMITS, BUDGET, ENGINE, VARIANT, WORKLOAD)
"""Every table, in the order of the reference page."""
