"""Explanations and command lines that all engines share."""

from __future__ import annotations

from servetune.engines.base import (
    CAUSES,
    Explanation,
    command_line_options,
    decisive_lines,
    explain_by_patterns,
    explain_exit,
    lines_matching,
)
from servetune.records import Catalogue, Config, OptionSpec


def test_the_last_error_lines_decide() -> None:
    """Chatter is left out, repeats count once, order is kept."""
    log = "loading\nERROR one\nfine\nERROR two\nERROR two\n\nValueError: three\nbye\n"

    assert decisive_lines(log, count=2) == "ERROR two\nValueError: three"


def test_without_error_lines_the_last_lines_stand() -> None:
    """A log that ends quietly still gives evidence; an empty one gives none."""
    assert decisive_lines("a\nb\nc\nd") == "b\nc\nd"
    assert decisive_lines(" \n\n") == ""


def test_long_lines_are_cut() -> None:
    """Evidence stays readable."""
    assert len(decisive_lines("error " + "x" * 5000)) == 300


def test_lines_matching_finds_the_last_different_ones() -> None:
    """A pattern is searched without regard to case."""
    assert lines_matching("Out Of Memory 1\nok\nout of memory 2\nout of memory 2", "out of memory", count=1) == (
        "out of memory 2"
    )


def test_exit_codes_alone_are_explained() -> None:
    """Signals of memory killers and of missing instructions are told from plain crashes."""
    causes = {code: found.cause for code in (-4, -9, -11, -15, 1, 127) if (found := explain_exit("", code))}

    assert causes == {
        -4: "unsupported-cpu",
        -9: "killed",
        -11: "crashed",
        -15: "killed",
        1: "crashed",
        127: "crashed",
    }
    assert set(causes.values()) <= set(CAUSES)
    assert explain_exit("error", 0) is None
    assert explain_exit("error", None) is None


def test_patterns_come_before_the_exit_code() -> None:
    """The first pattern that is found names the cause, and the exit code is the last resort."""
    patterns = {"out of memory": "out-of-memory", "error": "bad-model"}

    assert explain_by_patterns("error\nout of memory", -9, patterns) == Explanation(
        cause="out-of-memory", evidence="out of memory"
    )
    assert explain_by_patterns("fine", 3, patterns) == Explanation(cause="crashed", evidence="exit code 3\nfine")
    assert explain_by_patterns("fine", None, patterns) is None


def test_options_become_flags() -> None:
    """Sorted by name; a config wins over fixed options; switches have two forms; load options have no flag."""
    catalogue = Catalogue(
        engine="e",
        options={
            "a": OptionSpec(name="a", type="bool", family="f", doc="d", flag="--a", off_flag="--no-a"),
            "b": OptionSpec(name="b", type="bool", family="f", doc="d", flag="--b"),
            "n": OptionSpec(name="n", type="int", family="f", doc="d", flag="--n"),
            "load": OptionSpec(name="load", type="int", family="f", doc="d", applies="load"),
        },
    )
    config = Config(engine="e", options={"n": 2, "a": False, "b": False, "load": 3})

    assert command_line_options(config, catalogue, fixed={"n": 1, "a": True}) == ("--no-a", "--n", "2")
