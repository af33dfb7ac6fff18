"""The mock engine's scheduler: which sequences a step computes, and how long the step takes.

One implementation serves the real-time server and the simulation in virtual time. It knows no clock, no socket and
no option names: `mock_law.py` turns options into Limits and Costs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from servetune.records import Record


class Limits(Record, frozen=True, kw_only=True):
    """What bounds a step."""

    max_sequences: int
    token_budget: int
    kv_blocks: int
    block_tokens: int
    chunked_prefill: bool
    shortest_first: bool

    @property
    def kv_tokens(self) -> int:
        """Tokens of the longest sequence that can ever be held."""
        return self.kv_blocks * self.block_tokens


class Costs(Record, frozen=True, kw_only=True):
    """What a step costs, in seconds. See mock_law.py for the formula."""

    step_s: float
    """Once a step, whatever it computes."""
    eager_s: float
    """Once more in a step that computes any prompt token, or in every step without captured graphs."""
    sequence_s: float
    """For each sequence that generates."""
    context_token_s: float
    """For each token of KV that a generating sequence reads."""
    prompt_token_s: float
    """For each prompt token (also those computed again after a preemption)."""
    graphs: bool


class Sequence:
    """One request inside the scheduler; `key` is the caller's own."""

    __slots__ = ("blocks", "computed", "generated", "key", "output_tokens", "prompt_tokens", "was_preempted")

    def __init__(self, key: Hashable, prompt_tokens: int, output_tokens: int) -> None:
        self.key = key
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.computed = 0
        """Tokens whose KV is held."""
        self.generated = 0
        self.blocks = 0
        self.was_preempted = False

    @property
    def missing(self) -> int:
        """Tokens to compute before the next one can be generated."""
        return self.prompt_tokens + self.generated - self.computed

    @property
    def is_generating(self) -> bool:
        """All is computed but the token generated last."""
        return self.generated > 0 and self.missing == 1


class Step:
    """One planned step: its work, its duration, and the sequences that get a token at its end."""

    __slots__ = ("context_tokens", "duration_s", "generating", "prompt_tokens", "takes")

    def __init__(self) -> None:
        self.takes: dict[Sequence, int] = {}
        self.generating = 0
        self.context_tokens = 0
        self.prompt_tokens = 0
        self.duration_s = 0.0

    def take(self, sequence: Sequence, tokens: int) -> None:
        """Compute `tokens` of `sequence` in this step."""
        self.takes[sequence] = tokens
        if sequence.is_generating:
            self.generating += 1
            self.context_tokens += sequence.computed
        else:
            self.prompt_tokens += tokens


class Scheduler:
    """Continuous batching over Limits: first come, first served; the newest is preempted when the KV space is full."""

    def __init__(self, limits: Limits, costs: Costs) -> None:
        self.limits = limits
        self.costs = costs
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.free_blocks = limits.kv_blocks
        self.preemptions = 0

    @property
    def is_idle(self) -> bool:
        """Nothing to compute."""
        return not self.running and not self.waiting

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Tell whether a sequence of this length can be finished at all."""
        return prompt_tokens + output_tokens <= self.limits.kv_tokens

    def add(self, sequence: Sequence) -> None:
        """Let `sequence` wait for its turn; it must fit (see `fits`)."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget `sequence` (its client went away); nothing happens if it is already done."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def plan(self) -> Step:
        """Choose the work of the next step and its duration; `finish` must follow."""
        step = Step()
        preemptions = self.preemptions
        if self.limits.chunked_prefill:
            self._continue_running(step)
            if self.preemptions == preemptions:
                self._admit(step, self.limits.token_budget - sum(step.takes.values()))
        else:
            self._admit(step, self.limits.token_budget)
            if not step.takes:
                self._continue_running(step)
        step.duration_s = step_seconds(self.costs, step)
        return step

    def finish(self, step: Step) -> list[Sequence]:
        """Book the step's work; return the sequences that got a token, in the order of their admission."""
        emitted = []
        for sequence, tokens in step.takes.items():
            if not sequence.blocks:
                continue  # removed while the step ran
            sequence.computed += tokens
            if sequence.missing:
                continue
            sequence.generated += 1
            emitted.append(sequence)
            if sequence.generated >= sequence.output_tokens:
                self.running.remove(sequence)
                self._release(sequence)
        return emitted

    def _continue_running(self, step: Step) -> None:
        budget = self.limits.token_budget
        for sequence in tuple(self.running):
            tokens = min(sequence.missing, budget)
            if not tokens or sequence.was_preempted or not self._make_room(sequence, tokens):
                continue
            step.take(sequence, tokens)
            budget -= tokens

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        """Hold the blocks for `tokens` more; preempt from the newest on; False if `sequence` itself had to go."""
        wanted = self._blocks_for(sequence.computed + tokens) - sequence.blocks
        while wanted > self.free_blocks:
            newest = self.running[-1]
            self._preempt(newest)
            if newest is sequence:
                return False
        self.free_blocks -= wanted
        sequence.blocks += wanted
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        sequence.computed = 0
        sequence.was_preempted = True
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _admit(self, step: Step, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_sequences:
            sequence = self._next_waiting()
            tokens = self._first_take(sequence, budget, is_first=not step.takes)
            wanted = self._blocks_for(tokens)
            if not tokens or wanted > self.free_blocks:
                return
            self.waiting.remove(sequence)
            sequence.was_preempted = False
            sequence.blocks = wanted
            self.free_blocks -= wanted
            self.running.append(sequence)
            step.take(sequence, tokens)
            budget -= tokens

    def _next_waiting(self) -> Sequence:
        if self.limits.shortest_first:
            return min(self.waiting, key=lambda sequence: sequence.missing)
        return self.waiting[0]

    def _first_take(self, sequence: Sequence, budget: int, *, is_first: bool) -> int:
        """Tokens of a newly admitted sequence; without chunking all of them or, unless it is the first, none."""
        if self.limits.chunked_prefill:
            return min(sequence.missing, budget)
        return sequence.missing if is_first or sequence.missing <= budget else 0

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens)

    def _release(self, sequence: Sequence) -> None:
        self.free_blocks += sequence.blocks
        sequence.blocks = 0


def step_seconds(costs: Costs, step: Step) -> float:
    """Return how long `step` takes by the law of mock_law.py."""
    eager = costs.eager_s if step.prompt_tokens or not costs.graphs else 0.0
    return (
        costs.step_s
        + eager
        + costs.sequence_s * step.generating
        + costs.context_token_s * step.context_tokens
        + costs.prompt_token_s * step.prompt_tokens
    )
