"""Results become a page of text and numbers: what stands in it, in which order, and where the figures come from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import msgspec
import pytest

from servetune import metrics
from servetune.records import (
    Axis,
    Command,
    EngineSpec,
    Limits,
    Load,
    Objective,
    Results,
)
from servetune.report import evidence, views
from servetune.report.document import Bullets, Cell, Code, Facts, Fold, Paragraph, Section, Table
from servetune.report.english import TEXT
from servetune.report.phrases import Phrases
from servetune.report.views import search, trials
from tests.unit.report import sample

ORDER = [
    "command",
    "before-after",
    "charts",
    "steps",
    "failures",
    "validation",
    "findings",
    "method",
    "environment",
    "not-tried",
    "trials",
    "raw",
    "study",
]


def section(results: Results, name: str, **settings: Mapping[str, str]) -> Section:
    """One section of the page."""
    view = views.build(results, study_toml="[study]\n", **settings)  # type: ignore[arg-type]
    return next(part for part in view.sections if part.name == name)


def words(part: object) -> str:
    """All text of a part, with ordinary spaces."""
    return "\n".join(_texts(part)).replace("\u00a0", " ")


def _texts(part: object) -> Iterator[str]:
    match part:
        case str():
            yield part
        case tuple():
            for inner in part:
                yield from _texts(inner)
        case msgspec.Struct():
            yield from (text for name in part.__struct_fields__ for text in _texts(getattr(part, name)))


def table(found: Section, number: int = 0) -> Table:
    """One of the tables of a section."""
    return [part for part in found.parts if isinstance(part, Table)][number]


def rows(found: Table) -> list[list[str]]:
    """The texts of a table's rows."""
    return [[cell.text.replace("\u00a0", " ") for cell in row] for row in found.rows]


# --------------------------------------------------------------------------- the page


@pytest.mark.parametrize("name", sample.everything())
def test_every_study_has_every_section_in_order(name: str) -> None:
    """Finished or not, hostile or empty: the page always has the same parts."""
    view = views.build(sample.everything()[name], study_toml="")
    assert [part.name for part in view.sections] == ORDER


@pytest.mark.parametrize("name", sample.everything())
def test_tables_are_rectangular(name: str) -> None:
    """Every row has a cell for every column."""
    for part in views.build(sample.everything()[name], study_toml="").sections:
        for found in part.parts:
            if isinstance(found, Table):
                assert {len(row) for row in found.rows} <= {len(found.columns)}


def test_the_same_results_give_the_same_view() -> None:
    """A view depends on nothing but its arguments."""
    assert views.build(sample.RESULTS, study_toml="x") == views.build(sample.RESULTS, study_toml="x")


class _Watched(dict[str, str]):
    """A catalogue that notes which of its sentences were asked for."""

    def __init__(self) -> None:
        super().__init__(TEXT)
        self.used: set[str] = set()

    def __getitem__(self, key: str) -> str:
        self.used.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: str | None = None) -> str | None:  # type: ignore[override]
        """Note the key as well."""
        self.used.add(key)
        return super().get(key, default)


def test_the_catalogue_has_no_sentence_that_nothing_uses() -> None:
    """Apart from words for codes, every sentence is on some page."""
    watched = _Watched()
    for results in (*sample.everything().values(), *_rare()):
        views.build(results, study_toml="", say=Phrases(watched))
    groups = (
        "kind.",
        "stage.",
        "role.",
        "severity.",
        "more",
        "less",
        "page.",
        "stamps.",
        "metric.",
        "latency.",
        "list.more",
        "side.other",
    )
    unused = {key for key in TEXT.keys() - watched.used if not key.startswith(groups)}
    assert not unused


