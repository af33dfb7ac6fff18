"""A study file is read whole: right ones become a Study, wrong ones tell every mistake with its path and a remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from servetune import engines, presets, studyfile, workloads
from servetune.errors import StudyFileError, UserError
from servetune.records import Axis, Budget, Config, Limits, Load, Objective, Study, Variant
from servetune.studyfile import schema
from tests.unit.study_texts import CATALOGUES, KINDS, RIGHT, mistakes, read, with_engine, with_lines

ROOT = Path(__file__).parents[2]


# --------------------------------------------------------------------------- right files


def test_the_smallest_file_gets_every_default() -> None:
    """A study needs a name, a model, an engine and a workload; all else has the defaults of the records."""
    study = read(RIGHT)
    assert study.baseline == Config(engine="alpha")
    assert study.objective == Objective(on="short")
    assert (study.limits, study.budget) == (Limits(), Budget())
    assert (study.definitions, study.quality, study.search, study.seed) == ("strict", "report", "staged", 0)
    assert study.workloads[0].load == Load()


def test_defaults_of_the_reference_are_those_of_the_records() -> None:
    """What the reference page calls the default is what an absent key gives."""
    study = read(RIGHT)
    for table, record in ((schema.STUDY, study), (schema.OBJECTIVE, study.objective), (schema.BUDGET, study.budget)):
        for key in table.keys:
            if key.default is not None and hasattr(record, key.name):
                assert getattr(record, key.name) == key.default, key.name
    for key in schema.LOAD_KEYS:
        assert getattr(Load(), key.name) == key.default, key.name
    assert study.engines[0].ready_timeout_s == schema.ENGINE.key("ready_timeout_s").default


def test_a_full_file_is_read_key_by_key() -> None:
    """Every table and every form of a key arrives where it belongs."""
    study = read(
        with_lines(
            "[study]",
            'baseline = { engine = "alpha", variant = "small", options = { flash = true, kv_type = "q8_0" } }',
            'definitions = "vllm-0.11"',
            'quality = "required"',
            'tokenizer = "some/tokenizer"',
            "seed = 7",
        ).replace(
            'name = "alpha"\n',
            'name = "alpha"\ncommand = "alpha-server"\nready_timeout_s = 20\n[engine.options]\nratio = 1\n'
            "[engine.axes]\nmax_num_seqs = [8, 16]\nflash = [false, true]\n[engine.env]\nMODE = 'x'\n"
            "[[engine.variant]]\nname = 'small'\nquantize = 'Q4_0'\nnote = 'made'\n"
            "[[engine.variant]]\nname = 'other'\nmodel = 'some/other'\n",
        )
        + "input_len = 5\nseed = 3\nrequest_rate = 2\nmax_concurrency = 4\n"
        + "[objective]\nminimize = 'mean_ttft_ms'\nmin_gain = 0\nconfidence = 0.9\n"
        + "[limits]\np99_ttft_ms = 100\nsuccess_rate = 1\nmax_loss = 0\n"
        + "[budget]\nminutes = 1.5\nmax_repeats = 3\nmax_configs = 9\nruns_per_launch = 2\n"
    )
    engine, workload = study.engines[0], study.workloads[0]
    assert study.baseline == Config(
        engine="alpha", variant="small", options={"flash": True, "kv_type": "q8_0", "ratio": 1.0}
    )
    assert (study.definitions, study.quality, study.tokenizer, study.seed) == (
        "vllm-0.11",
        "required",
        "some/tokenizer",
        7,
    )
    assert (engine.command, engine.ready_timeout_s, engine.options) == ("alpha-server", 20.0, {"ratio": 1.0})
    assert engine.axes == (Axis(option="max_num_seqs", values=(8, 16)), Axis(option="flash", values=(False, True)))
    assert engine.variants == (
        Variant(name="small", quantize="Q4_0", note="made"),
        Variant(name="other", model="some/other"),
    )
    assert engine.env == {"MODE": "x"}
    assert (workload.params, workload.seed) == ({"input_len": 5}, 3)
    assert workload.load == Load(request_rate=2.0, max_concurrency=4)
    assert study.objective == Objective(
        metric="mean_ttft_ms", goal="minimize", on="short", min_gain=0.0, confidence=0.9
    )
    assert study.limits == Limits(bounds={"p99_ttft_ms": 100.0, "success_rate": 1.0}, max_loss=0.0)
    assert study.budget == Budget(seconds=90.0, max_repeats=3, max_configs=9, runs_per_launch=2)


def test_whole_numbers_become_floats_where_the_option_is_one() -> None:
    """`ratio = 1` and `ratio = 1.0` are the same study."""
    value = read(with_engine("[engine.options]", "ratio = 1")).engines[0].options["ratio"]
    assert isinstance(value, float)


def test_the_baseline_takes_the_first_variant() -> None:
    """Without a variant in `baseline`, it is the engine's first; the study's bare model is not measured then."""
    study = read(with_engine("[[engine.variant]]", 'name = "a"', "[[engine.variant]]", 'name = "b"'))
    assert study.baseline.variant == "a"


def test_the_baseline_repeats_nothing_that_holds_anyway() -> None:
    """An option at its default is left out, unless it undoes a fixed one."""
    plain = with_lines("[study]", 'baseline = { engine = "alpha", options = { max_num_seqs = 32 } }')
    assert read(plain).baseline.options == {}
    undone = plain.replace('name = "alpha"\n\n', 'name = "alpha"\n[engine.options]\nmax_num_seqs = 64\n\n')
    assert read(undone).baseline.options == {"max_num_seqs": 32}


def test_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    """Models, tokenizers, data and programs named by path are found beside the study file, from any folder."""
    for name in ("m.gguf", "data.json"):
        (tmp_path / name).write_text("x")
    (tmp_path / "tok").mkdir()
    path = tmp_path / "s.toml"
    path.write_text(
        RIGHT.replace("some/model", "m.gguf")
        .replace('kind = "random"', 'kind = "file"\npath = "./data.json"')
        .replace("[study]", '[study]\ntokenizer = "tok"')
        .replace('name = "alpha"', 'name = "alpha"\ncommand = "bin/server"\npython = "python3.12"')
    )
    study = studyfile.load(path, catalogues=CATALOGUES, kinds=KINDS)
    assert (study.model, study.tokenizer) == (str(tmp_path / "m.gguf"), str(tmp_path / "tok"))
    assert study.workloads[0].params["path"] == str(tmp_path / "data.json")
    assert (study.engines[0].command, study.engines[0].python) == (str(tmp_path / "bin/server"), "python3.12")


def test_a_server_that_runs_needs_no_model() -> None:
    """An engine that is only reached is varied by its load, and knows its model itself."""
    study = read(
        RIGHT.replace('model = "some/model"\n', "").replace(
            'name = "alpha"\n', 'name = "remote"\nurl = "http://127.0.0.1:9"\naxes = { concurrency = [1, 2] }\n'
        )
    )
    assert (study.model, study.engines[0].url) == ("", "http://127.0.0.1:9")
    assert study.engines[0].axes[0].option == "concurrency"


def test_the_documented_example_loads() -> None:
    """docs/examples/llamacpp.toml is right against the real catalogues and workloads, and survives a rewrite."""
    study = studyfile.load(ROOT / "docs/examples/llamacpp.toml", **_real())  # type: ignore[arg-type]
    assert studyfile.parse(studyfile.dump(study), **_real()) == study  # type: ignore[arg-type]


def test_the_example_of_the_readme_loads(tmp_path: Path) -> None:
    """What a newcomer copies is right against the real catalogues, once the model is there."""
    text = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    (tmp_path / "models").mkdir()
    (tmp_path / "models/my-model.gguf").touch()
    assert len(studyfile.parse(text, folder=tmp_path, **_real()).engines[0].axes) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "study",
    [presets.demo(), presets.for_endpoint("http://127.0.0.1:1", minutes=1.25)],
    ids=["demo", "endpoint"],
)
def test_preset_studies_survive_a_rewrite(study: Study) -> None:
    """What the presets make can be written into the study folder and read again."""
    assert studyfile.parse(studyfile.dump(study), **_real()) == study  # type: ignore[arg-type]


def _real() -> dict[str, object]:
    catalogues = {name: engines.get(name).catalogue() for name in engines.ENGINES}
    return {"catalogues": catalogues, "kinds": {name: kind.params for name, kind in workloads.KINDS.items()}}


# --------------------------------------------------------------------------- mistakes


WRONG = {
    "unknown table": (RIGHT + "[budgt]\n", '$.budgt: is not a key of this table (did you mean "budget"?'),
    "unknown key": (with_lines("[study]", "sed = 1"), '$.study.sed: is not a key of this table (did you mean "seed"?'),
    "unknown key of engine": (
        with_engine("axis = {}"),
        '$.engine[0].axis: is not a key of this table (did you mean "axes"?',
    ),
    "unknown key of variant": (
        with_engine("[[engine.variant]]", 'name = "a"', 'quantise = "F16"'),
        '$.engine[0].variant[0].quantise: is not a key of this table (did you mean "quantize"?',
    ),
    "unknown key of workload": (
        RIGHT + "input-len = 4\n",
        '$.workload[0].input-len: is not a key of this table (did you mean "input_len"?',
    ),
    "wrong type": (with_lines("[study]", 'seed = "1"'), '$.study.seed: "1" is not a whole number'),
    "bool is no number": (with_lines("[study]", "seed = true"), "$.study.seed: true is not a whole number"),
    "date": (with_lines("[study]", "seed = 2020-01-01"), "$.study.seed: 2020-01-01 is not a whole number"),
    "section is no table": ("limits = 3\n" + RIGHT, "$.limits: 3 is not a table (begin it with a line [limits])"),
    "section is no list": (
        RIGHT.replace("[[workload]]", "[workload]"),
        "$.workload: a table is not a list of tables (begin it with a line [[workload]])",
    ),
    "list entry is no table": (
        "engine = [1]\n" + RIGHT.replace('[[engine]]\nname = "alpha"\n', ""),
        "$.engine[0]: 1 is not a table (begin it with a line [[engine]])",
    ),
    "no engine": (RIGHT.replace('[[engine]]\nname = "alpha"\n', ""), "$.engine: is missing"),
    "empty list": (
        "engine = []\n" + RIGHT.replace('[[engine]]\nname = "alpha"\n', ""),
        "$.engine: is empty (begin one with a line [[engine]])",
    ),
    "no model": (RIGHT.replace('model = "some/model"\n', ""), "$.study.model: is missing"),
    "empty model": (RIGHT.replace("some/model", " "), "$.study.model: is empty"),
    "not a model": (RIGHT.replace("some/model", "some model"), '$.study.model: "some model" is neither a path nor'),
    "no model file": (RIGHT.replace("some/model", "none.GGUF"), "$.study.model: there is no file or folder"),
    "no home": (RIGHT.replace("some/model", "~nobody-here/x"), "$.study.model: there is no file or folder"),
    "zero byte": (RIGHT.replace("some/model", "a\\u0000b"), "$.study.model: "),
    "bad name": (RIGHT.replace('"right"', '"../up"'), '$.study.name: "../up" cannot be part of a file name'),
    "unknown definitions": (
        with_lines("[study]", 'definitions = "vllm-0.12"'),
        '$.study.definitions: "vllm-0.12" is not known (did you mean "vllm-0.11"?',
    ),
    "unknown quality": (with_lines("[study]", 'quality = "no"'), "$.study.quality: "),
    "unknown search": (with_lines("[study]", 'search = "stage"'), 'did you mean "staged"?'),
    "unknown engine": (
        RIGHT.replace("alpha", "alpa"),
        '$.engine[0].name: there is no engine "alpa" (did you mean "alpha"?',
    ),
    "engine twice": (RIGHT + '[[engine]]\nname = "alpha"\n', '$.engine[1].name: "alpha" is named twice'),
    "unknown option": (
        with_engine("[engine.options]", "max_num_seq = 3"),
        '$.engine[0].options.max_num_seq: is not an option of alpha (did you mean "max_num_seqs"?',
    ),
    "unknown axis": (
        with_engine("[engine.axes]", "max-num-seqs = [3, 4]"),
        '$.engine[0].axes.max-num-seqs: is not an option of alpha (did you mean "max_num_seqs"?',
    ),
    "quoted name": (
        with_engine("[engine.options]", '"a b" = 3'),
        '$.engine[0].options."a b": is not an option of alpha (allowed:',
    ),
    "out of range": (
        with_engine("[engine.options]", "max_num_seqs = 0"),
        "$.engine[0].options.max_num_seqs: 0 is not accepted (must be a whole number from 1 to 1024)",
    ),
    "fraction": (with_engine("[engine.options]", "max_num_seqs = 1.5"), "1.5 is not accepted"),
    "not a choice": (with_engine("[engine.options]", "block = 4"), "4 is not accepted (must be one of 1, 8, 16)"),
    "true is not 1": (with_engine("[engine.options]", "block = true"), "true is not accepted"),
    "not a bool": (with_engine("[engine.options]", "flash = 1"), "1 is not accepted (must be true or false)"),
    "not a text": (with_engine("[engine.options]", "label = 1"), "1 is not accepted (must be a text)"),
    "text for a number": (with_engine("[engine.options]", 'ratio = "1"'), '"1" is not accepted'),
    "list for a value": (with_engine("[engine.options]", "ratio = [1]"), "[1] is not accepted"),
    "not finite": (with_engine("[engine.options]", "ratio = nan"), "nan is not accepted"),
    "huge": (with_engine("[engine.options]", f"threads = {10**400}"), "is not accepted"),
    "one value": (with_engine("[engine.axes]", "flash = [true]"), "$.engine[0].axes.flash: has 1 of at least 2 values"),
    "no value": (with_engine("[engine.axes]", "flash = []"), "$.engine[0].axes.flash: has 0 of at least 2 values"),
    "value twice": (
        with_engine("[engine.axes]", "flash = [true, false, true]"),
        "$.engine[0].axes.flash[2]: true is listed twice",
    ),
    "axis is no list": (with_engine("[engine.axes]", "flash = true"), "$.engine[0].axes.flash: true is not a list"),
    "axis value": (
        with_engine("[engine.axes]", 'flash = [true, "x"]'),
        '$.engine[0].axes.flash[1]: "x" is not accepted',
    ),
    "axis without its start": (
        with_engine("[engine.options]", "threads = 4", "[engine.axes]", "threads = [1, 2]"),
        "$.engine[0].axes.threads: does not hold 4, the value that $.engine[0].options starts from (add it to the axis",
    ),
    "axis without its start, a choice": (
        with_engine("[engine.options]", "block = 1", "[engine.axes]", "block = [8, 16]"),
        "$.engine[0].axes.block: does not hold 1",
    ),
    "load axis": (with_engine("[engine.axes]", "rate = [1, 2]"), "$.engine[0].axes.rate: is set by the load"),
    "condition of a fixed option": (
        with_engine("[engine.options]", 'kv_type = "q8_0"'),
        '$.engine[0].options.kv_type: "q8_0" needs flash = true, which is false here',
    ),
    "condition of an axis": (
        with_engine("[engine.axes]", 'kv_type = ["f16", "q8_0"]'),
        '$.engine[0].axes.kv_type[1]: "q8_0" needs flash = true, which is false here',
    ),
    "variant twice": (
        with_engine("[[engine.variant]]", 'name = "a"', "[[engine.variant]]", 'name = "a"'),
        '$.engine[0].variant[1].name: "a" is the name of an earlier variant',
    ),
    "two sources of weights": (
        with_engine("[[engine.variant]]", 'name = "a"', 'model = "x/y"', 'quantize = "F16"'),
        "$.engine[0].variant[0].quantize: cannot stand beside model",
    ),
    "unknown quantisation": (
        with_engine("[[engine.variant]]", 'name = "a"', 'quantize = "Q4_2"'),
        '$.engine[0].variant[0].quantize: "Q4_2" is not known (did you mean',
    ),
    "no address": (RIGHT.replace("alpha", "remote"), "$.engine[0].url: is missing"),
    "address of a started engine": (with_engine('url = "http://x"'), "$.engine[0].url: cannot be given for alpha"),
    "no http": (
        RIGHT.replace('name = "alpha"', 'name = "remote"\nurl = "key@host"'),
        "$.engine[0].url: is not an address of a server",
    ),
    "timeout": (with_engine("ready_timeout_s = 0"), "$.engine[0].ready_timeout_s: 0 is out of range (must be above 0"),
    "env value": (with_engine("[engine.env]", "A = 1"), "$.engine[0].env.A: the value is not a text"),
    "env zero byte": (with_engine("[engine.env]", 'A = "\\u0000"'), "$.engine[0].env.A: the value holds a zero byte"),
    "env name": (with_engine("[engine.env]", '"A=B" = "1"'), "cannot be the name of an environment variable"),
    "baseline engine": (
        with_lines("[study]", 'baseline = "alpah"'),
        '$.study.baseline: there is no engine "alpah" in this study (did you mean "alpha"?',
    ),
    "baseline engine in a table": (
        with_lines("[study]", 'baseline = { engine = "beta" }'),
        '$.study.baseline.engine: there is no engine "beta" in this study',
    ),
    "baseline without engine": (with_lines("[study]", "baseline = {}"), "$.study.baseline.engine: is missing"),
    "baseline type": (with_lines("[study]", "baseline = 3"), "$.study.baseline: 3 is not a text or table"),
    "baseline variant": (
        with_lines("[study]", 'baseline = { engine = "alpha", variant = "x" }'),
        '$.study.baseline.variant: there is no variant "x" of alpha (none is allowed here)',
    ),
    "baseline option": (
        with_lines("[study]", 'baseline = { engine = "alpha", options = { max = 3 } }'),
        "$.study.baseline.options.max: is not an option of alpha",
    ),
    "baseline condition": (
        with_lines("[study]", 'baseline = { engine = "alpha", options = { kv_type = "q8_0" } }'),
        '$.study.baseline.options.kv_type: "q8_0" needs flash = true',
    ),
    "unknown kind": (
        RIGHT.replace('"random"', '"randm"'),
        '$.workload[0].kind: there is no workload "randm" (did you mean "random"?',
    ),
    "parameter value": (RIGHT + "input_len = 0\n", "$.workload[0].input_len: 0 is not accepted"),
    "no requests": (RIGHT.replace("= 10", "= 0"), "$.workload[0].num_prompts: 0 is out of range (must be at least 1"),
    "number missing": (RIGHT.replace("num_prompts = 10\n", ""), "$.workload[0].num_prompts: is missing"),
    "workload twice": (
        RIGHT + '[[workload]]\nname = "short"\nkind = "random"\nnum_prompts = 1\n',
        '$.workload[1].name: "short" is the name of an earlier workload',
    ),
    "no data file": (
        RIGHT.replace('"random"', '"file"\npath = "none.json"'),
        "$.workload[0].path: there is no file",
    ),
    "request rate": (RIGHT + "request_rate = 0\n", "$.workload[0].request_rate: 0 is out of range (must be above 0)"),
    "infinite rate": (RIGHT + "request_rate = inf\n", "$.workload[0].request_rate: inf is out of range"),
    "concurrency": (RIGHT + "max_concurrency = 0\n", "$.workload[0].max_concurrency: 0 is out of range"),
    "objective workload": (
        with_lines("[objective]", 'on = "shor"'),
        '$.objective.on: there is no workload "shor" (did you mean "short"?',
    ),
    "both goals": (
        with_lines("[objective]", 'maximize = "output_throughput"', 'minimize = "mean_ttft_ms"'),
        "$.objective.minimize: cannot stand beside maximize",
    ),
    "unknown metric": (
        with_lines("[objective]", 'maximize = "output_thruput"'),
        '$.objective.maximize: "output_thruput" is not known (did you mean "output_throughput"?',
    ),
    "wrong goal": (
        with_lines("[objective]", 'maximize = "mean_ttft_ms"'),
        "$.objective.maximize: mean_ttft_ms is better the other way round (write minimize = ...)",
    ),
    "confidence": (
        with_lines("[objective]", "confidence = 0.5"),
        "$.objective.confidence: 0.5 is out of range (must be above 0.5 and below 1)",
    ),
    "certainty": (with_lines("[objective]", "confidence = 1"), "$.objective.confidence: 1 is out of range"),
    "negative gain": (with_lines("[objective]", "min_gain = -0.1"), "$.objective.min_gain: -0.1 is out of range"),
    "unknown limit": (
        with_lines("[limits]", "p98_ttft_ms = 3"),
        "$.limits.p98_ttft_ms: is not a key of this table (did you",
    ),
    "negative limit": (
        with_lines("[limits]", "output_throughput = -1"),
        "$.limits.output_throughput: -1 is out of range",
    ),
    "success above one": (with_lines("[limits]", "success_rate = 1.1"), "$.limits.success_rate: 1.1 is out of range"),
    "negative loss": (with_lines("[limits]", "max_loss = -0.1"), "$.limits.max_loss: -0.1 is out of range"),
    "limits in conflict": (
        with_lines("[limits]", "p99_ttft_ms = 10", "median_ttft_ms = 20"),
        "$.limits.p99_ttft_ms: 10 conflicts with median_ttft_ms = 20",
    ),
    "mean in conflict": (
        with_lines("[limits]", "p99_itl_ms = 10", "mean_itl_ms = 20"),
        "$.limits.p99_itl_ms: 10 conflicts with mean_itl_ms = 20",
    ),
    "no budget": (with_lines("[budget]", "hours = 0"), "$.budget.hours: 0 is out of range (must be above 0"),
    "two budgets": (with_lines("[budget]", "hours = 1", "seconds = 1"), "$.budget.seconds: cannot stand beside hours"),
    "one repeat": (
        with_lines("[budget]", "max_repeats = 1"),
        "$.budget.max_repeats: 1 is out of range (must be at least 2",
    ),
}


@pytest.mark.parametrize(("text", "expected"), WRONG.values(), ids=WRONG.keys())
def test_each_mistake_is_named_with_its_path(text: str, expected: str, tmp_path: Path) -> None:
    """One spoiled place gives exactly one message, with path, what is allowed and the nearest right name."""
    found = mistakes(text, tmp_path)
    assert len(found) == 1, found
    assert found[0].startswith("study.toml $.")
    assert expected in found[0]


def test_percentiles_in_order_are_no_conflict() -> None:
    """Bounds that rise with the percentile, or that concern different latencies, stand beside each other."""
    lines = ("median_ttft_ms = 10", "p99_ttft_ms = 20", "mean_itl_ms = 30", "p90_ttft_ms = 10")
    assert mistakes(with_lines("[limits]", *lines)) == []


def test_conditions_that_some_config_meets_are_no_mistake() -> None:
    """An axis may hold the needed value, a fixed option may be it, and what the engine decides may turn out right."""
    met = with_engine(
        "[engine.options]", "pinned = true", "[engine.axes]", 'kv_type = ["f16", "q8_0"]', "flash = [false, true]"
    )
    assert mistakes(met) == []


def test_an_axis_may_start_from_a_set_option() -> None:
    """An option may be set and varied: the engine's first config has the set value."""
    study = read(with_engine("[engine.options]", "threads = 4", "[engine.axes]", "threads = [2, 4]"))
    assert study.baseline.options == {"threads": 4}


