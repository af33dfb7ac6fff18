"""A short form of `make fuzz`."""

from __future__ import annotations

from random import Random

from tests.fuzz.answers import answer
from tests.fuzz.driver import Fuzzing


def test_a_few_thousand_inputs() -> None:
    """None of them fails, is slow or leaves memory behind, and they are of all kinds."""
    told: list[str] = []
    fuzzing = Fuzzing(seed=0)
    assert fuzzing.run(range(4000), told.append) == 0, told
    assert told[-1].startswith("4,000 inputs of seed 0")
    assert {
        "complete",
        "cut off",
        "not HTTP",
        "events",
        "no event",
        "fault None",
        "fault invalid-utf8",
    } <= fuzzing.seen.keys()


def test_an_input_is_made_from_its_number() -> None:
    """The same again on any machine, so a failure can be run again."""
    first, again, other = (answer(Random(seed)) for seed in (7, 7, 8))
    assert first == again != other


def test_a_failure_names_its_input() -> None:
    """And the run goes on to the next ones."""

    class Broken(Fuzzing):
        def _try(self, number: int) -> None:
            if number == 5:
                raise ValueError("wrong")
            super()._try(number)

    told: list[str] = []
    assert Broken(seed=3).run(range(10), told.append) == 1
    assert told[0] == "input 5 of seed 3: ValueError: wrong"
    assert "10 inputs" in told[-1]
