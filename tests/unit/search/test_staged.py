"""The staged search as its user sees it: what is measured, in which order, what is adopted and why."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from servetune import search, space
from servetune.records import (
    Budget,
    Config,
    Finding,
    Limits,
    Measurement,
    Objective,
    RunRequest,
    StepResult,
    Summary,
    Trial,
    Verdict,
    WorkloadSpec,
)
from servetune.search import race, staged
from tests.unit.laboratory_sample import CATALOGUES, Lab, distribution, engine, run_all, search_all, steps_of, study


def _verdict(step: StepResult, label: str) -> Verdict:
    return next(verdict for verdict in step.verdicts if space.label(verdict.config) == label)


def _launches(history: list[Trial], step: str) -> list[tuple[int, str]]:
    chosen = [trial.measurement for trial in history if trial.measurement.step == step]
    return [(wanted.block, space.label(wanted.config)) for wanted in chosen]


def test_the_path_goes_from_engine_and_variant_to_one_option_after_another() -> None:
    """Each step starts from the leader of the one before."""
    steps = steps_of(study(), Lab({"fp8": 1.2, "seqs=64": 1.1}))

    assert [(step.name, step.title) for step in steps] == [
        ("engine", "Engine and model variant"),
        ("seqs", "batching: seqs"),
        ("tokens", "batching: tokens"),
    ]
    assert [space.label(step.incumbent) for step in steps] == ["one", "one fp8", "one fp8 seqs=64"]
    assert space.label(steps[-1].leader) == "one fp8 seqs=64"
    assert all(step.finished for step in steps)


def test_a_gain_is_adopted_with_its_interval() -> None:
    """The verdict names both configs, the repeats and the gain."""
    verdict = _verdict(steps_of(study(), Lab({"fp8": 1.2}, noise=0.02))[0], "one fp8")

    assert (verdict.kind, verdict.adopted, verdict.against) == ("better", True, Config(engine="one"))
    assert verdict.gain is not None
    assert verdict.gain.low < 0.2 < verdict.gain.high
    assert verdict.repeats >= 2


def test_no_gain_is_not_adopted() -> None:
    """Nor is one below min_gain; the leader stays."""
    steps = steps_of(study(), Lab({"fp8": 1.005}))

    assert not any(verdict.adopted for step in steps for verdict in step.verdicts)
    assert steps[-1].leader == Config(engine="one")


def test_repeats_stop_when_everything_is_decided() -> None:
    """A clear loss and a clear gain take two or three blocks of four."""
    history = search_all(study(), Lab({"fp8": 0.5, "seqs=64": 2.0}, noise=0.0005))
    steps = staged.steps(study(), CATALOGUES, history)

    assert steps[0].stop_reason == "decided"
    assert max(block for block, _ in _launches(history, "engine")) == 2


def test_a_step_that_needs_all_repeats_gives_no_reason() -> None:
    """Nothing stopped it early."""
    steps = steps_of(study(), Lab({"fp8": 1.025}, noise=0.02))

    assert steps[0].stop_reason == ""


def test_a_block_holds_each_config_once_with_common_prompts() -> None:
    """In a random order that is fixed by the study's seed; prompts are new in each block and step."""
    history = search_all(study(), Lab(noise=0.02))
    blocks: dict[tuple[str, int], set[tuple[RunRequest, ...]]] = {}
    for trial in history:
        blocks.setdefault((trial.measurement.step, trial.measurement.block), set()).add(trial.measurement.runs)

    assert all(len(runs) == 1 for runs in blocks.values())
    assert len(set(itertools.chain.from_iterable(blocks.values()))) == len(blocks)
    assert len(set(_launches(history, "engine"))) == len(_launches(history, "engine"))


def test_the_order_within_blocks_is_random_but_fixed_by_the_seed() -> None:
    """Both orders of two configs come up; the same seed gives the same order."""
    firsts = []
    for seed in range(20):
        wanted = staged.next_measurement(study(seed=seed), CATALOGUES, [])
        assert wanted == staged.next_measurement(study(seed=seed), CATALOGUES, [])
        assert wanted is not None
        firsts.append(wanted.role)

    assert set(firsts) == {"incumbent", "challenger"}


