"""What a line pasted from `vllm bench serve` needs to be understood by click.

vLLM's flags take several values after one name (`--goodput ttft:100 tpot:50`), are written with dashes or underscores,
and reach into JSON (`--extra-body.top_k 5`). Flags of vLLM that have no meaning here are refused with the reason, or
left out with a note where leaving them out changes nothing that is measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal, NamedTuple

import click

from servetune.cli.did_you_mean import nearest

NOTES = "servetune.bench.notes"
"""Key in the click context's `meta` under which the notes are found."""

_MANY = {"--goodput": "KEY:VALUE", "--metadata": "KEY=VALUE", "--header": "KEY=VALUE"}
_JSON = "--extra-body"

_OTHER_PROGRAMS = {
    "--url": "--base-url",
    "--target": "--base-url",
    "--api-base": "--base-url",
    "--concurrency": "--max-concurrency",
    "--parallel": "--max-concurrency",
    "--rate": "--request-rate",
    "--qps": "--request-rate",
    "--rps": "--request-rate",
    "--num-requests": "--num-prompts",
    "--request-count": "--num-prompts",
    "--isl": "--input-len",
    "--osl": "--output-len",
    "--max-tokens": "--output-len",
    "--prompt-tokens": "--input-len",
    "--output-tokens": "--output-len",
    "--output-file": "--result-filename",
    "--extra-inputs": "--extra-body",
    "--extra-request-body": "--extra-body",
    "--warmup-requests": "--num-warmups",
    "--percentiles": "--metric-percentiles",
    "--timeout": "--total-timeout",
    "--cacert": "--ca-file",
    "--no-check-certificate": "--insecure",
    "--dataset": "--dataset-name",
    "--api": "--backend",
}
"""What other load generators call these flags."""


class Foreign(NamedTuple):
    """A flag of vLLM that is not one of ours."""

    values: Literal[0, 1, 2]
    """How many values follow it; 2: any number."""
    refused: bool
    why: str


def _left_out(why: str, values: Literal[0, 1, 2] = 0) -> Foreign:
    return Foreign(values=values, refused=False, why=why)


def _refused(why: str, values: Literal[0, 1, 2] = 0) -> Foreign:
    return Foreign(values=values, refused=True, why=why)


_NO_PLOT = "no plot is drawn; the raw records are saved with --save-result"
_NO_LORA = "requests are not spread over LoRA modules; --served-model-name NAME asks for one of them"
_NO_TRACE = "traces with times of their own are not replayed"
FOREIGN: dict[str, Foreign] = {
    "--trust-remote-code": _left_out("prompts are made with tokenizer.json alone, and no code of a model is ever run"),
    "--tokenizer-mode": _left_out("prompts are made with tokenizer.json, whatever the mode", 1),
    "--skip-tokenizer-init": _left_out("a tokenizer is loaded only where the dataset needs one"),
    "--use-beam-search": _left_out("no beam search is asked for; what a server needs for it goes into --extra-body"),
    "--request-id-prefix": _left_out("requests carry no id", 1),
    "--plot-timeline": _left_out(_NO_PLOT),
    "--timeline-itl-thresholds": _left_out(_NO_PLOT, 1),
    "--plot-dataset-stats": _left_out(_NO_PLOT),
    "--skip-chat-template": _left_out("no chat template is applied here; the server applies its own"),
    "--enable-multimodal-chat": _left_out("prompts are text"),
    "--random-batch-size": _left_out("it is for embeddings", 1),
    "--no-reranker": _left_out("it is for rerankers"),
    "--lora-modules": _refused(_NO_LORA, 2),
    "--lora-assignment": _refused(_NO_LORA, 1),
    "--profile": _refused("a server's profiler would spoil the figures; start it by POST /start_profile when needed"),
    "--profile-num-steps": _refused("a server's profiler is not started", 1),
    "--probe-request-rate": _refused("probe requests beside the load are not sent", 1),
    "--self-timed": _refused(_NO_TRACE),
    "--no-self-timed": _refused(_NO_TRACE),
    "--no-oversample": _refused("a dataset with too few conversations is always drawn from again; lower --num-prompts"),
    "--disable-shuffle": _refused("conversations are always shuffled; --seed sets their order"),
    "--chat-template-kwargs": _refused(
        """the server renders the prompts: --extra-body '{"chat_template_kwargs": {...}}' tells it how""", 1
    ),
}
"""Flags of `vllm bench serve` that are not offered, with what happens to them."""

