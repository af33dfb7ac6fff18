"""Configs as points of a search space."""

from __future__ import annotations

import pytest

from servetune import space
from servetune.records import Axis, Catalogue, Config, EngineSpec, Variant
from tests.unit.laboratory_sample import CATALOGUE, engine, option, study

SEQS = space.Stage(option="seqs", family="batching", values=(32, 64))


def test_a_fingerprint_does_not_depend_on_the_order_of_options() -> None:
    """Equal configs have equal names of 12 hex digits; another value has another."""
    one, other = Config(engine="one", options={"a": 1, "b": 2}), Config(engine="one", options={"b": 2, "a": 1})

    assert space.fingerprint(one) == space.fingerprint(other)
    assert space.key(one) == space.key(other)
    assert len(space.fingerprint(one)) == 12
    assert space.fingerprint(one) != space.fingerprint(Config(engine="one", options={"a": 1, "b": 3}))


def test_a_fingerprint_stays_what_it_was() -> None:
    """Stored studies rely on it."""
    config = Config(engine="llamacpp", variant="Q4_0", options={"threads": 2})

    assert space.fingerprint(config) == "34c952d27d90"


def test_a_label_reads_like_a_command() -> None:
    """Engine, variant, options; truth values in lower case."""
    assert space.label(Config(engine="one", variant="fp8", options={"b": True, "a": 1})) == "one fp8 a=1 b=true"
    assert space.label(Config(engine="one")) == "one"


def test_true_is_not_one() -> None:
    """Python says otherwise."""
    assert not space.same_value(True, 1)
    assert space.same_value(1, 1)


def test_engine_defaults_hold_what_the_study_fixes() -> None:
    """In the order of names."""
    spec = EngineSpec(name="one", options={"b": 2, "a": 1})

    assert list(space.engine_defaults(spec, "fp8").options.items()) == [("a", 1), ("b", 2)]
    assert space.engine_defaults(spec, "fp8").variant == "fp8"


def test_an_option_at_its_default_is_left_out() -> None:
    """So that the config is the same as the one that never named it."""
    config = Config(engine="one", options={"tokens": 1})

    assert space.with_option(config, "seqs", 64, default=32).options == {"seqs": 64, "tokens": 1}
    assert space.with_option(config, "tokens", 1024, default=1024).options == {}
    assert space.with_option(config, "overlap", True).options == {"overlap": True, "tokens": 1}


def test_a_condition_between_options_forbids_a_config() -> None:
    """The reason names both options; a default value needs nothing."""
    assert space.forbidden(Config(engine="one", options={"overlap": True, "seqs": 128}), CATALOGUE) == (
        "overlap=true needs seqs=32 or 64, which is 128"
    )
    assert space.forbidden(Config(engine="one", options={"overlap": True}), CATALOGUE) is None
    assert space.forbidden(Config(engine="one", options={"overlap": False, "seqs": 128}), CATALOGUE) is None
    assert space.forbidden(Config(engine="one", options={"unknown": 1}), CATALOGUE) is None


def test_a_condition_on_a_value_that_nobody_knows_is_met() -> None:
    """The engine decides at its start."""
    overlap = option("overlap", "scheduling", False, requires={"elsewhere": (1,)})
    catalogue = Catalogue(engine="one", options={"overlap": overlap})

    assert space.forbidden(Config(engine="one", options={"overlap": True}), catalogue) is None


def test_a_study_starts_with_its_baseline_then_every_engine_and_variant() -> None:
    """Each config once."""
    asked = study(engines=(engine(), engine("two", variants=())), baseline=Config(engine="one", options={"seqs": 64}))

    assert [space.label(config) for config in space.starting_configs(asked)] == ["one seqs=64", "one", "one fp8", "two"]
    assert len(space.starting_configs(study())) == 2


def test_an_engine_without_variants_has_the_studys_model() -> None:
    """As one variant without a name."""
    assert space.variants(EngineSpec(name="one")) == (Variant(name=""),)


def test_options_of_one_family_are_tried_together() -> None:
    """Families come in the order of their first axis, axes in the study's order; an unknown option has no family."""
    names = ("seqs", "overlap", "tokens", "unknown")
    spec = EngineSpec(name="one", axes=tuple(Axis(option=name, values=(1, 2)) for name in names))

    assert [(stage.option, stage.family) for stage in space.stages(spec, CATALOGUE)] == [
        ("seqs", "batching"),
        ("tokens", "batching"),
        ("overlap", "scheduling"),
        ("unknown", ""),
    ]


def test_neighbours_have_each_other_value_of_an_option() -> None:
    """Also back to the default, which leaves the option out; an option without a known default takes every value."""
    assert [config.options for config in space.neighbours(Config(engine="one"), SEQS, CATALOGUE)] == [{"seqs": 64}]
    assert [
        config.options for config in space.neighbours(Config(engine="one", options={"seqs": 64}), SEQS, CATALOGUE)
    ] == [{}]
    for name in ("threads", "unknown"):
        stage = space.Stage(option=name, family="", values=(1, 2))
        found = space.neighbours(Config(engine="one"), stage, CATALOGUE)
        assert [config.options for config in found] == [{name: 1}, {name: 2}]


def test_an_engine_that_is_not_in_the_study_is_an_error() -> None:
    """The baseline's engine is checked when the study is read."""
    assert space.find_spec((engine("two"), engine()), "one").name == "one"
    with pytest.raises(LookupError, match="no engine three"):
        space.find_spec((engine(),), "three")


def test_what_a_study_fixes_for_all_is_left_out_of_a_name() -> None:
    """Axes and changed values stay; a config of an engine that is not in the study is left as it is."""
    spec = EngineSpec(
        name="mock", options={"speed": 2.0, "seed": 1, "threads": 1}, axes=(Axis(option="threads", values=(1, 2)),)
    )
    config = Config(engine="mock", variant="fp8", options={"seed": 7, "speed": 2.0, "threads": 1})
    stranger = Config(engine="other", options={"speed": 2.0})

    assert space.without_fixed(config, [spec]).options == {"seed": 7, "threads": 1}
    assert space.without_fixed(stranger, [spec]) == stranger
