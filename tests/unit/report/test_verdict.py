"""The first sentence of a report says the answer, in every case that a study can end in."""

from __future__ import annotations

import msgspec
import pytest

from servetune.records import Conclusion, Finding, Objective, Results, Run
from servetune.report import views
from servetune.report.views.verdict import Headline
from tests.unit.report import sample


def headline(results: Results) -> Headline:
    """The verdict box, with ordinary spaces."""
    found = views.build(results, study_toml="").headline
    notes = tuple((tone, note.replace("\u00a0", " ")) for tone, note in found.notes)
    return msgspec.structs.replace(found, sentence=found.sentence.replace("\u00a0", " "), notes=notes)


def test_a_confirmed_winner_is_named_with_its_interval() -> None:
    """Gain, interval, confidence and number of fresh pairs stand in one sentence."""
    found = headline(sample.RESULTS)
    assert found.tone == "good"
    assert found.sentence == (
        "llamacpp Q4_0 threads=2 serves chat with 98 % more tokens/s than the baseline llamacpp F16 threads=1 "
        "(interval +91 % to +105 %, 95 % confidence, 5 fresh pairs of launches)."
    )
    assert found.notes[0][1].startswith("quality-not-checked: The winner's weights")


def test_a_metric_to_minimise_is_lower() -> None:
    """A gain of 25 % in a latency is a latency that is 20 % lower, with the interval of that change."""
    study = msgspec.structs.replace(
        sample.STUDY, objective=Objective(metric="mean_ttft_ms", goal="minimize", on="chat")
    )
    results = msgspec.structs.replace(sample.RESULTS, study=study)
    change = msgspec.structs.replace(
        sample.CONCLUSION.changes[0], metric="mean_ttft_ms", gain=sample.interval(0.25, 0.0, 0.6)
    )
    found = headline(sample.with_conclusion(results, gain=sample.interval(0.25, 0.0, 0.6), changes=(change,)))
    assert "with 20 % lower mean TTFT than the baseline" in found.sentence
    assert "interval \u221238 % to 0 %" in found.sentence


def test_a_barred_winner_is_named_with_the_reason() -> None:
    """The gain is told, and why it does not count."""
    found = headline(sample.barred())
    sentence = found.sentence
    assert not any(note.startswith("Barred:") for _, note in found.notes), "it is said once"
    assert "98 % more tokens/s" in sentence
    assert "may not be recommended (loses 7.0% on long" in sentence
    assert sentence.endswith("so the baseline llamacpp F16 threads=1 stays.")


def test_a_config_barred_in_the_search_is_told_beside_the_winner() -> None:
    """The sentence stays with the winner; the barred one is a note."""
    verdict = sample.verdict(sample.UBATCH, sample.Q4_0, "invalid", sample.interval(0.3, 0.2, 0.4))
    found = headline(sample.with_conclusion(barred=(verdict,)))
    assert found.tone == "good"
    assert any(note.startswith("Barred: llamacpp Q4_0 threads=2 ubatch=256") for _, note in found.notes)
    assert any("a rule of the study bars it" in note for _, note in found.notes)


def test_a_gain_from_the_search_is_not_called_fresh() -> None:
    """A config that was barred before the validation is compared with its incumbent, by the search's pairs."""
    verdict = sample.verdict(sample.UBATCH, sample.Q4_0, "invalid", sample.interval(0.3, 0.2, 0.4), reason="too slow")
    results = sample.with_conclusion(sample.no_difference(), barred=(verdict,))
    sentence = headline(results).sentence
    assert "than llamacpp Q4_0 threads=1 (interval" in sentence
    assert "2 pairs of launches in the search" in sentence


def test_a_barred_config_without_a_gain_is_named_alone() -> None:
    """No figure is made up where there is none."""
    verdict = sample.verdict(sample.UBATCH, sample.BASELINE, "invalid", None)
    sentence = headline(sample.with_conclusion(sample.no_difference(), barred=(verdict,))).sentence
    assert sentence.startswith("llamacpp Q4_0 threads=2 ubatch=256, but it may not be recommended")


def test_no_difference_says_so() -> None:
    """Nothing adopted: the baseline stays, with the smallest gain that would have counted."""
    sentence = headline(sample.no_difference()).sentence
    assert sentence.startswith("No difference shown: nothing that was tried serves chat with more tokens/s")
    assert "by at least 1 %" in sentence


def test_no_config_within_the_limits_says_so() -> None:
    """The limits are named with their bounds."""
    results = sample.with_conclusion(sample.no_difference(), limits_met=False)
    sentence = headline(results).sentence
    assert "No configuration met the limits (p99 TTFT ≤ 30,000 ms, success rate ≥ 99 %, loss on any" in sentence


def test_all_failed_says_so() -> None:
    """Causes are counted."""
    found = headline(sample.all_failed())
    assert found.tone == "bad"
    assert found.sentence == ("No configuration could be measured: of 3 launches not one succeeded (out-of-memory 3).")