def test_of_several_gains_the_largest_is_adopted() -> None:
    """The others are better as well, and the verdict says why they were not taken."""
    asked = study(engines=(engine(variants=("", "fp8", "awq")),))

    step = steps_of(asked, Lab({"fp8": 1.3, "awq": 1.5}))[0]

    assert step.leader.variant == "awq"
    assert _verdict(step, "one fp8").kind == "better"
    assert _verdict(step, "one fp8").reason == "another config gained more"


def test_who_cannot_catch_up_with_a_winner_is_not_measured_further() -> None:
    """A small gain beside a large one."""
    asked = study(engines=(engine(variants=("", "fp8", "awq")),), budget=Budget(seconds=1e6, max_repeats=10))

    step = steps_of(asked, Lab({"fp8": 1.02, "awq": 2.0}, noise=0.01))[0]

    assert _verdict(step, "one fp8").reason == "unlikely to beat the best of this step"


def test_a_metric_to_minimise_is_turned_round() -> None:
    """Old / new - 1 is the gain."""
    asked = study(objective=Objective(on="chat", metric="mean_ttft_ms", goal="minimize"))

    def slower(config: Config, _request: RunRequest, made: Summary) -> Summary:
        return msgspec.structs.replace(made, latency={"ttft": distribution(50.0 if config.variant else 100.0)})

    verdict = _verdict(steps_of(asked, Lab(change=slower))[0], "one fp8")

    assert verdict.adopted
    assert verdict.gain is not None
    assert verdict.gain.estimate == pytest.approx(1.0)


# --------------------------------------------------------------------------- conditions and caps


def test_a_forbidden_value_is_skipped_with_its_reason() -> None:
    """Nothing is launched for it."""
    asked = study(engines=(engine(variants=(), seqs=(32, 128), overlap=(False, True)),))
    history = search_all(asked, Lab({"seqs=128": 1.5}))
    step = staged.steps(asked, CATALOGUES, history)[1]

    assert step.verdicts[0].kind == "invalid"
    assert step.verdicts[0].reason == "overlap=true needs seqs=32 or 64, which is 128"
    assert step.finished
    assert _launches(history, "overlap") == []


def test_an_axis_without_another_value_makes_no_step() -> None:
    """The only value is the one that the config has."""
    steps = steps_of(study(engines=(engine(variants=(), seqs=(32,), tokens=(1024, 4096)),)), Lab())

    assert [step.name for step in steps] == ["tokens"]


def test_the_cap_on_configs_drops_the_last_ones_and_says_so() -> None:
    """Configs that were measured before do not count again."""
    asked = study(
        engines=(engine(variants=("", "fp8", "awq"), seqs=(32, 64, 128)),),
        budget=Budget(seconds=1e6, max_repeats=3, max_configs=2),
    )
    history = search_all(asked, Lab())
    steps = staged.steps(asked, CATALOGUES, history)

    assert len({space.key(trial.config) for trial in history}) == 2
    assert "max_configs 2: 1 left out" in steps[0].stop_reason
    assert steps[1].stop_reason == "max_configs 2: 2 left out"


def test_options_of_the_leading_engine_are_tuned() -> None:
    """The other engine's axes are not."""
    asked = study(engines=(engine(variants=()), engine("two", variants=(), threads=(1, 2))))

    steps = steps_of(asked, Lab({"two": 1.5, "threads=2": 1.5}))

    assert [step.name for step in steps] == ["engine", "threads"]
    assert space.label(steps[-1].leader) == "two threads=2"


# --------------------------------------------------------------------------- failures