def _rare() -> Iterator[Results]:
    """Cases beside the samples that have sentences of their own."""
    yield sample.with_conclusion(finished=False)
    yield sample.with_conclusion(sample.unfinished(), recommended=sample.BASELINE)
    yield sample.with_conclusion(sample.no_difference(), limits_met=False)
    yield sample.with_conclusion(kind="worse", barred=(sample.verdict(sample.KV, sample.Q4_0, "invalid", None),))
    yield sample.with_conclusion(gain=None, changes=(), stop_reason="budget")
    yield sample.with_conclusion(recommended=sample.KV, gain=None)
    yield slowed(sample.RESULTS, "total_token_throughput")
    without = tuple(trial for trial in sample.RESULTS.trials if trial.config != sample.BASELINE)
    yield sample.with_conclusion(msgspec.structs.replace(sample.RESULTS, trials=without), gain=None, changes=())
    loss = msgspec.structs.replace(sample.CONCLUSION.changes[0], barred=True)
    yield sample.with_conclusion(changes=(loss,))
    study = msgspec.structs.replace(
        sample.STUDY, quality="required", objective=Objective(metric="max_ttft_ms", goal="minimize", on="chat")
    )
    yield sample.with_conclusion(msgspec.structs.replace(sample.RESULTS, study=study), changes=())
    one_core = msgspec.structs.replace(sample.HOST, cores=1)
    short = msgspec.structs.replace(
        sample.RESULTS, host=one_core, trials=sample.RESULTS.trials[:1], steps=sample.STEPS[:1]
    )
    change = msgspec.structs.replace(sample.CONCLUSION.changes[0], repeats=1)
    yield sample.with_conclusion(short, recommended=sample.BASELINE, finished=False)
    yield sample.with_conclusion(changes=(change,))
    failed = sample.trial(1, sample.Q4_0, step="engine", block=0, outcome=sample.OUT_OF_MEMORY)
    yield msgspec.structs.replace(sample.RESULTS, trials=(*sample.RESULTS.trials[:8], failed))
    once = sample.verdict(sample.UBATCH, sample.Q4_0, "invalid", sample.interval(0.3, 0.2, 0.4), repeats=1)
    yield sample.with_conclusion(sample.no_difference(), barred=(once,))


def slowed(results: Results, metric: str) -> Results:
    """The winner's figure is a tenth in every other validation run of it, so that it is worse in some pairs only."""
    changed = []
    for trial in results.trials:
        runs = trial.runs
        if trial.config == sample.THREADS and trial.measurement.block % 2 == 0:
            runs = tuple(
                msgspec.structs.replace(run, summary=msgspec.structs.replace(run.summary, **{metric: 20.0}))
                for run in runs
            )
        changed.append(msgspec.structs.replace(trial, runs=runs))
    conclusion = msgspec.structs.replace(results.conclusion, changes=())
    return msgspec.structs.replace(results, trials=tuple(changed), conclusion=conclusion)


# --------------------------------------------------------------------------- command


def test_the_command_can_be_pasted() -> None:
    """Arguments are quoted for the shell, variables stand before the program, a flag a line."""
    code = section(sample.RESULTS, "command").parts[0]
    assert isinstance(code, Code)
    assert code.text.splitlines() == [
        "API_KEY='***' OMP_NUM_THREADS=1 llama-server \\",
        "  --model '/models/SmolLM2 135M Q4_0.gguf' \\",
        "  --port 40123 \\",
        "  --threads 2",
    ]


def test_a_short_command_stays_on_one_line() -> None:
    """Nothing is broken that fits; a flag that comes first begins no empty line."""
    assert trials.shell_text(Command(argv=("llama-server", "--port", "1"))) == "llama-server --port 1"
    assert trials.shell_text(Command(argv=("-a" * 60, "--b"))) == "-a" * 60 + " \\\n  --b"
    assert trials.shell_text(Command(argv=())) == ""


def test_what_cannot_be_seen_is_written_out_in_a_command() -> None:
    """A direction override cannot make a command look like another one; quotes and backslashes stay themselves."""
    text = trials.shell_text(Command(argv=("echo", "a\u202eb'c\\d\n")))
    assert text == r"echo $'a\u202eb\'c\\d\u000a'"


def test_a_config_that_never_ran_has_no_command() -> None:
    """The page says so instead of making one up; a failed launch still shows what was tried."""
    assert "has not been launched" in words(section(sample.empty(), "command"))
    assert isinstance(section(sample.all_failed(), "command").parts[0], Code)


# --------------------------------------------------------------------------- before and after


def test_before_and_after_has_throughput_and_latency_of_every_workload() -> None:
    """Six figures a workload, the objective's workload first, its change with the published interval."""
    found = rows(table(section(sample.RESULTS, "before-after")))
    assert [row[0] for row in found if row[0]] == ["chat", "short", "long"]
    assert [row[1] for row in found[:6]] == [
        "Total throughput (tokens/s)",
        "Output throughput (tokens/s)",
        "Mean TTFT (ms)",
        "p99 TTFT (ms)",
        "Mean TPOT (ms)",
        "p99 TPOT (ms)",
    ]
    assert found[0][4:] == ["+98 % [+91 %, +105 %]", "better"]


