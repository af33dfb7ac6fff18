"""How flags are written, and what is said of those that are unknown or mean nothing here."""

from __future__ import annotations

from typing import Any

import click
import pytest

from servetune.cli import bench_flags
from servetune.cli.bench import bench
from servetune.cli.bench_flags import Flags
from servetune.cli.bench_paste import FOREIGN, NOTES
from servetune.metrics import GOODPUT_KEYS, LATENCIES, PROFILES
from servetune.workloads import BUILT_IN


def read(*arguments: str) -> tuple[Flags, list[str]]:
    """The flags of a command line, and the notes on them."""
    context = bench.make_context("bench", list(arguments))
    return Flags(**context.params), context.meta[NOTES]


def refusal(*arguments: str) -> str:
    """What is said about a command line that is refused."""
    with pytest.raises(click.UsageError) as caught:
        read(*arguments)
    return caught.value.format_message()


def test_every_flag_has_a_field_with_the_same_default() -> None:
    """A command line without a flag is Flags()."""
    assert read() == (Flags(), [])


def test_names_are_those_of_the_modules_that_are_imported_later() -> None:
    """The flags know them without importing numpy."""
    assert tuple(PROFILES) == bench_flags.DEFINITIONS
    assert tuple(BUILT_IN) == bench_flags.DATASETS
    assert tuple(LATENCIES) == bench_flags.LATENCIES
    assert bench_flags.GOODPUT_KEYS == GOODPUT_KEYS


@pytest.mark.parametrize(
    "arguments",
    [
        ("--goodput", "ttft:200", "tpot:50.5", "--seed", "3"),
        ("--seed=3", "--goodput", "ttft:200", "tpot:50.5"),
        ("--goodput=ttft:200", "--goodput", "tpot:50.5", "--seed", "3"),
    ],
)
def test_several_values_behind_one_flag(arguments: tuple[str, ...]) -> None:
    """As argparse's nargs takes them; also repeated."""
    flags, _ = read(*arguments)
    assert (flags.goodput, flags.seed) == ({"ttft": 200.0, "tpot": 50.5}, 3)


def test_pairs() -> None:
    """Headers and metadata; a value may hold a sign of equality or be empty."""
    flags, _ = read("--header", "A=b=c", "X = d", "--metadata", "tp=1", "note=", "--header")
    assert flags.header == {"A": "b=c", "X": "d"}
    assert flags.metadata == {"tp": "1", "note": ""}


def test_underscores_are_dashes() -> None:
    """In names, not in values."""
    flags, _ = read("--num_prompts", "7", "--served_model_name=my_model", "--ignore_eos")
    assert (flags.num_prompts, flags.served_model_name, flags.ignore_eos) == (7, "my_model", True)


def test_json_and_the_paths_into_it() -> None:
    """Later ones are merged into earlier ones."""
    flags, _ = read(
        "--extra-body", '{"a": {"b": 1}, "stop": ["x"]}', "--extra-body.a.c", "2", "--extra_body.word=text"
    )  # fmt: skip
    assert flags.extra_body == {"a": {"b": 1, "c": 2}, "stop": ["x"], "word": "text"}


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--num-promts", "--num-prompts"),
        ("--max_concurency", "--max-concurrency"),
        ("--concurrency", "--max-concurrency"),
        ("--rate=3", "--request-rate"),
        ("--isl", "--input-len"),
        ("--url", "--base-url"),
        ("--tokeniser", "--tokenizer"),
    ],
)
def test_unknown_flags(flag: str, meant: str) -> None:
    """One sentence, with the flag that was meant: also in the words of other programs."""
    assert refusal(flag, "1") == f"there is no flag {flag.partition('=')[0].replace('_', '-')} (did you mean {meant}?)"
    assert "servetune bench --help" in refusal("--qqqq")


def test_flags_of_vllm_that_change_nothing() -> None:
    """They are left out with their values, and that is said."""
    flags, notes = read(
        "--trust-remote-code", "--tokenizer-mode", "slow", "--plot-timeline", "--hf-subset", "en", "--seed", "5",
        "--random-mm-base-items-per-request=3", "--num-prompts", "2",
    )  # fmt: skip
    assert (flags.seed, flags.num_prompts) == (5, 2)
    assert [note.split()[0] for note in notes] == [
        "--trust-remote-code", "--tokenizer-mode", "--plot-timeline", "--hf-subset",
        "--random-mm-base-items-per-request",
    ]  # fmt: skip


def test_flags_of_vllm_that_would_change_the_load() -> None:
    """They are refused with the reason."""
    assert "LoRA" in refusal("--lora-modules", "a", "b")
    assert "profiler" in refusal("--profile")
    assert {name for name in FOREIGN if name in {option for param in bench.params for option in param.opts}} == set()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--goodput",), "needs at least one KEY:VALUE"),
        (("--goodput", "itl:5"), "ttft, tpot, e2el"),
        (("--goodput", "ttft:fast"), "KEY:MILLISECONDS"),
        (("--goodput", "ttft:-1"), "KEY:MILLISECONDS"),
        (("--metadata", "oops"), "write KEY=VALUE"),
        (("--percentile-metrics", "ttft,speed"), "'speed' is not measured"),
        (("--metric-percentiles", "99,abc"), "numbers from 0 to 100"),
        (("--metric-percentiles", "101"), "numbers from 0 to 100"),
        (("--extra-body", "{"), "it is no JSON"),
        (("--extra-body", "[1]"), "no JSON object"),
        (("--extra-body.a",), "needs one value"),
        (("--extra-body.a+", "1"), "write lists as JSON"),
        (("--backend", "openai-embeddings"), "generates no text"),
        (("--backend", "tgi"), "not spoken here"),
        (("--backend", "opneai"), "not known"),
        (("--dataset-name", "sonnet"), "there are: chat, random, sharegpt"),
    ],
)
def test_values_that_are_refused(arguments: tuple[str, ...], words: str) -> None:
    """One clear sentence each."""
    assert words in refusal(*arguments)


def test_a_header_is_not_repeated_in_a_message() -> None:
    """It may hold a key."""
    message = refusal("--header", "Authorization: Bearer secret")
    assert ("KEY=VALUE" in message, "secret" in message) == (True, False)


@pytest.mark.parametrize(
    ("given", "expected"), [("ttft, e2el,ttft", ("ttft", "e2el")), ("e2el_including_client_queue", ("schedule_e2el",))]
)
def test_latencies(given: str, expected: tuple[str, ...]) -> None:
    """Each once; vllm's name for the latency from the schedule is known."""
    assert read("--percentile-metrics", given)[0].percentile_metrics == expected


def test_percentiles() -> None:
    """Whole and broken numbers."""
    assert read("--metric-percentiles", "25, 99.9,25")[0].metric_percentiles == (25.0, 99.9)


def test_the_help_has_every_flag() -> None:
    """Under its heading."""
    context = click.Context(bench, info_name="bench")
    text = bench.get_help(context)
    shown: list[Any] = [option for param in bench.params for option in param.opts if option not in text]
    assert shown == []
    assert "--help" in text