_OTHER_DATASETS = (
    "asr", "blazedit", "burstgpt", "common-prefix", "custom", "hf", "prefix-repetition", "random-mm", "sonnet",
    "spec-bench", "speed-bench", "timed-trace", "txt-slices",
)  # fmt: skip


class PastedCommand(click.Command):
    """A command that takes vLLM's way of writing flags."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Rewrite the arguments into click's way, then parse them."""
        own = {name for param in self.get_params(ctx) for name in (*param.opts, *param.secondary_opts)}
        notes: list[str] = []
        written = list(_rewritten(ctx, args, own, notes))
        ctx.meta[NOTES] = notes
        return super().parse_args(ctx, written)


def _rewritten(ctx: click.Context, args: list[str], own: set[str], notes: list[str]) -> Iterator[str]:
    left = list(args)
    while left:
        word = left.pop(0)
        if not word.startswith("--") or word == "--":
            yield word
            continue
        flag, equals, value = word.partition("=")
        name, dot, key = flag.partition(".")
        name = name.replace("_", "-")
        given = [value] if equals else _values(left)
        if dot and name == _JSON:
            del left[: 0 if equals else 1]
            yield f"{_JSON}={_nested(ctx, flag, key, given)}"
        elif name in _MANY:
            del left[: 0 if equals else len(given)]
            if not given and name == "--goodput":
                ctx.fail(f"{name} needs at least one {_MANY[name]}")
            yield from (f"{name}={one}" for one in given)
        elif name in own and not dot:
            yield name + equals + value
        else:
            known = _foreign(name)
            if known is None:
                _unknown(ctx, name, own)
            elif known.refused:
                ctx.fail(f"{name} is not offered: {known.why}")
            else:
                taken = known.values if known.values < 2 else len(given)
                del left[: 0 if equals else min(taken, len(given))]
                notes.append(f"{name} is left out: {known.why}")


def _values(left: list[str]) -> list[str]:
    """Return the words that follow a flag up to the next one; a negative number is no flag."""
    values = []
    for word in left:
        if word.startswith("-") and not word[1:2].isdigit():
            break
        values.append(word)
    return values


def _nested(ctx: click.Context, flag: str, key: str, given: list[str]) -> str:
    """Return `a.b` with a value as JSON: {"a": {"b": value}}; what is no JSON is a text."""
    if not given or "+" in key:
        ctx.fail(f"{flag} needs one value" if not given else f"{flag}: write lists as JSON: {_JSON} '{{...}}'")
    try:
        value = json.loads(given[0])
    except ValueError:
        value = given[0]
    for part in reversed(key.split(".")):
        value = {part: value}
    return json.dumps(value)


def _foreign(name: str) -> Foreign | None:
    if name in FOREIGN:
        return FOREIGN[name]
    dataset = next((one for one in _OTHER_DATASETS if name.startswith(f"--{one}-")), None)
    return None if dataset is None else _left_out(f"it belongs to the dataset {dataset}, which is not used", 1)


def _unknown(ctx: click.Context, name: str, own: set[str]) -> None:
    meant = nearest(name, sorted(own), same=_OTHER_PROGRAMS)
    ctx.fail(f"there is no flag {name}" + (f" (did you mean {meant}?)" if meant else " (see servetune bench --help)"))
