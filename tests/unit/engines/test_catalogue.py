"""Option catalogues: what a file may say and what a value may be."""

from __future__ import annotations

import pytest

from servetune.engines.catalogue import axis_values, load_catalogue, parse_catalogue, value_error
from servetune.errors import HostProblem
from servetune.records import OptionSpec, OptionValue

GOOD = b"""
engine = "e"
[options.size]
type = "int"
family = "batching"
doc = "How much at once"
flag = "--size"
default = 8
range = [1, 64]
values = [4, 8]
[options.fast]
type = "bool"
family = "kernels"
doc = "Be fast"
requires = { size = [8, 16] }
"""


def spec(kind: str, **fields: object) -> OptionSpec:
    """An option of type `kind`."""
    return OptionSpec(name="x", type=kind, family="f", doc="d", **fields)  # type: ignore[arg-type]


def test_a_catalogue_is_read() -> None:
    """Names come from the tables."""
    catalogue = parse_catalogue(GOOD, engine="e")

    assert list(catalogue.options) == ["size", "fast"]
    assert catalogue.options["size"].name == "size"
    assert catalogue.options["size"].range == (1.0, 64.0)
    assert catalogue.options["fast"].requires == {"size": (8, 16)}
    assert type(catalogue.options["size"]) is OptionSpec


def test_the_built_in_catalogue_is_loaded_once() -> None:
    """The same object comes back; a missing one is the program's own fault and is said plainly."""
    assert load_catalogue("mock") is load_catalogue("mock")
    with pytest.raises(HostProblem, match=r"options/nothing\.toml"):
        load_catalogue("nothing")


def test_all_mistakes_of_a_catalogue_are_said() -> None:
    """One message for the whole file."""
    data = b"""
engine = "other"
[options.a]
type = "choice"
family = ""
doc = "d"
default = 1
[options.b]
type = "int"
family = "f"
doc = "d"
range = [9, 1]
values = ["x"]
requires = { nothing = [1], c = [2.5] }
[options.c]
type = "int"
family = "f"
doc = "d"
range = [-1, 4]
scale = "log2"
"""
    with pytest.raises(HostProblem) as caught:
        parse_catalogue(data, engine="e")

    text = str(caught.value)
    for part in (
        'engine = "other" should be "e"',
        "a: family is empty",
        "a: type choice without choices",
        "b: the range ends before it begins",
        'b: values: "x" is not a whole number',
        "b: requires the unknown option nothing",
        "b: requires c: 2.5 is not a whole number",
        "c: scale log2 with a negative range",
    ):
        assert part in text


@pytest.mark.parametrize("data", [b"engine = ", b'engine = "e"\n[options.a]\ntype = "int"\nwrong = 1', b"\xff"])
def test_a_file_of_the_wrong_form_is_refused(data: bytes) -> None:
    """Not TOML, an unknown field, not UTF-8."""
    with pytest.raises(HostProblem, match="option catalogue of e"):
        parse_catalogue(data, engine="e")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        (spec("bool"), True),
        (spec("int", range=(1, 4)), 4),
        (spec("float", range=(0, 1)), 1),
        (spec("float"), 0.5),
        (spec("str"), ""),
        (spec("choice", choices=("a", 2)), 2),
        (spec("int", choices=(1, 2)), 2),
    ],
)
def test_values_that_fit_are_accepted(option: OptionSpec, value: OptionValue) -> None:
    """The ends of a range belong to it, and a whole number is a number."""
    assert value_error(option, value) is None


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        (spec("bool"), 1, "1 is not true or false"),
        (spec("int"), True, "true is not a whole number"),
        (spec("int"), 1.5, "1.5 is not a whole number"),
        (spec("float"), "1", '"1" is not a number'),
        (spec("str"), 1, "1 is not a text"),
        (spec("int", range=(1, 4)), 5, "5 is outside 1 to 4"),
        (spec("float", range=(0, 1)), -0.5, "-0.5 is outside 0 to 1"),
        (spec("float", range=(0, 1)), float("nan"), "nan is outside 0 to 1"),
        (spec("choice", choices=("a", "b")), "c", '"c" is not one of "a", "b"'),
        (spec("choice", choices=(1, 2)), True, "true is not one of 1, 2"),
    ],
)
def test_values_that_do_not_fit_are_named(option: OptionSpec, value: OptionValue, problem: str) -> None:
    """The text holds the value and what is allowed."""
    assert value_error(option, value) == problem


def test_an_axis_without_values_takes_what_the_catalogue_proposes() -> None:
    """Values first, then choices, then both of a bool, else nothing."""
    assert axis_values(spec("choice", choices=(1, 2, 3), values=(1, 3))) == (1, 3)
    assert axis_values(spec("choice", choices=("a", "b"))) == ("a", "b")
    assert axis_values(spec("bool")) == (False, True)
    assert axis_values(spec("int")) == ()