def test_a_change_is_the_ratio_of_the_figures_beside_it() -> None:
    """Figures are geometric means over the same pairs that the change rests on."""
    compared = evidence.comparison(sample.RESULTS, sample.BASELINE, sample.THREADS)
    for row in compared.rows:
        assert row.baseline is not None and row.recommended is not None and row.change is not None
        if row.interval is None:
            assert row.change == pytest.approx(row.recommended / row.baseline - 1)
        assert row.pairs == 5


def test_what_got_worse_is_marked_with_its_pairs() -> None:
    """Worse by more than min_gain: the mark says in how many pairs."""
    found = table(section(slowed(sample.RESULTS, "output_throughput"), "before-after"))
    assert found.rows[1][5] == Cell(text="▲ worse in 3 of 5 pairs", tone="bad")


def test_more_than_the_allowed_loss_is_marked() -> None:
    """A barred change is red even if another figure improved."""
    changes = (msgspec.structs.replace(sample.CONCLUSION.changes[0], barred=True),)
    found = table(section(sample.with_conclusion(changes=changes), "before-after"))
    assert found.rows[0][5] == Cell(text="▲ loses more than allowed", tone="bad")


def test_figures_of_the_search_are_not_sold_as_published() -> None:
    """Without fresh launches the table says where its figures come from, and marks without pairs."""
    found = section(sample.unfinished(), "before-after")
    assert "they favour the one that was chosen" in words(found)
    swapped = sample.with_conclusion(sample.unfinished(), recommended=sample.MOCK)
    assert "▲ worse" in [row[5] for row in rows(table(section(swapped, "before-after")))]


def test_workloads_without_a_figure_are_named_not_shown() -> None:
    """No rows of dashes: one line says which workloads were not measured."""
    found = section(sample.unfinished(), "before-after")
    assert {row[0] for row in rows(table(found))} == {"chat", ""}
    assert "Not measured: short, long." in words(found)


def test_a_baseline_alone_has_no_after() -> None:
    """Nothing adopted: one column of figures."""
    found = section(sample.no_difference(), "before-after")
    assert [column.title for column in table(found).columns] == ["Workload", "Metric", "Baseline"]


def test_what_was_given_up_is_shown() -> None:
    """A barred config that was launched afresh has its own before and after."""
    found = section(sample.barred(), "before-after")
    assert "What was given up: llamacpp Q4_0 threads=2" in words(found)
    assert "Recommended: llamacpp Q4_0" not in words(found)
    assert table(found, 1).columns[3].title == "Barred"
    assert rows(table(found, 1))[0][4] == "+100 %"


def test_a_barred_config_of_the_search_is_not_compared() -> None:
    """Without fresh launches there is nothing to show."""
    verdict = sample.verdict(sample.UBATCH, sample.THREADS, "invalid", sample.interval(0.1, 0.05, 0.2))
    found = section(sample.with_conclusion(barred=(verdict,)), "before-after")
    assert "What was given up" not in words(found)


def test_equal_and_missing_figures_are_not_judged() -> None:
    """A change within min_gain is about the same; a figure that one side lacks has no change."""
    found = section(slowed(sample.with_conclusion(recommended=sample.KV), "peak_concurrency"), "before-after")
    assert {row[5] for row in rows(table(found))} == {""}
    assert evidence.relative(0.0, 1.0) is None
    assert evidence.relative(2.0, None) is None


# --------------------------------------------------------------------------- figures


def test_geometric_means_take_what_is_there() -> None:
    """None is left out; figures at zero have no logarithm and give the plain mean."""
    assert evidence.geometric_mean([2.0, None, 8.0]) == pytest.approx(4.0)
    assert evidence.geometric_mean([None]) is None
    assert evidence.geometric_mean([0.0, 4.0]) == 2.0


def test_a_gain_of_a_latency_becomes_its_change() -> None:
    """old/new - 1 = 25 % is new/old - 1 = -20 %; the ends swap, and a gain of -100 % has no bound."""
    change = evidence.plain_change(sample.interval(0.25, -1.0, 1.0), "mean_ttft_ms")
    assert change.estimate == pytest.approx(-0.2)
    assert (change.low, change.high) == (-0.5, math.inf)


