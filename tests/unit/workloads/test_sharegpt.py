"""Workload sharegpt: which conversations are taken, and what is said about files that hold none."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from huggingface_hub import constants

from servetune import workloads
from servetune.errors import HostProblem, UserError
from servetune.records import OptionValue, Request, WorkloadSpec
from tests.unit.workloads.stub import WordIds

Turns = list[tuple[int, int]]


def write(folder: Path, lengths: Turns) -> Path:
    """A file of conversations with these numbers of words in prompt and answer; a third turn is ignored."""
    entries = [
        {
            "id": f"c{number}",
            "conversations": [
                {"from": "human", "value": f"{number} " + "9 " * (prompt - 1)},
                {"from": "gpt", "value": "8 " * answer},
                {"from": "human", "value": "ignored"},
            ],
        }
        for number, (prompt, answer) in enumerate(lengths)
    ]
    file = folder / "data.json"
    file.write_text(json.dumps([*entries, {"id": "short", "conversations": [{"value": "alone"}]}, {"id": "none"}]))
    return file


def made(path: Path, *, count: int, seed: int = 0, **params: OptionValue) -> list[Request]:
    """The requests of a spec that reads `path`."""
    spec = WorkloadSpec(name="w", kind="sharegpt", num_prompts=count, params={"path": str(path), **params})
    return workloads.build(spec, seed=seed, tokenizer=WordIds())


def numbers(requests: list[Request]) -> list[int]:
    """Which conversations were taken, by the number that their prompt begins with."""
    return [int(request.prompt.split()[0]) for request in requests]


def test_conversations_are_taken_in_the_shuffled_order(tmp_path: Path) -> None:
    """The order is that of Python's generator with the seed over all conversations of two turns."""
    file = write(tmp_path, [(10, 20)] * 30)
    order = list(range(30))
    random.Random(5).shuffle(order)
    requests = made(file, count=8, seed=5)
    assert numbers(requests) == order[:8]
    assert [request.index for request in requests] == list(range(8))
    assert {(request.prompt_tokens, request.output_tokens) for request in requests} == {(10, 20)}


@pytest.mark.parametrize(
    ("prompt", "answer", "taken"),
    [
        (3, 100, False),
        (4, 4, True),
        (100, 3, False),
        (1024, 1024, True),
        (1025, 10, False),
        (1000, 1049, False),
    ],
)
def test_the_length_rules(prompt: int, answer: int, taken: bool, tmp_path: Path) -> None:
    """The bounds are 4 and 1024 for the prompt, 4 for the answer, 2048 for both, all inclusive."""
    file = write(tmp_path, [(prompt, answer), (50, 50)])
    assert (0 in numbers(made(file, count=2, algorithm="vllm-0.33"))) is taken


def test_a_fixed_output_length_replaces_the_answers(tmp_path: Path) -> None:
    """Short answers no longer count against a conversation; both together still must fit."""
    file = write(tmp_path, [(10, 1), (1024, 5)])
    assert {request.output_tokens for request in made(file, count=2, output_len=1024)} == {1024}
    assert set(numbers(made(file, count=2, output_len=1025))) == {0}


@pytest.mark.parametrize("algorithm", ["vllm-0.33", "vllm-0.11"])
def test_missing_requests_are_drawn_again(algorithm: str, tmp_path: Path) -> None:
    """Too few conversations are repeated by the generator with the same seed, in the way of each version."""
    file = write(tmp_path, [(10, 20)] * 4)
    order = list(range(4))
    random.Random(3).shuffle(order)
    draw = random.Random(3)
    again = draw.choices(order, k=6) if algorithm == "vllm-0.11" else [draw.choice(order) for _ in range(6)]
    assert numbers(made(file, count=10, seed=3, algorithm=algorithm)) == order + again


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not of ShareGPT's JSON form"),
        ('{"conversations": []}', "is not of ShareGPT's JSON form"),
        ("[]", "no conversation of two turns"),
        ('[{"conversations": [{"value": "one"}]}]', "has 1 entries, but no conversation of two turns"),
        ('[{"conversations": [{"value": 5}, {"value": "b"}]}]', "is not of ShareGPT's JSON form"),
        ('[{"conversations": [{"value": "a"}, {"value": "b"}]}]', "none of its 1 conversations passes"),
    ],
)
def test_a_file_without_usable_conversations_is_explained(text: str, said: str, tmp_path: Path) -> None:
    """Wrong JSON, another form, no conversations and only unfit ones have different messages."""
    file = tmp_path / "data.json"
    file.write_text(text)
    with pytest.raises(UserError, match=said):
        made(file, count=1)


def test_a_missing_file_is_found_before_anything_runs(tmp_path: Path) -> None:
    """check() names the workload and the path."""
    spec = WorkloadSpec(name="w", kind="sharegpt", num_prompts=1, params={"path": str(tmp_path / "none.json")})
    (mistake,) = workloads.check(spec)
    assert (mistake.where, "there is no file" in mistake.problem) == ("workload.w.path", True)


def test_it_needs_a_tokenizer(tmp_path: Path) -> None:
    """Lengths cannot be judged without one."""
    spec = WorkloadSpec(name="w", kind="sharegpt", num_prompts=1, params={"path": str(write(tmp_path, [(9, 9)]))})
    with pytest.raises(UserError, match="needs a tokenizer"):
        workloads.build(spec, seed=1, tokenizer=None)


def test_without_a_path_and_a_network_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The data set is on the hub; offline, a file or kind chat will do."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    spec = WorkloadSpec(name="w", kind="sharegpt", num_prompts=1)
    with pytest.raises(HostProblem, match="kind chat"):
        workloads.build(spec, seed=1, tokenizer=WordIds())
