"""Continuous batching: who is computed in a step, and what the step costs."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.engines.mock_scheduler import Costs, Limits, Scheduler, Sequence

COSTS = Costs(step_s=1.0, eager_s=0.1, sequence_s=0.01, context_token_s=0.001, prompt_token_s=0.0001, graphs=True)
LIMITS = Limits(
    max_sequences=4, token_budget=10, kv_blocks=100, block_tokens=1, chunked_prefill=True, shortest_first=False
)


def scheduler(**limits: int | bool) -> Scheduler:
    """A scheduler with some limits of its own."""
    return Scheduler(msgspec.structs.replace(LIMITS, **limits), COSTS)


def takes(machine: Scheduler) -> dict[object, int]:
    """Plan and finish one step; return the tokens that each sequence got."""
    step = machine.plan()
    machine.finish(step)
    return {sequence.key: tokens for sequence, tokens in step.takes.items()}


def test_a_prompt_is_split_over_steps_and_mixed_with_generation() -> None:
    """The budget bounds each step; generation comes first; the rest goes to the next prompt."""
    machine = scheduler()
    machine.add(Sequence("a", 8, 3))
    machine.add(Sequence("b", 12, 1))

    assert takes(machine) == {"a": 8, "b": 2}
    assert takes(machine) == {"a": 1, "b": 9}
    assert takes(machine) == {"a": 1, "b": 1}
    assert machine.is_idle
    assert machine.free_blocks == 100


def test_a_step_costs_what_the_law_says() -> None:
    """Once a step, once for prompts, per generating sequence, per token of its context, per prompt token."""
    machine = scheduler()
    machine.add(Sequence("a", 5, 3))
    first = machine.plan()
    machine.finish(first)
    second = machine.plan()

    assert first.duration_s == pytest.approx(1.0 + 0.1 + 5 * 0.0001)
    assert second.duration_s == pytest.approx(1.0 + 0.01 + 5 * 0.001)


def test_without_graphs_every_step_pays_for_it() -> None:
    """A step that only generates costs the launch overhead too."""
    machine = Scheduler(LIMITS, msgspec.structs.replace(COSTS, graphs=False))
    machine.add(Sequence("a", 5, 3))
    machine.finish(machine.plan())

    assert machine.plan().duration_s == pytest.approx(1.0 + 0.1 + 0.01 + 5 * 0.001)


def test_the_sequence_cap_holds() -> None:
    """A fifth sequence waits until one of four is done."""
    machine = scheduler(token_budget=100)
    for number in range(5):
        machine.add(Sequence(number, 2, 2))

    assert set(takes(machine)) == {0, 1, 2, 3}
    assert set(takes(machine)) == {0, 1, 2, 3}
    assert set(takes(machine)) == {4}


def test_without_chunking_prompts_stop_generation() -> None:
    """Whole prompts only, first or fitting; generation waits; a prompt longer than the budget runs alone."""
    machine = scheduler(chunked_prefill=False)
    machine.add(Sequence("a", 6, 2))
    machine.add(Sequence("b", 6, 2))
    machine.add(Sequence("long", 15, 1))

    assert takes(machine) == {"a": 6}
    assert takes(machine) == {"b": 6}
    assert takes(machine) == {"long": 15}
    assert takes(machine) == {"a": 1, "b": 1}
    assert machine.is_idle


def test_the_shortest_prompt_may_go_first() -> None:
    """Only with that policy."""
    for shortest, first in ((False, "long"), (True, "short")):
        machine = scheduler(shortest_first=shortest, max_sequences=1)
        machine.add(Sequence("long", 9, 1))
        machine.add(Sequence("short", 3, 1))
        assert set(takes(machine)) == {first}


def test_a_full_kv_space_preempts_the_newest() -> None:
    """It gives its blocks back, waits, and computes prompt and output again."""
    machine = scheduler(kv_blocks=8, token_budget=20)
    machine.add(Sequence("old", 3, 5))
    machine.add(Sequence("new", 3, 3))
    seen = [takes(machine) for _ in range(3)]

    assert seen == [{"old": 3, "new": 3}, {"old": 1, "new": 1}, {"old": 1}]
    assert machine.preemptions == 1
    assert [sequence.key for sequence in machine.waiting] == ["new"]
    assert takes(machine) == {"old": 1}
    assert takes(machine) == {"old": 1}
    assert takes(machine) == {"new": 5}
    assert machine.is_idle


def test_a_sequence_that_went_away_is_forgotten() -> None:
    """While it runs, while it waits, during a step, and when it is already gone."""
    machine = scheduler(max_sequences=1)
    running, waiting = Sequence("running", 4, 4), Sequence("waiting", 4, 4)
    machine.add(running)
    machine.add(waiting)
    step = machine.plan()
    machine.remove(waiting)
    machine.remove(running)
    machine.remove(running)

    assert machine.finish(step) == []
    assert machine.is_idle
    assert machine.free_blocks == 100


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=12),
    max_sequences=st.integers(1, 8),
    token_budget=st.integers(1, 40),
    block_tokens=st.sampled_from([1, 4]),
    chunked=st.booleans(),
    shortest=st.booleans(),
)
def test_everything_that_fits_is_finished_within_the_limits(
    lengths: list[tuple[int, int]],
    max_sequences: int,
    token_budget: int,
    block_tokens: int,
    chunked: bool,
    shortest: bool,
) -> None:
    """Each sequence gets exactly its tokens, no limit is broken, and all blocks come back."""
    limits = Limits(
        max_sequences=max_sequences,
        token_budget=token_budget,
        kv_blocks=-(-42 // block_tokens),
        block_tokens=block_tokens,
        chunked_prefill=chunked,
        shortest_first=shortest,
    )
    machine = Scheduler(limits, COSTS)
    for number, (prompt, output) in enumerate(lengths):
        machine.add(Sequence(number, prompt, output))
    tokens: Counter[object] = Counter()
    for _ in range(5000):
        if machine.is_idle:
            break
        step = machine.plan()
        assert step.takes
        assert len(machine.running) <= max_sequences
        assert machine.free_blocks >= 0
        assert not chunked or sum(step.takes.values()) <= token_budget
        tokens.update(sequence.key for sequence in machine.finish(step))

    assert machine.is_idle
    assert tokens == Counter({number: output for number, (_, output) in enumerate(lengths)})
    assert machine.free_blocks == limits.kv_blocks