def test_candidates_stand_on_the_scale_of_the_objective() -> None:
    """An interval is drawn around the incumbent's figure; the adopted one leads."""
    found = [point for point in evidence.candidates(sample.RESULTS) if point.step == "threads"]
    incumbent, adopted = found
    assert (incumbent.role, adopted.role, adopted.leads) == ("incumbent", "adopted", True)
    assert adopted.low == pytest.approx(incumbent.value * 1.21)


def test_a_step_without_its_incumbent_uses_other_launches_of_it() -> None:
    """The memory step's incumbent failed there: its figure comes from the other steps; none at all gives no point."""
    trials_left = tuple(trial for trial in sample.RESULTS.trials if trial.measurement.step != "threads")
    results = msgspec.structs.replace(sample.RESULTS, trials=trials_left)
    found = [point for point in evidence.candidates(results) if point.step == "threads"]
    assert [point.role for point in found] == ["incumbent"]
    unknown = msgspec.structs.replace(sample.STEPS[1], incumbent=sample.KV)
    alone = msgspec.structs.replace(sample.RESULTS, steps=(unknown,))
    assert [(point.role, point.low) for point in evidence.candidates(alone)] == [("adopted", None)]


def test_axes_follow_the_study() -> None:
    """Latency is the limited one, throughput the objective's; without them, defaults that were measured."""
    assert evidence.latency_axis(sample.RESULTS) == "p99_ttft_ms"
    free = msgspec.structs.replace(sample.STUDY, limits=Limits(), objective=Objective(metric="mean_tpot_ms", on="chat"))
    results = msgspec.structs.replace(sample.RESULTS, study=free)
    assert evidence.latency_axis(results) == "mean_e2el_ms"
    assert evidence.throughput_axis(results) == "total_token_throughput"


def test_an_objective_without_a_workload_is_about_the_first() -> None:
    """`on` may be left out; a study without workloads has no name for it."""
    study = msgspec.structs.replace(sample.STUDY, objective=Objective())
    assert evidence.objective_workload(msgspec.structs.replace(sample.RESULTS, study=study)) == "chat"
    bare = msgspec.structs.replace(study, workloads=())
    assert evidence.objective_workload(msgspec.structs.replace(sample.RESULTS, study=bare)) == ""


def test_trials_without_the_objective_have_no_point() -> None:
    """A failed launch is not drawn; the others have their sides."""
    points = evidence.trial_points(sample.RESULTS)
    assert {point.trial for point in points} == set(range(1, 24)) - {12, 13}
    assert {point.side for point in points} == {"baseline", "recommended", "other"}


# --------------------------------------------------------------------------- search


def test_steps_show_every_verdict_with_its_reason() -> None:
    """Incumbent first, then each alternative; unfinished steps say so."""
    found = rows(table(section(sample.RESULTS, "steps")))
    assert found[0][:3] == ["Choose the engine and variant", "llamacpp F16 threads=1", "incumbent"]
    assert found[1][1:] == ["llamacpp Q4_0 threads=1", "better", "+60 % [+57 %, +63 %]", "2", "yes", "highest gain"]
    assert "Ended because: decided after 2 of 5 repeats." in words(section(sample.RESULTS, "steps"))
    assert "Batching: not finished" in words(section(sample.unfinished(), "steps"))
    assert "No step has been started." in words(section(sample.empty(), "steps"))


def test_failures_alike_stand_in_one_row_with_cause_and_log() -> None:
    """Two launches that failed the same way are one entry with both numbers and the log's lines."""
    found = section(sample.RESULTS, "failures", causes={"out-of-memory": "there was not enough memory"})
    row = rows(table(found))[0]
    assert len(table(found).rows) == 1
    assert row[0] == "12, 13"
    assert row[3] == "out-of-memory: there was not enough memory"
    assert "failed to allocate buffer" in row[4]
    assert "Every launch succeeded." in words(section(sample.no_failures(), "failures"))


def test_an_unknown_cause_stands_as_it_is() -> None:
    """A code without an explanation is still shown, and evidence may be missing."""
    bare = sample.trial(1, sample.KV, step="memory", block=0, outcome=sample.failed("odd", ""))
    row = rows(table(section(msgspec.structs.replace(sample.RESULTS, trials=(bare,)), "failures")))[0]
    assert row[3:] == ["odd", "–"]


