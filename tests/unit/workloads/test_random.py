"""Workload random: lengths, offsets and corrections of both algorithms."""

from __future__ import annotations

import numpy as np
import pytest

from servetune import workloads
from servetune.errors import UserError
from servetune.records import OptionValue, Request, WorkloadSpec
from servetune.tokenizer import Tokenizer
from tests.unit.workloads.stub import Merging, WordIds


def made(tokenizer: Tokenizer, *, count: int = 5, seed: int = 42, **params: OptionValue) -> list[Request]:
    """The requests of a spec with these parameters."""
    spec = WorkloadSpec(name="w", kind="random", num_prompts=count, params=params)
    return workloads.build(spec, seed=seed, tokenizer=tokenizer)


def ids(request: Request) -> list[int]:
    """The ids of a prompt that WordIds decoded."""
    return [int(word) for word in request.prompt.split()]


@pytest.mark.parametrize("algorithm", ["vllm-0.33", "vllm-0.11"])
@pytest.mark.parametrize(
    ("size", "offsets"),
    [(151_643, [13534, 117365, 99261, 66552, 65663]), (199_998, [17850, 154789, 130912, 87774, 86602])],
)
def test_offsets_are_those_of_published_runs(algorithm: str, size: int, offsets: list[int]) -> None:
    """Seed 42 gives the offsets known for the vocabularies of Qwen3 and gpt-oss, whatever the lengths."""
    for input_len in (3, 128):
        requests = made(WordIds(size=size), input_len=input_len, output_len=4, algorithm=algorithm)
        expected = [(offset + index) % size for index, offset in enumerate(offsets)]
        assert [ids(request)[0] for request in requests] == expected


def test_a_prompt_is_a_run_of_consecutive_ids(tmp_path: object) -> None:
    """Ids follow one another and wrap at the end of the vocabulary."""
    for request in made(WordIds(size=50), input_len=60, output_len=4):
        numbers = ids(request)
        assert numbers == [(numbers[0] + step) % 50 for step in range(60)]
        assert (request.prompt_tokens, request.output_tokens) == (60, 4)


def test_special_ids_are_left_out_by_the_newer_algorithm_only() -> None:
    """0.33 draws from the vocabulary without special ids, 0.11 from all of it."""
    tokenizer = WordIds(size=20, special=frozenset({3, 4, 99}))
    newer = {number for request in made(tokenizer, input_len=20, algorithm="vllm-0.33") for number in ids(request)}
    older = {number for request in made(tokenizer, input_len=20, algorithm="vllm-0.11") for number in ids(request)}
    assert newer == set(range(20)) - {3, 4}
    assert older == set(range(20))


def test_lengths_become_exact_by_corrections() -> None:
    """Where decoding and encoding changes the length, 0.33 cuts and adds until it is right; 0.11 only cuts."""
    newer = made(Merging(), count=200, input_len=25, algorithm="vllm-0.33")
    older = made(Merging(), count=200, input_len=25, algorithm="vllm-0.11")
    assert {request.prompt_tokens for request in newer} == {25}
    assert {request.prompt_tokens for request in older} == {25}
    assert all(len(Merging().encode(request.prompt)) == 25 for request in newer)


def one_by_one(tokenizer: Tokenizer, seed: int, count: int, length: int) -> list[str]:
    """The prompts of 0.33 in the words of its description: each is settled before the next one is begun."""
    draw = np.random.default_rng(seed)
    size = tokenizer.base_vocab_size
    draw.integers(length, length + 1, size=count)
    draw.integers(128, 129, size=count)
    offsets = draw.integers(0, size, size=count)
    prompts = []
    for index in range(count):
        numbers = [(int(offsets[index]) + index + step) % size for step in range(length)]
        for left in range(10, -1, -1):
            prompt = tokenizer.decode(numbers)
            numbers = tokenizer.encode(prompt)
            if len(numbers) == length or left == 0:
                break
            if len(numbers) < length:
                numbers += draw.integers(0, size, size=length - len(numbers)).tolist()
            numbers = numbers[:length]
        prompts.append(prompt)
    return prompts


class Uneven(Merging):
    """Some prompts grow, some shrink: every multiple of ten becomes two ids, every multiple of seven is lost."""

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """Lengths change at each round trip."""
        return [number for number in super().encode(text) if number % 7]


@pytest.mark.parametrize("tokenizer", [Merging(), Uneven(), Uneven(size=37)])
def test_many_at_a_time_are_as_one_by_one(tokenizer: Tokenizer) -> None:
    """The draws of one prompt's correction come before those of the next, however the prompts are batched."""
    for count, length in ((40, 12), (50, 3000)):
        found = made(tokenizer, count=count, seed=5, input_len=length, output_len=128)
        assert [request.prompt for request in found] == one_by_one(tokenizer, 5, count, length)


class Shrinking(WordIds):
    """Encoding loses every second id, so that no prompt ever gets long enough."""

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """Half the ids."""
        return super().encode(text)[::2]


def test_what_cannot_be_corrected_is_counted_as_it_is() -> None:
    """After ten corrections the true length is reported; 0.11 leaves the prompt short at once."""
    (newer,) = made(Shrinking(), count=1, input_len=16, algorithm="vllm-0.33")
    (older,) = made(Shrinking(), count=1, input_len=16, algorithm="vllm-0.11")
    assert newer.prompt_tokens == 8
    assert older.prompt_tokens == 8


def test_range_ratio_varies_both_lengths_evenly() -> None:
    """All lengths of the interval occur, none outside, and the ends are floor and ceiling."""
    requests = made(WordIds(), count=400, input_len=10, output_len=5, range_ratio=0.25)
    assert {request.prompt_tokens for request in requests} == set(range(7, 14))
    assert {request.output_tokens for request in requests} == set(range(3, 8))


def test_outputs_are_at_least_one_token() -> None:
    """A wide range never asks for no token at all."""
    requests = made(WordIds(), count=200, input_len=40, output_len=1, range_ratio=0.9)
    assert {request.output_tokens for request in requests} == {1, 2}


def test_all_prompts_share_the_prefix() -> None:
    """The prefix comes on top of input_len and is drawn after the offsets, so that these stay the same."""
    for algorithm in ("vllm-0.33", "vllm-0.11"):
        plain = made(WordIds(), input_len=6, algorithm=algorithm)
        shared = made(WordIds(), input_len=6, prefix_len=9, algorithm=algorithm)
        assert len({tuple(ids(request)[:9]) for request in shared}) == 1
        assert [ids(request)[9:] for request in shared] == [ids(request) for request in plain]
        assert {request.prompt_tokens for request in shared} == {15}


def test_special_tokens_of_a_sequence_are_taken_off() -> None:
    """A tokenizer that adds a begin token leaves one token less for the prompt."""
    assert {request.prompt_tokens for request in made(WordIds(added=1), input_len=10)} == {9}


def test_a_prompt_without_a_token_is_refused() -> None:
    """An input length that special tokens use up is the user's mistake; a prefix makes up for it."""
    with pytest.raises(UserError, match="leaves no token"):
        made(WordIds(added=1), input_len=1)
    assert made(WordIds(added=1), count=1, input_len=1, prefix_len=2)[0].prompt_tokens == 2


def test_it_needs_a_tokenizer() -> None:
    """Without one, the message says what to give."""
    with pytest.raises(UserError, match="needs a tokenizer"):
        workloads.build(WorkloadSpec(name="w", kind="random", num_prompts=1), seed=1, tokenizer=None)
