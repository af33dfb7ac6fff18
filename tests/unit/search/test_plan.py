"""What a study can come to is counted before anything runs: steps, configs, fewest and most launches."""

from __future__ import annotations

import msgspec

from servetune.records import (
    Axis,
    Budget,
    Catalogue,
    Config,
    EngineSpec,
    Objective,
    OptionSpec,
    Study,
    Variant,
    WorkloadSpec,
)
from servetune.search.plan import PlannedStep, Span, planned, totals


def _option(name: str, **more: object) -> OptionSpec:
    fields = {"name": name, "type": "int", "family": "batching", "doc": "for tests", "default": 1, **more}
    return OptionSpec(**fields)  # type: ignore[arg-type]


CATALOGUES = {
    "alpha": Catalogue(
        engine="alpha",
        options={
            "a": _option("a"),
            "b": _option("b", requires={"a": (2,)}),
            "c": _option("c", family=""),
        },
    ),
    "beta": Catalogue(engine="beta", options={"a": _option("a")}),
}
STUDY = Study(
    name="s",
    model="m",
    baseline=Config(engine="alpha"),
    engines=(EngineSpec(name="alpha", axes=(Axis(option="a", values=(1, 2, 3)),)),),
    workloads=(WorkloadSpec(name="x", kind="chat", num_prompts=1), WorkloadSpec(name="y", kind="chat", num_prompts=1)),
    objective=Objective(on="x"),
    budget=Budget(max_repeats=4),
)


def _plan(**changes: object) -> tuple[PlannedStep, ...]:
    return planned(msgspec.structs.replace(STUDY, **changes), CATALOGUES)


def test_one_engine_has_no_choice_of_engine() -> None:
    """One engine and variant: its options, then the validation, which an unsuccessful search leaves out."""
    option, validation = _plan()
    assert [config.options for config in option.configs] == [{}, {"a": 2}, {"a": 3}]
    assert (option.name, option.title, option.engine) == ("a", "batching: a", "alpha")
    assert (option.launches, option.runs) == (Span(least=6, most=12), Span(least=6, most=12))
    assert (validation.name, validation.launches, validation.runs) == ("validate", Span(most=8), Span(most=16))


def test_variants_and_engines_are_chosen_first() -> None:
    """The first step holds every engine and variant at its defaults, the baseline first."""
    engines = (EngineSpec(name="alpha", variants=(Variant(name="p"), Variant(name="q"))), EngineSpec(name="beta"))
    first, _ = _plan(engines=engines, baseline=Config(engine="alpha", variant="q"))
    assert [(config.engine, config.variant) for config in first.configs] == [
        ("alpha", "q"),
        ("alpha", "p"),
        ("beta", ""),
    ]
    assert first.name == "engine"


def test_refused_configs_are_listed_and_not_counted() -> None:
    """A value whose condition the leader does not meet is never started; a step of such values launches nothing."""
    engine = EngineSpec(name="alpha", axes=(Axis(option="b", values=(1, 5)), Axis(option="c", values=(1, 2))))
    refused, without_family, _ = _plan(engines=(engine,))
    assert [entry.config.options for entry in refused.refused] == [{"b": 5}]
    assert "needs a=2" in refused.refused[0].reason
    assert refused.launches == Span()
    assert without_family.title == "c"


def test_max_configs_leaves_out_the_last_ones() -> None:
    """Configs without room are counted as left out, across the steps of the search."""
    engines = (
        EngineSpec(name="alpha", axes=(Axis(option="a", values=(1, 2, 3)),)),
        EngineSpec(name="beta", axes=(Axis(option="a", values=(1, 2)),)),
    )
    first, alpha, beta, _ = _plan(engines=engines, budget=Budget(max_configs=3))
    assert (len(first.configs), len(alpha.configs), alpha.left_out, len(beta.configs)) == (2, 2, 1, 2)
    only, alone, _ = _plan(engines=engines, budget=Budget(max_configs=1))
    assert (len(only.configs), only.left_out, only.launches) == (1, 1, Span())
    assert (alone.engine, alone.left_out) == ("alpha", 2)


def test_totals_count_the_engine_that_leads_once() -> None:
    """Option steps are made for one engine: the totals span the cheapest and the dearest."""
    engines = (
        EngineSpec(name="alpha", axes=(Axis(option="a", values=(1, 2, 3)),)),
        EngineSpec(name="beta", axes=(Axis(option="a", values=(1, 2)),)),
    )
    total = totals(_plan(engines=engines))
    assert total.launches == Span(least=4 + 4, most=8 + 12 + 8)
    assert total.runs == Span(least=4 + 4, most=8 + 12 + 16)
    assert totals(()).launches == Span()