def test_validation_lists_the_fresh_comparison() -> None:
    """One row a workload; barred configs with their reasons; and what it means that there is none."""
    found = rows(table(section(sample.RESULTS, "validation")))
    assert found[0] == ["chat", "total throughput", "+98 % [+91 %, +105 %]", "95 %", "5", "kept"]
    assert "loses 7.0% on long" in words(section(sample.barred(), "validation"))
    assert "nothing to confirm" in words(section(sample.no_difference(), "validation"))
    assert "have not been compared" in words(section(sample.unfinished(), "validation"))
    assert "have not been compared" in words(section(sample.empty(), "validation"))


def test_findings_name_the_trials_they_are_about() -> None:
    """The conclusion's findings are the study's; a run's name its trial, once."""
    found = rows(table(section(sample.RESULTS, "findings")))
    assert [row[:3] for row in found] == [["quality-not-checked", "warning", "the study"], ["partial", "warning", "3"]]
    trial = msgspec.structs.replace(sample.RESULTS.trials[2], runs=sample.RESULTS.trials[2].runs * 2)
    doubled = msgspec.structs.replace(sample.RESULTS, trials=(trial,))
    assert rows(table(section(doubled, "findings")))[1][2] == "3"
    assert "Nothing was found" in words(section(sample.empty(), "findings"))


def test_what_was_not_tried_is_listed() -> None:
    """Values and variants that no launch used, open steps, and dropped measurements."""
    found = words(section(sample.RESULTS, "not-tried"))
    assert "llamacpp: ubatch = 128, 512" in found
    assert "llamacpp: flash_attn = false, true" in found
    assert "llamacpp: variants Q4_1" in found
    assert "its workload 'chat' had 20 requests" in found
    assert "The step 'Batching' was not finished." in words(section(sample.unfinished(), "not-tried"))


def test_a_value_that_is_the_default_counts_as_tried() -> None:
    """One value of an axis never stands in a config: it is the engine's default."""
    spec = EngineSpec(name="llamacpp", axes=(Axis(option="ubatch", values=(256, 512)),))
    study = msgspec.structs.replace(sample.STUDY, engines=(spec,))
    results = msgspec.structs.replace(sample.RESULTS, study=study)
    assert list(search.missing_values(results, {"llamacpp": {"ubatch": 512}})) == []
    assert list(search.missing_values(results, {})) == [("llamacpp", ("ubatch", ("512",)))]


def test_many_numbers_are_counted_not_listed() -> None:
    """Twelve trials are named, the rest counted."""
    failed = [
        sample.trial(number, sample.KV, step="memory", block=number, outcome=sample.OUT_OF_MEMORY)
        for number in range(1, 31)
    ]
    found = rows(table(section(msgspec.structs.replace(sample.RESULTS, trials=tuple(failed)), "failures")))
    assert found[0][0].endswith("12 and 18 more")


# --------------------------------------------------------------------------- method, environment, raw


def test_the_method_states_rule_noise_load_and_definitions() -> None:
    """Error rate, smallest gain, noise between and within launches, seeds, warm-up and definitions are there."""
    found = words(section(sample.RESULTS, "method"))
    for text in (
        "at most 5 % for the whole study",
        "reaches 1 %",
        "study seed 7",
        "0.9 %",
        "1.1 %",
        "time to first token",
    ):
        assert text in found
    assert "4 requests/s, burstiness 1, at most 8 in flight" in found
    assert "It takes repeated launches" not in found
    assert "it takes repeated launches" in words(section(sample.empty(), "method"))


def test_a_study_may_minimise_and_demand_quality() -> None:
    """Goal and quality rule are worded by the study."""
    study = msgspec.structs.replace(
        sample.STUDY, quality="required", objective=Objective(metric="mean_e2el_ms", goal="minimize", on="chat")
    )
    found = words(section(msgspec.structs.replace(sample.no_difference(), study=study), "method"))
    assert "minimises mean E2EL on chat" in found
    assert "unless its answers are checked" in found


