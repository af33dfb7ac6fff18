"""What every workload must offer, and the arithmetic they share: checked parameters, derived seeds, digests.

Same spec, seed and tokenizer: same bytes, in every process. Knows no kind of workload and no engine.
"""

from __future__ import annotations

import difflib
import hashlib
import random
from collections.abc import Iterable, Mapping
from typing import Protocol

from servetune.errors import UserError
from servetune.records import OptionSpec, OptionValue, Request, WorkloadSpec
from servetune.tokenizer import Tokenizer


class Workload(Protocol):
    """One kind of workload. All methods are functions of their arguments; `sharegpt` reads its file."""

    kind: str
    params: Mapping[str, OptionSpec]
    """What may be set, by name."""
    needs_tokenizer: bool

    def check(self, spec: WorkloadSpec) -> list[UserError]:
        """Return every mistake in the parameters of `spec` that can be seen before anything runs."""
        ...

    def requests(self, spec: WorkloadSpec, *, seed: int, tokenizer: Tokenizer | None) -> list[Request]:
        """Return the requests of one run; raises UserError if they cannot be made."""
        ...

    def typical_lengths(self, spec: WorkloadSpec) -> tuple[int, int]:
        """Return usual tokens of a prompt and of an output; warm-up requests have about these."""
        ...


def run_seed(study_seed: int, workload_name: str, repeat: int) -> int:
    """Return the seed of one run's prompts: 53 bits of SHA-256 over study, workload and repeat, never the config."""
    return _derived(f"run\0{study_seed}\0{workload_name}\0{repeat}")


def warmup_seed(seed: int) -> int:
    """Return the seed of the warm-up that precedes the run of `seed`."""
    return _derived(f"warmup\0{seed}")


def _derived(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 11


def generator(seed: int) -> random.Random:
    """Return Python's generator with `seed`: the same draws in every process and version."""
    return random.Random(seed)  # noqa: S311  # prompts are no secrets


def digest(requests: Iterable[Request]) -> str:
    """Return the first 16 hex digits of SHA-256 over the prompts' UTF-8 text, one after another."""
    whole = hashlib.sha256()
    for request in requests:
        whole.update(request.prompt.encode("utf-8", errors="surrogatepass"))
    return whole.hexdigest()[:16]


def parameter_mistakes(spec: WorkloadSpec, params: Mapping[str, OptionSpec]) -> list[UserError]:
    """Return a mistake for each parameter of `spec` that is unknown or has a value that its OptionSpec refuses."""
    mistakes = []
    for name, value in spec.params.items():
        where = f"workload.{spec.name}.{name}"
        if name not in params:
            near = difflib.get_close_matches(name, params, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"parameters: {', '.join(params) or 'none'}"
            mistakes.append(UserError(where, f'workload kind "{spec.kind}" has no parameter "{name}"', hint))
        elif problem := _value_problem(params[name], value):
            mistakes.append(UserError(where, problem))
    if spec.num_prompts < 1:
        mistakes.append(UserError(f"workload.{spec.name}.num_prompts", f"{spec.num_prompts} is less than 1"))
    return mistakes


_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "true or false"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "str": ((str,), "a text"),
    "choice": ((bool, int, float, str), "a value"),
}


def _value_problem(option: OptionSpec, value: OptionValue) -> str | None:
    accepted, words = _TYPES[option.type]
    if not isinstance(value, accepted) or (isinstance(value, bool) and option.type in ("int", "float")):
        return f"{value!r} is not {words}"
    if option.choices and value not in option.choices:
        return f"{value!r} is not one of {', '.join(map(str, option.choices))}"
    if option.range and not isinstance(value, str) and not option.range[0] <= value <= option.range[1]:
        return f"{value} is outside {option.range[0]:g} to {option.range[1]:g}"
    return None


class Parameters:
    """The parameters of one spec with defaults filled in, read by type."""

    def __init__(self, spec: WorkloadSpec, params: Mapping[str, OptionSpec]) -> None:
        self._values = {name: spec.params.get(name, option.default) for name, option in params.items()}

    def whole(self, name: str) -> int:
        """Return an int parameter."""
        return int(self._values[name] or 0)

    def number(self, name: str) -> float:
        """Return a float parameter."""
        return float(self._values[name] or 0)

    def text(self, name: str) -> str:
        """Return a text parameter; "" if it is not set."""
        return str(self._values[name] or "")


def parameter(name: str, kind: str, default: OptionValue | None, doc: str, **more: object) -> OptionSpec:
    """Return the OptionSpec of a workload parameter (`applies` is load)."""
    fields = {"name": name, "type": kind, "default": default, "doc": doc, "family": "workload", "applies": "load"}
    return OptionSpec(**{**fields, **more})  # type: ignore[arg-type]


ALGORITHM = parameter(
    "algorithm",
    "choice",
    "vllm-0.33",
    "which version of vLLM's rules makes the prompts",
    choices=("vllm-0.33", "vllm-0.11"),
)