def test_an_empty_study_says_so() -> None:
    """Nothing measured is not a failure, and says how to go on."""
    found = headline(sample.empty())
    assert found.sentence == "Nothing has been measured yet, so there is no verdict."
    assert any("Run the same command again" in note for _, note in found.notes)


def test_an_unfinished_study_says_what_is_missing() -> None:
    """The leader is named without a gain, and open steps and the validation are listed."""
    found = headline(sample.unfinished())
    assert found.sentence.startswith("Unfinished, after 2 finished steps: llamacpp Q4_0 threads=2 leads")
    notes = [note for _, note in found.notes]
    assert "The study is not finished. It stopped because: interrupted." in notes
    assert "Not decided yet: Batching." in notes
    assert any(note.startswith("Missing: the fresh launches") for note in notes)


def test_an_unfinished_study_may_have_a_gain_already() -> None:
    """Half of the validation is told with its interval, as something that may change."""
    sentence = headline(sample.with_conclusion(finished=False)).sentence
    assert sentence.startswith("Unfinished, after 4 finished steps: llamacpp Q4_0 threads=2 serves chat with 98 %")
    assert sentence.endswith("; this may still change.")


def test_an_unfinished_study_without_an_adoption() -> None:
    """The baseline leads so far."""
    results = sample.with_conclusion(sample.unfinished(), recommended=sample.BASELINE)
    assert "nothing has been adopted over llamacpp F16 threads=1 so far" in headline(results).sentence


@pytest.mark.parametrize(("kind", "said"), [("no difference shown", "No difference shown:"), ("worse", "Worse:")])
def test_a_gain_that_fresh_launches_do_not_confirm(kind: str, said: str) -> None:
    """The search's leader is not called better."""
    found = headline(sample.with_conclusion(kind=kind, gain=sample.interval(0.01, -0.02, 0.04)))
    assert found.tone == "warn"
    assert found.sentence.startswith(f"{said} llamacpp Q4_0 threads=2 led the search")
    assert "interval \u22122 % to +4 %" in found.sentence


def test_a_winner_without_validation() -> None:
    """The budget ended before the fresh launches."""
    results = sample.with_conclusion(gain=None, changes=(), stop_reason="budget")
    found = headline(results)
    assert "there was no time to confirm it" in found.sentence
    assert ("warn", "The study ended early: budget.") in found.notes


def test_a_winner_over_a_baseline_that_fails() -> None:
    """Without a baseline there is no gain, and the sentence says why."""
    trials = tuple(trial for trial in sample.RESULTS.trials if trial.config != sample.BASELINE)
    results = msgspec.structs.replace(sample.RESULTS, trials=trials)
    found = headline(sample.with_conclusion(results, gain=None, changes=()))
    assert "the baseline llamacpp F16 threads=1 could not be measured" in found.sentence


def test_what_got_worse_stands_in_the_first_lines() -> None:
    """A latency that rises beside a throughput that rises is never left out, and said once."""
    finding = Finding(code="latency-worse", severity="warning", evidence="mean TTFT on long")
    barring = Finding(code="unequal-output", severity="bars", evidence="fewer tokens")
    note = Finding(code="requantised", severity="note", evidence="from Q4_1")
    slower = _with_slow_prefill(sample.RESULTS)
    found = headline(sample.with_conclusion(slower, findings=(finding, barring, note)))
    notes = [text for _, text in found.notes]
    assert any(text.startswith("What got worse: mean TTFT on long +") for text in notes)
    assert ("bad", "unequal-output: fewer tokens") in found.notes
    assert not any("latency-worse" in text or "requantised" in text for text in notes)


def _with_slow_prefill(results: Results) -> Results:
    """The winner's TTFT on `long` is four times what it was."""

    def slower(run: Run) -> Run:
        if run.workload != "long":
            return run
        latency = {**run.summary.latency, "ttft": sample.distribution(900.0)}
        return msgspec.structs.replace(run, summary=msgspec.structs.replace(run.summary, latency=latency))

    trials = (
        msgspec.structs.replace(trial, runs=tuple(map(slower, trial.runs))) if trial.config == sample.THREADS else trial
        for trial in results.trials
    )
    return msgspec.structs.replace(results, trials=tuple(trials))


def test_sentences_never_run_over_lines() -> None:
    """A verdict is one sentence on one line, even with hostile names."""
    for results in sample.everything().values():
        sentence = headline(results).sentence
        assert "\n" not in sentence
        assert len(sentence) < 700


def test_a_conclusion_without_changes_counts_no_pairs() -> None:
    """A gain without its workload's entry says 0 pairs rather than a number that nobody measured."""
    conclusion: Conclusion = msgspec.structs.replace(sample.CONCLUSION, changes=())
    results = msgspec.structs.replace(sample.RESULTS, conclusion=conclusion)
    assert "0 fresh pairs of launches" in headline(results).sentence