def test_a_challenger_that_fails_is_invalid_with_its_cause() -> None:
    """At once; the study goes on."""
    lab = Lab(fails=lambda wanted, _attempt: "out-of-memory" if wanted.config.variant == "fp8" else None)
    history = search_all(study(), lab)
    steps = staged.steps(study(), CATALOGUES, history)

    assert [trial.config.variant for trial in history].count("fp8") == 1
    assert _verdict(steps[0], "one fp8").kind == "invalid"
    assert _verdict(steps[0], "one fp8").reason == "failed at load: out-of-memory"
    assert len(steps) == 3


def test_a_failure_that_was_not_its_fault_is_forgiven_once() -> None:
    """The client could not do its work."""
    lab = Lab({"fp8": 1.5}, fails=lambda wanted, attempt: None if attempt or wanted.block > 1 else "client-failed")

    assert steps_of(study(), lab)[0].leader.variant == "fp8"


def test_a_cancelled_trial_is_no_failure() -> None:
    """The user stopped; the launch is made again."""
    lab = Lab({"fp8": 1.5}, fails=lambda wanted, attempt: None if attempt or wanted.block > 1 else "cancelled")

    assert steps_of(study(), lab)[0].leader.variant == "fp8"


def test_the_incumbent_may_fail_once() -> None:
    """It is launched again in the same block."""
    lab = Lab(fails=lambda wanted, attempt: "crashed" if wanted.role == "incumbent" and not attempt else None)
    steps = steps_of(study(), lab)

    assert all(step.finished and step.leader == Config(engine="one") for step in steps)


def _baseline_crashes(wanted: Measurement, _attempt: int) -> str | None:
    return "crashed" if wanted.config == Config(engine="one") else None


def test_the_best_that_runs_takes_the_place_of_a_baseline_that_fails_twice() -> None:
    """The verdicts say so; the step goes on with the new incumbent."""
    asked = study(engines=(engine(variants=("", "fp8", "awq")),))
    step = steps_of(asked, Lab({"fp8": 1.1}, fails=_baseline_crashes))[0]

    assert step.incumbent == Config(engine="one")
    assert step.leader.variant == "fp8"
    assert _verdict(step, "one").kind == "invalid"
    assert _verdict(step, "one fp8").adopted
    assert _verdict(step, "one fp8").reason == "takes the place of one, which failed"
    assert _verdict(step, "one awq").against.variant == "fp8"


def test_a_step_in_which_nothing_runs_ends() -> None:
    """Its reason says that there is nothing to compare with."""
    steps = steps_of(study(), Lab(fails=lambda _wanted, _attempt: "refused"))

    assert steps[0].finished
    assert steps[0].stop_reason == "no config is left to compare with"
    assert steps[0].leader == Config(engine="one")


def test_a_challenger_that_won_takes_over_when_the_incumbent_dies_later() -> None:
    """The comparison it won stands; another one that is still measured does not get its place."""
    asked = study(engines=(engine(variants=("", "fp8", "awq")),), budget=Budget(seconds=1e6, max_repeats=8))

    def dies(wanted: Measurement, _attempt: int) -> str | None:
        return "crashed" if wanted.role == "incumbent" and wanted.block == 4 else None

    step = steps_of(asked, Lab({"fp8": 1.08, "awq": 1.08 * 1.02}, noise=0.05, fails=dies))[0]

    assert step.leader.variant == "fp8"
    assert _verdict(step, "one fp8").kind == "better"
    assert _verdict(step, "one awq").repeats == 3


def test_a_run_without_the_metric_counts_as_a_failure() -> None:
    """There is nothing to compare."""

    def silent(config: Config, _request: RunRequest, made: Summary) -> Summary:
        return msgspec.structs.replace(made, total_token_throughput=0.0) if config.variant else made

    step = steps_of(study(), Lab(change=silent))[0]

    assert _verdict(step, "one fp8").reason == "no total_token_throughput"


def test_a_challenger_that_dies_after_a_block_leaves_the_race() -> None:
    """What it measured before stays in the variance and decides nothing."""
    lab = Lab(
        {"fp8": 1.02},
        noise=0.02,
        fails=lambda wanted, _: "hung" if wanted.config.variant and wanted.block == 2 else None,
    )
    step = steps_of(study(), lab)[0]

    assert _verdict(step, "one fp8").kind == "invalid"
    assert _verdict(step, "one fp8").gain is None