def test_the_environment_names_host_engines_and_client() -> None:
    """Versions with their launches, and the worst of what the client says of itself."""
    found = section(sample.RESULTS, "environment")
    assert "AMD EPYC 7763, 2 cores" in words(found)
    assert rows(table(found)) == [["llamacpp", "b7040 (llama.cpp)", "22"], ["mock", "b7040 (llama.cpp)", "1"]]
    assert "the kernel (41)" in words(found)
    empty = section(sample.empty(), "environment")
    assert "The machine was not recorded." in words(empty)
    assert not any(isinstance(part, Table) for part in empty.parts)


def test_facts_that_the_host_lacks_are_left_out() -> None:
    """No load average, no packages: no empty lines."""
    host = msgspec.structs.replace(sample.HOST, load_average=None, packages={}, gpus=("H100",))
    found = section(msgspec.structs.replace(sample.RESULTS, host=host), "environment").parts[0]
    assert isinstance(found, Facts)
    assert not {"Load average at the start", "Packages"} & {name for name, _ in found.items}
    assert ("GPUs", "H100") in found.items


def test_every_run_is_in_the_table_of_trials() -> None:
    """One row a run, one for a launch without any, failures and failed requests in red."""
    found = table(section(sample.RESULTS, "trials"))
    assert len(found.rows) == sum(max(1, len(trial.runs)) for trial in sample.RESULTS.trials)
    failed = next(row for row in found.rows if row[0].text == "12")
    assert failed[3] == Cell(text="failed: out-of-memory", tone="bad")
    assert next(row for row in found.rows if row[0].text == "3")[5] == Cell(text="11/12", tone="bad")


def test_every_run_has_its_raw_block_and_every_launch_its_command() -> None:
    """Folds hold the exact command, the evidence of a failure, and one block a run."""
    folds = [part for part in section(sample.RESULTS, "raw").parts if isinstance(part, Fold)]
    assert len(folds) == len(sample.RESULTS.trials)
    blocks = [
        part for fold in folds for part in fold.parts if isinstance(part, Code) and "Benchmark Result" in part.text
    ]
    assert len(blocks) == sum(len(trial.runs) for trial in sample.RESULTS.trials)
    failed = [part.text for part in folds[11].parts if isinstance(part, Code)]
    assert "unable to load model" in failed[1]
    silent = sample.trial(1, sample.KV, step="memory", block=0, outcome=sample.failed("hung", ""))
    alone = section(msgspec.structs.replace(sample.RESULTS, trials=(silent,)), "raw").parts[1]
    assert isinstance(alone, Fold)
    assert sum(isinstance(part, Code) for part in alone.parts) == 1


def test_the_study_file_is_part_of_the_report() -> None:
    """As it was used, without a line too many."""
    assert section(sample.RESULTS, "study").parts == (Code(text="[study]", language="toml"),)


def test_nothing_to_draw_is_said() -> None:
    """Without a measurement there is a sentence in place of the charts, and no baseline to compare."""
    assert "nothing to draw" in words(section(sample.empty(), "charts"))
    assert any(isinstance(part, Paragraph) for part in section(sample.empty(), "before-after").parts)
    assert any(isinstance(part, Bullets) for part in section(sample.empty(), "not-tried").parts)


def test_metrics_have_names_and_units() -> None:
    """Latencies are composed from statistic and latency; unknown names and unitless metrics stand alone."""
    say = Phrases()
    assert say.metric_title("p99_ttft_ms") == "p99 TTFT (ms)"
    assert say.metric_title("success_rate") == "Success rate"
    assert say.metric("duration_s") == metrics.METRICS["duration_s"].label
    assert say.metric("goodput") == "goodput"
    assert say.metric_title("goodput") == "Goodput"


def test_limits_without_a_known_metric_are_printed_bare() -> None:
    """A bound that METRICS does not know is an upper one without a unit."""
    study = msgspec.structs.replace(sample.STUDY, limits=Limits(bounds={"goodput": 3.0}))
    found = words(section(msgspec.structs.replace(sample.RESULTS, study=study), "method"))
    assert "goodput ≤ 3.000" in found


def test_load_without_a_rate_may_be_capped() -> None:
    """All at once with a cap is worded as both."""
    spec = msgspec.structs.replace(sample.WORKLOADS[0], load=Load(max_concurrency=16))
    study = msgspec.structs.replace(sample.STUDY, workloads=(spec,))
    found = words(section(msgspec.structs.replace(sample.RESULTS, study=study), "method"))
    assert "all requests at once, at most 16 in flight" in found