def test_all_mistakes_are_told_at_once() -> None:
    """Spoiling many places gives as many messages, and the header counts them."""
    text = (
        RIGHT.replace('"right"', "3").replace("alpha", "alpa").replace("= 10", "= -1")
        + "[budget]\nhours = -1\n[objective]\nconfidence = 2\n[limits]\nx = 1\n"
    )
    with pytest.raises(StudyFileError) as caught:
        read(text)
    assert len(caught.value.mistakes) == 6
    assert str(caught.value).startswith("study.toml: 6 mistakes\n  study.toml $.study.name: 3 is not a text\n")
    assert caught.value.exit_code == 2


def test_secrets_never_appear_in_messages() -> None:
    """Environment values and addresses are not repeated, however wrong they are."""
    text = with_engine('url = "http://me:hunter2@x"', "[engine.env]", 'KEY = ["hunter2"]', 'OTHER = "hunter2\\u0000"')
    found = mistakes(text) + mistakes(with_engine('url = ["hunter2"]', 'env = "hunter2"'))
    assert len(found) == 5
    assert not re.search("hunter2", "\n".join(found))


# --------------------------------------------------------------------------- files that are no study files


def _refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        studyfile.load(path, catalogues=CATALOGUES, kinds=KINDS)
    return str(caught.value)