# --------------------------------------------------------------------------- limits, findings, quality


def _ttft(**by_variant: float) -> Lab:
    def change(config: Config, _request: RunRequest, made: Summary) -> Summary:
        value = by_variant.get(config.variant or "plain")
        return made if value is None else msgspec.structs.replace(made, latency={"ttft": distribution(value)})

    return Lab({"fp8": 1.5, "awq": 0.9}, change=change)


THREE = (engine(variants=("", "fp8", "awq")),)
BOUND = Limits(bounds={"p99_ttft_ms": 500.0, "success_rate": 0.99})


def test_a_challenger_that_breaks_a_limit_cannot_win() -> None:
    """The reason names the limit, the value and the bound."""
    step = steps_of(study(limits=BOUND), _ttft(fp8=812.0, plain=100.0))[0]

    assert step.leader == Config(engine="one")
    assert _verdict(step, "one fp8").kind == "invalid"
    assert _verdict(step, "one fp8").reason == "p99_ttft_ms 812 > 500"


def test_a_rate_is_a_lower_bound() -> None:
    """And a metric without any value breaks nothing."""

    def fail_some(config: Config, _request: RunRequest, made: Summary) -> Summary:
        return msgspec.structs.replace(made, failed=5) if config.variant else made

    step = steps_of(study(limits=BOUND), Lab({"fp8": 1.5}, change=fail_some))[0]

    assert _verdict(step, "one fp8").reason == "success_rate 0.9524 < 0.99"


def test_a_slower_config_is_adopted_if_only_it_keeps_the_limits() -> None:
    """The reason names the limit that the incumbent breaks."""
    step = steps_of(study(limits=BOUND, engines=THREE), _ttft(plain=812.0, fp8=700.0, awq=400.0))[0]

    assert step.leader.variant == "awq"
    assert _verdict(step, "one awq").reason == "keeps the limits that the incumbent breaks (p99_ttft_ms 812 > 500)"
    assert _verdict(step, "one awq").adopted
    assert _verdict(step, "one awq").kind != "better"


def test_of_several_that_keep_the_limits_the_fastest_is_adopted() -> None:
    """They race against each other, not for significance against the incumbent."""
    step = steps_of(study(limits=BOUND, engines=THREE), _ttft(plain=812.0, fp8=400.0, awq=400.0))[0]

    assert step.leader.variant == "fp8"
    assert step.stop_reason == "decided"


def test_without_any_that_keeps_the_limits_the_leader_stays() -> None:
    """Later steps may still find one."""
    step = steps_of(study(limits=BOUND, engines=THREE), _ttft(plain=812.0, fp8=900.0, awq=900.0))[0]

    assert step.leader == Config(engine="one")


def test_a_finding_can_bar_a_config() -> None:
    """With the finding in the reason."""
    partial = Finding(code="partial", severity="bars", evidence="20 of 100 failed")
    note = Finding(code="short-run", severity="note", evidence="9 requests")
    lab = Lab({"fp8": 1.5}, finding=lambda config: (note, partial) if config.variant else (note,))

    assert _verdict(steps_of(study(), lab)[0], "one fp8").reason == "partial: 20 of 100 failed"


def test_required_quality_keeps_other_weights_from_being_adopted() -> None:
    """They are measured, and would have been better."""
    step = steps_of(study(quality="required"), Lab({"fp8": 1.5}))[0]

    assert step.leader == Config(engine="one")
    assert _verdict(step, "one fp8").kind == "better"
    assert _verdict(step, "one fp8").reason.startswith("quality-not-checked")


def test_required_quality_holds_when_limits_are_broken_and_when_the_baseline_fails() -> None:
    """Other weights do not come in by a side door."""
    broken = steps_of(study(quality="required", limits=BOUND), _ttft(plain=812.0, fp8=400.0))[0]
    failed = steps_of(study(quality="required"), Lab(fails=_baseline_crashes))[0]

    assert broken.leader == Config(engine="one")
    assert failed.leader == Config(engine="one")


