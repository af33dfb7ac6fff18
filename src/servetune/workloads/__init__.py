"""The workloads that servetune can send: an explicit table, extended by the entry points `servetune.workloads`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from servetune.errors import HostProblem, UserError
from servetune.records import Request, WorkloadSpec
from servetune.tokenizer import Tokenizer
from servetune.workloads.base import Workload, digest, run_seed, warmup_seed
from servetune.workloads.chat import Chat, practice
from servetune.workloads.random import Random
from servetune.workloads.sharegpt import ShareGpt

if TYPE_CHECKING:
    from importlib import metadata  # heavy, and needed for kinds of other packages only

__all__ = ["KINDS", "Workload", "build", "check", "digest", "run_seed", "warmup_requests"]

BUILT_IN: dict[str, Workload] = {workload.kind: workload for workload in (Chat(), Random(), ShareGpt())}


class _Kinds(Mapping[str, Workload]):
    """Read-only table of workloads; those of other packages are loaded when they are asked for."""

    def __getitem__(self, kind: str) -> Workload:
        return BUILT_IN[kind] if kind in BUILT_IN else _loaded(kind)

    def __iter__(self) -> Iterator[str]:
        return iter({**BUILT_IN, **_entry_points()})

    def __len__(self) -> int:
        return len({**BUILT_IN, **_entry_points()})


@functools.cache
def _entry_points() -> dict[str, metadata.EntryPoint]:
    from importlib import metadata  # noqa: PLC0415

    return {point.name: point for point in metadata.entry_points(group="servetune.workloads")}


@functools.cache
def _loaded(kind: str) -> Workload:
    point = _entry_points()[kind]
    try:
        workload: Workload = point.load()()
    except (ImportError, AttributeError) as error:
        raise HostProblem(f"the workload {kind} at {point.value} cannot be loaded: {error}") from error
    return workload


KINDS: Mapping[str, Workload] = _Kinds()
"""Kind -> workload."""


def check(spec: WorkloadSpec) -> list[UserError]:
    """Return every mistake in `spec` that can be seen before anything runs."""
    if spec.kind not in KINDS:
        hint = f"kinds: {', '.join(sorted(KINDS))}"
        return [UserError(f"workload.{spec.name}.kind", f'there is no workload kind "{spec.kind}"', hint)]
    return KINDS[spec.kind].check(spec)


def build(spec: WorkloadSpec, *, seed: int, tokenizer: Tokenizer | None) -> list[Request]:
    """Return the requests of one run; the spec's own seed wins over `seed`.

    Raises the first UserError of `check`, or what the workload raises (see its `requests`).
    """
    for mistake in check(spec):
        raise mistake
    chosen = seed if spec.seed is None else spec.seed
    return KINDS[spec.kind].requests(spec, seed=chosen, tokenizer=tokenizer)


def warmup_requests(spec: WorkloadSpec, count: int, *, seed: int, tokenizer: Tokenizer | None) -> list[Request]:
    """Return `count` synthetic requests of the workload's usual lengths; their prompts are never those of a run."""
    own_seed = warmup_seed(seed if spec.seed is None else spec.seed)
    return practice(KINDS[spec.kind].typical_lengths(spec), count, own_seed, tokenizer)