def test_what_is_no_file_is_said_so(tmp_path: Path) -> None:
    """A missing file and a folder are told apart."""
    assert "there is no such file" in _refusal(tmp_path / "none.toml")
    assert "is a folder" in _refusal(tmp_path)
    assert "cannot be read" in _refusal(Path("a\0b"))


def test_what_is_no_text_is_said_so(tmp_path: Path) -> None:
    """Other bytes than UTF-8 are named with their line; an empty file and a huge one are named too."""
    path = tmp_path / "s.toml"
    path.write_bytes(b"[study]\nname = '\xff'\n")
    assert "is not UTF-8 text (line 2)" in _refusal(path)
    path.write_bytes(b" \n")
    assert "is empty" in _refusal(path)
    path.write_bytes(b"#" * (1 << 20) + b"\n")
    assert "is larger than 1 MiB" in _refusal(path)


def test_syntax_errors_name_the_line(tmp_path: Path) -> None:
    """What is not TOML is told with line and column."""
    path = tmp_path / "s.toml"
    path.write_text("[study]\nname = \n")
    assert re.search(r"is not valid TOML: .*line 2", _refusal(path))
    path.write_text("a = " + "[" * 5000)
    assert "is nested too deeply" in _refusal(path)


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    """Editors that write one make no mistake."""
    path = tmp_path / "s.toml"
    path.write_bytes(b"\xef\xbb\xbf" + RIGHT.encode())
    assert studyfile.load(path, catalogues=CATALOGUES, kinds=KINDS).name == "right"