def test_a_challenger_that_breaks_a_limit_after_it_won_is_out() -> None:
    """It was still measured, since the incumbent broke one, which it then no longer did."""
    ttft = {"": (100.0, 1200.0, 100.0, 100.0), "fp8": (100.0, 100.0, 3000.0, 100.0), "awq": (100.0,) * 4}

    def change(config: Config, request: RunRequest, made: Summary) -> Summary:
        if request.repeat > 3:
            return made
        return msgspec.structs.replace(made, latency={"ttft": distribution(ttft[config.variant][request.repeat])})

    step = steps_of(study(limits=BOUND, engines=THREE), Lab({"fp8": 5.0, "awq": 5.0}, noise=0.01, change=change))[0]

    assert _verdict(step, "one fp8").reason == "p99_ttft_ms 1067 > 500"
    assert step.leader.variant == "awq"


# --------------------------------------------------------------------------- error probability


def test_the_error_probability_is_divided_over_all_challengers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A challenger of the first step has twice the part of a later one; together they have 1 - confidence."""
    contests: dict[str, race.Contest] = {}

    class Recorded(race.Race):
        def run(self) -> race.Outcome:
            contests[self.contest.name] = self.contest
            return super().run()

    monkeypatch.setattr(staged, "Race", Recorded)
    spec = engine(variants=("", "fp8", "awq"), seqs=(32, 64, 128), tokens=(1024, 4096))
    steps_of(study(engines=(spec,)), Lab())

    parts = [contest.alpha * len(contest.challengers) for contest in contests.values()]
    assert sum(parts) == pytest.approx(0.05)
    assert contests["engine"].alpha == pytest.approx(2 * contests["seqs"].alpha)
    assert contests["seqs"].alpha == contests["tokens"].alpha


def test_what_the_first_step_leaves_goes_to_the_engine_that_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have fewer options than another one."""
    contests: dict[str, race.Contest] = {}

    class Recorded(race.Race):
        def run(self) -> race.Outcome:
            contests[self.contest.name] = self.contest
            return super().run()

    monkeypatch.setattr(staged, "Race", Recorded)
    asked = study(engines=(engine(variants=(), seqs=(32, 64, 128, 256)), engine("two", variants=(), tokens=(1, 1024))))
    steps_of(asked, Lab({"two": 2.0}))

    assert contests["engine"].alpha == pytest.approx(0.05 * 2 / 5)
    assert contests["tokens"].alpha == pytest.approx(0.05 * 3 / 5)


# --------------------------------------------------------------------------- budget and resume


@pytest.mark.parametrize(("seconds", "blocks"), [(275.0, 2), (290.0, 3)])
def test_the_last_look_is_planned_for_half_of_the_challengers(seconds: float, blocks: int) -> None:
    """The step's share is 3/7 of two thirds; two blocks of three cost 60 s, a further one of two is expected."""
    asked = study(engines=THREE, budget=Budget(seconds=seconds, max_repeats=5))

    step = steps_of(asked, Lab({"fp8": 1.05}, noise=0.05))[0]

    assert max(verdict.repeats for verdict in step.verdicts) == blocks


def test_large_workloads_leave_less_of_the_budget_to_the_search() -> None:
    """The validation runs them as well."""

    def launches(prompts: int) -> int:
        workloads = (
            WorkloadSpec(name="chat", kind="chat", num_prompts=100),
            WorkloadSpec(name="long", kind="chat", num_prompts=prompts),
        )
        asked = study(workloads=workloads, budget=Budget(seconds=200.0, max_repeats=4))
        return len(search_all(asked, Lab({"fp8": 1.05}, noise=0.05)))

    assert launches(2000) < launches(100)


