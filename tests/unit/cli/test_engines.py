"""`servetune engines`: which engines there are, and what each option of one does."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from servetune import engines as known
from servetune.cli.engines import domain, engine_state, say_states
from servetune.cli.main import servetune
from servetune.records import EngineSpec, OptionSpec


def test_the_list_names_every_engine_and_how_it_is_found() -> None:
    """Found engines have version and way, missing ones reason and remedy."""
    result = CliRunner().invoke(servetune, ["engines"])
    assert result.exit_code == 0
    assert result.stdout == ""
    for name in known.ENGINES:
        assert name in result.stderr


def test_the_options_of_one_engine_are_told_in_full() -> None:
    """Flag, values, default, family and effect of each option stand in one row."""
    result = CliRunner().invoke(servetune, ["engines", "mock"])
    row = next(line for line in result.stderr.splitlines() if line.startswith("max_num_seqs "))
    for part in ("--max-num-seqs", "int 1..1024", "32", "batching"):
        assert part in row


def test_json_holds_the_whole_catalogue() -> None:
    """A program gets the catalogue's own fields."""
    found = json.loads(CliRunner().invoke(servetune, ["engines", "mock", "--json"]).stdout)
    assert found["state"]["found"]["engine"] == "mock"
    assert set(found["options"]) == set(known.get("mock").catalogue().options)
    states = json.loads(CliRunner().invoke(servetune, ["engines", "--json"]).stdout)
    assert {state["engine"] for state in states} == set(known.ENGINES)


def test_a_missing_engine_has_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    """What is not found says why and what to do."""
    state = engine_state(EngineSpec(name="llamacpp", command="/nowhere/llama-server"))
    say_states([state])
    assert state.missing is not None
    assert f"{state.missing.reason}: {state.missing.remedy}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"type": "bool"}, "true | false"),
        ({"type": "choice", "choices": (1, "x", True)}, "1 | x | true"),
        ({"type": "float", "range": (0.5, 2)}, "float 0.5..2"),
        ({"type": "str"}, "str"),
    ],
)
def test_domains_are_said_in_short(more: dict[str, object], words: str) -> None:
    """Choices, ranges and types have one short form each."""
    assert domain(OptionSpec(**{"name": "o", "family": "f", "doc": "d", **more})) == words  # type: ignore[arg-type]
