"""Workload `random`: prompts of exact length from consecutive vocabulary ids, as `vllm bench serve` makes them.

Written from a description of the algorithm; both its forms are here, since they give different prompts:

* `vllm-0.33` leaves special ids out and brings every prompt to its exact length (at most 10 corrections);
* `vllm-0.11` uses every id of the base vocabulary and only cuts, so that a few prompts stay short.

Prompts are decoded and encoded many at a time, which is several times faster than one by one. Only a prompt that is too
short draws from the generator, and those are brought to their length one after the other, in the order of the requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from servetune.errors import UserError
from servetune.records import OptionSpec, Request, WorkloadSpec
from servetune.tokenizer import Tokenizer
from servetune.workloads.base import ALGORITHM, Parameters, parameter, parameter_mistakes

_MOST_CORRECTIONS = 10
_TOKENS_AT_ONCE = 65536
"""Largest batch that is decoded and encoded in one go, to bound its memory."""


class Random:
    """Prompts of random vocabulary ids; every request has the lengths that are asked for."""

    kind = "random"
    needs_tokenizer = True
    params: Mapping[str, OptionSpec] = {
        "input_len": parameter("input_len", "int", 1024, "tokens of a prompt", range=(1, 10_000_000)),
        "output_len": parameter("output_len", "int", 128, "tokens to generate", range=(1, 10_000_000)),
        "range_ratio": parameter(
            "range_ratio", "float", 0.0, "lengths vary evenly by this share to both sides", range=(0, 0.999999)
        ),
        "prefix_len": parameter(
            "prefix_len", "int", 0, "tokens that all prompts share at their beginning", range=(0, 10_000_000)
        ),
        "algorithm": ALGORITHM,
    }

    def check(self, spec: WorkloadSpec) -> list[UserError]:
        """Return every mistake in the parameters of `spec`."""
        return parameter_mistakes(spec, self.params)

    def requests(self, spec: WorkloadSpec, *, seed: int, tokenizer: Tokenizer | None) -> list[Request]:
        """Return the requests of one run; raises UserError without a tokenizer or where no token would be left."""
        if tokenizer is None:
            fix = "set tokenizer to a model folder, a tokenizer.json or a GGUF file"
            raise UserError(f"workload.{spec.name}", 'kind "random" needs a tokenizer', fix)
        return _Generator(spec, Parameters(spec, self.params), seed, tokenizer).requests()

    def typical_lengths(self, spec: WorkloadSpec) -> tuple[int, int]:
        """Return the lengths that are asked for, with the prefix."""
        parameters = Parameters(spec, self.params)
        return parameters.whole("prefix_len") + parameters.whole("input_len"), parameters.whole("output_len")


class _Generator:
    """One run's prompts. The order of the draws is part of the algorithm: lengths, offsets, prefix, corrections."""

    def __init__(self, spec: WorkloadSpec, parameters: Parameters, seed: int, tokenizer: Tokenizer) -> None:
        self.spec = spec
        self.parameters = parameters
        self.tokenizer = tokenizer
        self.exact = parameters.text("algorithm") == "vllm-0.33"
        self.draw = np.random.default_rng(seed)
        everything = np.arange(tokenizer.base_vocab_size)
        special = [number for number in tokenizer.special_ids if number < tokenizer.base_vocab_size]
        self.allowed = np.delete(everything, special) if self.exact else everything

    def requests(self) -> list[Request]:
        count = self.spec.num_prompts
        input_low, input_high = self._input_range()
        output_low, output_high = self._range(self.parameters.whole("output_len"))
        input_lens = self.draw.integers(input_low, input_high + 1, size=count)
        output_lens = self.draw.integers(max(1, output_low), max(1, output_high) + 1, size=count)
        offsets = self.draw.integers(0, self.tokenizer.base_vocab_size, size=count)
        prefix = self._prefix()
        wanted = [
            _Draft(
                ids=prefix + self._window(int(offsets[index]) + index, int(input_lens[index])),
                length=len(prefix) + int(input_lens[index]),
            )
            for index in range(count)
        ]
        at_once = max(1, _TOKENS_AT_ONCE // (len(prefix) + input_high))
        for begin in range(0, count, at_once):
            self._settle(wanted[begin : begin + at_once])
        return [
            Request(index=index, prompt=draft.prompt, prompt_tokens=len(draft.ids), output_tokens=int(output))
            for index, (draft, output) in enumerate(zip(wanted, output_lens, strict=True))
        ]

    def _input_range(self) -> tuple[int, int]:
        asked, special = self.parameters.whole("input_len"), self.tokenizer.special_added
        low, high = self._range(max(0, asked - special))
        if self.parameters.whole("prefix_len") + low < 1:
            problem = f"{asked} leaves no token of a prompt: the tokenizer adds {special}, and the shortest is {low}"
            raise UserError(f"workload.{self.spec.name}.input_len", problem, "raise input_len or lower range_ratio")
        return low, high

    def _range(self, length: int) -> tuple[int, int]:
        ratio = self.parameters.number("range_ratio")
        return math.floor(length * (1 - ratio)), math.ceil(length * (1 + ratio))

    def _prefix(self) -> list[int]:
        length = self.parameters.whole("prefix_len")
        if length == 0:
            return []
        ids: list[int] = self.allowed[self.draw.integers(0, len(self.allowed), size=length)].tolist()
        if not self.exact:
            return ids
        draft = _Draft(ids=ids, length=length)
        self._correct([draft])
        return draft.ids

    def _window(self, start: int, length: int) -> list[int]:
        ids: list[int] = self.allowed[(start + np.arange(length)) % len(self.allowed)].tolist()
        return ids

    def _settle(self, drafts: list[_Draft]) -> None:
        """Give each draft its prompt, and the tokens that this has after decoding and encoding again."""
        if self.exact:
            self._correct(drafts)
            return
        self._round_trip(drafts)
        for draft in drafts:
            draft.ids = draft.ids[: draft.length]
        for draft, prompt in zip(drafts, self.tokenizer.decode_many([draft.ids for draft in drafts]), strict=True):
            draft.prompt = prompt

    def _correct(self, drafts: list[_Draft]) -> None:
        """Decode and encode until the lengths are right: cut what is too long, add random ids to what is too short."""
        short = []
        turning = drafts
        while turning:
            self._round_trip(turning)
            turning = [draft for draft in turning if not draft.is_settled]
            short += [draft for draft in turning if len(draft.ids) < draft.length]
            turning = [draft for draft in turning if len(draft.ids) > draft.length]
            for draft in turning:
                draft.ids = draft.ids[: draft.length]
        place = {id(draft): number for number, draft in enumerate(drafts)}
        short.sort(key=lambda draft: place[id(draft)])
        for draft in short:
            self._lengthen(draft)

    def _lengthen(self, draft: _Draft) -> None:
        """Correct one draft that is too short."""
        while not draft.is_settled:
            missing = draft.length - len(draft.ids)
            if missing > 0:
                draft.ids += self.draw.integers(0, self.tokenizer.base_vocab_size, size=missing).tolist()
            draft.ids = draft.ids[: draft.length]
            self._round_trip([draft])

    def _round_trip(self, drafts: list[_Draft]) -> None:
        prompts = self.tokenizer.decode_many([draft.ids for draft in drafts])
        for draft, prompt, ids in zip(drafts, prompts, self.tokenizer.encode_many(prompts), strict=True):
            draft.prompt, draft.ids, draft.trips = prompt, ids, draft.trips + 1


class _Draft:
    """One prompt on its way to its length."""

    def __init__(self, ids: list[int], length: int) -> None:
        self.ids = ids
        self.length = length
        self.prompt = ""
        self.trips = 0
        """How often it was decoded and encoded."""

    @property
    def is_settled(self) -> bool:
        """Whether its length is right, or was corrected often enough."""
        return len(self.ids) == self.length or self.trips > _MOST_CORRECTIONS