def test_a_step_ends_when_its_share_of_the_budget_is_spent() -> None:
    """After two blocks at least, so that later steps and the validation keep theirs."""
    asked = study(budget=Budget(seconds=300.0, max_repeats=10))
    history = search_all(asked, Lab({"fp8": 1.05}, noise=0.03))
    steps = staged.steps(asked, CATALOGUES, history)

    assert "budget" in [step.stop_reason for step in steps]
    assert [step.name for step in steps] == ["engine", "seqs", "tokens"]
    assert sum(trial.wall_s for trial in history) <= 300.0


def test_the_last_look_that_the_budget_allows_spends_the_whole_error_probability() -> None:
    """What a longer race would have kept for later looks is not lost."""
    three = (engine(variants=("", "fp8", "awq")),)
    short = study(engines=three, budget=Budget(seconds=120.0, max_repeats=5))
    long = study(engines=three, budget=Budget(seconds=1e6, max_repeats=5))
    lab = Lab({"fp8": 1.2}, noise=0.02)

    assert _verdict(steps_of(short, lab)[0], "one fp8").repeats == 2
    assert _verdict(steps_of(long, lab)[0], "one fp8").repeats == 3


def test_without_money_left_the_search_ends_and_says_what_is_untried() -> None:
    """Steps that cannot have two blocks are not begun."""
    asked = study(budget=Budget(seconds=110.0, max_repeats=4))
    progress = search.get("staged")(asked, CATALOGUES, search_all(asked, Lab()))

    assert progress.wanted is None
    assert progress.stop_reason == "budget: not tried any more: seqs, tokens"
    assert [step.name for step in progress.steps] == ["engine"]


def test_a_budget_that_ends_in_the_first_block_decides_nothing() -> None:
    """Verdicts say that there were too few repeats."""
    asked = study(budget=Budget(seconds=15.0, max_repeats=4))
    steps = steps_of(asked, Lab())

    assert steps[0].stop_reason == "budget"
    assert steps[0].verdicts[0].reason == "too few repeats"


def test_a_step_that_is_being_measured_is_not_finished() -> None:
    """It is the last one; its leader is still the incumbent."""
    (step,) = staged.steps(study(), CATALOGUES, [])

    assert not step.finished
    assert step.leader == step.incumbent
    assert step.verdicts[0].reason == "being measured"


def test_the_search_may_stop_and_go_on_anywhere() -> None:
    """The same history gives the same next launch, and earlier answers never change."""
    asked = study(budget=Budget(seconds=400.0, max_repeats=4))
    history = run_all(asked, Lab({"fp8": 1.05, "seqs=64": 1.03}, noise=0.01))
    wanted = [trial.measurement for trial in history if trial.measurement.step != "validate"]

    for place, measurement in enumerate(wanted):
        assert staged.next_measurement(asked, CATALOGUES, history[:place]) == measurement
    assert staged.next_measurement(asked, CATALOGUES, history) is None


def test_runs_of_a_trial_that_was_killed_are_not_made_again() -> None:
    """Only the missing run is asked for."""
    asked = study(budget=Budget(seconds=1e6, max_repeats=4, runs_per_launch=2))
    wanted = staged.next_measurement(asked, CATALOGUES, [])
    assert wanted is not None
    whole = Lab().trial(wanted, [])
    killed = msgspec.structs.replace(whole, runs=whole.runs[:1])

    again = staged.next_measurement(asked, CATALOGUES, [killed])

    assert again == msgspec.structs.replace(wanted, runs=wanted.runs[1:])


# --------------------------------------------------------------------------- searchers by name


def test_searchers_are_found_by_name() -> None:
    """Built-in ones, and those of other packages by entry point."""
    assert search.get("staged") is staged.progress
    with pytest.raises(LookupError, match="no searcher magic"):
        search.get("magic")


def test_other_packages_bring_searchers_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """Group servetune.searchers."""

    class Found:
        def load(self) -> object:
            return staged.progress

    monkeypatch.setattr(search, "entry_points", lambda **_: [Found()])

    assert search.get("theirs") is staged.progress
