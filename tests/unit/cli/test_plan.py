"""`servetune plan`: steps, counts, time and commands of a study, with nothing started."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from servetune import presets
from servetune.cli import plan as plan_command
from servetune.cli.main import servetune
from servetune.cli.plan import ASSUMED_RUN_S, ASSUMED_START_S, estimate, make_plan
from servetune.errors import UserError
from servetune.records import Budget, ClientFacts, Command, Study, Trial
from servetune.search.plan import Span, Totals
from tests.unit import tiny_gguf

TEXT = """\
[study]
name = "planned"
model = "mock-model"
[budget]
minutes = 90
max_repeats = 3
[[engine]]
name = "mock"
[engine.options]
speed = 10.0
[engine.axes]
max_num_seqs = [8, 64]
[engine.env]
HF_TOKEN = "hunter2"
[[workload]]
name = "chat"
kind = "chat"
num_prompts = 8
"""


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    """A study of the mock engine."""
    path = tmp_path / "study.toml"
    path.write_text(TEXT)
    return path


def run(*arguments: object) -> Result:
    """Run plan in this process."""
    return CliRunner().invoke(servetune, ["plan", *map(str, arguments)])


def test_plan_prints_steps_time_and_every_command(study_file: Path) -> None:
    """Text for people: counts, the stated assumption, one command for each config; secrets are masked."""
    result = run(study_file)
    assert result.exit_code == 0, result.output
    text = result.stderr
    assert "study planned: 6 to 15 launches, 6 to 15 runs" in text
    assert "assumed, since nothing is measured yet" in text
    assert "batching: max_num_seqs (if mock leads)" in text
    assert "--max-num-seqs 8" in text
    assert "--max-num-seqs 64" in text
    assert "hunter2" not in result.output


def test_plan_as_json(study_file: Path) -> None:
    """A program gets the same figures and the commands as lists."""
    made = json.loads(run(study_file, "--json").stdout)
    assert made["totals"]["launches"] == {"least": 6, "most": 15}
    assert [launch["label"] for launch in made["launches"]] == [
        "mock speed=10.0",
        "mock max_num_seqs=8 speed=10.0",
        "mock max_num_seqs=64 speed=10.0",
    ]
    assert "8000" in made["launches"][0]["command"]["argv"]
    assert made["missing"] == []


def test_mistakes_end_with_2(study_file: Path) -> None:
    """All mistakes of the file are told, and nothing else."""
    study_file.write_text(TEXT.replace("chat", "chta").replace("minutes", "minuets"))
    result = run(study_file)
    assert result.exit_code == 2
    assert result.stderr.count("did you mean") == 2
    assert run().exit_code == 2
    assert run(study_file, "--demo").exit_code == 2


def test_mistakes_that_only_the_workload_sees_are_told(study_file: Path) -> None:
    """Parameters that are right one by one and wrong together are found before anything starts."""
    study_file.write_text(TEXT + "input_mean = 500\noutput_mean = 500\nmax_total = 100\n")
    result = run(study_file)
    assert result.exit_code == 2
    assert "workload.chat.max_total" in result.stderr


def test_without_any_engine_the_plan_ends_with_3(study_file: Path) -> None:
    """Everything is shown with the engine's name as its command; then the remedy and exit code 3."""
    study_file.write_text(
        TEXT.replace('"mock"', '"llamacpp"\ncommand = "/nowhere/llama-server"')
        .replace("speed = 10.0", "parallel = 2")
        .replace("max_num_seqs = [8, 64]", "threads = [1, 2]")
    )
    result = run(study_file)
    assert result.exit_code == 3
    assert "--parallel 2" in result.stderr or "-np 2" in result.stderr
    assert "error: none of the study's engines is installed" in result.stderr


def test_the_demo_can_be_planned() -> None:
    """`plan --demo` shows the four variants and what is not made yet, and fetches nothing."""
    result = run("--demo")
    assert result.exit_code == 0, result.output
    assert "Engine and model variant" in result.stderr
    for variant in ("F16", "Q8_0", "Q4_0"):
        assert f"smollm2-135m-instruct.{variant}.gguf" in result.stderr
    assert "not a file here yet" in result.stderr


def test_a_model_file_is_weighed(tmp_path: Path) -> None:
    """A file that is here is told with its size; a variant that is still to be made has none."""
    model = tiny_gguf.write(tmp_path / "m.gguf")
    study = msgspec.structs.replace(presets.demo(), model=str(model))
    made = make_plan(study, tmp_path)
    assert made.weights[0].gib == pytest.approx(model.stat().st_size / 2**30)
    assert made.weights[1].gib is None


def test_a_damaged_model_file_is_told(tmp_path: Path) -> None:
    """What tune would refuse, plan refuses too."""
    model = tmp_path / "m.gguf"
    model.write_bytes(b"hello")
    study = msgspec.structs.replace(presets.demo(), model=str(model))
    with pytest.raises(UserError, match="is not a GGUF file"):
        make_plan(study, tmp_path)


# --------------------------------------------------------------------------- time

TOTALS = Totals(launches=Span(least=2, most=4), runs=Span(least=2, most=8))


def _study(seconds: float) -> Study:
    return msgspec.structs.replace(presets.demo(), budget=Budget(seconds=seconds))


def test_time_is_assumed_before_anything_is_measured() -> None:
    """Assumed figures are flagged, and the budget caps the estimate."""
    found = estimate(_study(300), TOTALS, ())
    assert found.is_assumed
    assert (found.least_s, found.most_s) == (
        2 * ASSUMED_START_S + 2 * ASSUMED_RUN_S,
        4 * ASSUMED_START_S + 8 * ASSUMED_RUN_S,
    )
    assert estimate(_study(100), TOTALS, ()).most_s == 100


def _trial(number: int, wall_s: float, *durations: float) -> Trial:
    """A launch of `wall_s` seconds with one run of each duration; without any, one that failed."""
    template = {"definitions": "strict", "completed": 1, "failed": 0, "latency": {}, "token_source": "usage"}
    rates = dict.fromkeys(("request_throughput", "output_throughput", "total_token_throughput"), 1.0)
    counts = {"total_input_tokens": 1, "total_output_tokens": 1, "peak_output_throughput": None, "peak_concurrency": 1}
    client = {name: 0 for name in ClientFacts.__struct_fields__ if name not in ("stamps", "api", "aborted")}
    runs = [
        {
            "workload": "chat",
            "repeat": place,
            "seed": 1,
            "load": {},
            "client": {**client, "stamps": "user"},
            "summary": {**template, **rates, **counts, "duration_s": duration},
        }
        for place, duration in enumerate(durations)
    ]
    wanted = {"config": {"engine": "mock"}, "runs": [], "step": "engine", "block": 1, "role": "incumbent"}
    rest = {"outcome": {"type": "completed"}, "command": {"argv": []}, "wall_s": wall_s}
    return msgspec.convert({"number": number, "measurement": wanted, "runs": runs, **rest}, Trial)


def test_time_rests_on_earlier_launches_once_there_are_any() -> None:
    """Means of launches that made runs replace the assumptions; those that failed do not count."""
    found = estimate(_study(3000), TOTALS, (_trial(1, 10, 2, 4), _trial(2, 12, 3), _trial(3, 900)))
    assert (found.start_s, found.run_s, found.is_assumed) == ((22 - 9) / 2, 3.0, False)
    assert found.basis == "means of 2 earlier launches"
    assert found.most_s == 4 * 6.5 + 8 * 3.0


def test_what_is_refused_or_left_out_is_said(study_file: Path) -> None:
    """A config that can never start and one without room are named with the reason."""
    study_file.write_text(
        TEXT.replace("max_repeats = 3", "max_repeats = 3\nmax_configs = 2").replace("[8, 64]", "[8, 16, 64]")
    )
    assert "batching: max_num_seqs: 2 left out by budget.max_configs" in run(study_file).stderr
    study_file.write_text(
        TEXT.replace('"mock"', '"llamacpp"')
        .replace("speed = 10.0", 'flash_attn = "off"')
        .replace("max_num_seqs = [8, 64]", 'flash_attn = ["off", "on"]\ncache_type_v = ["f16", "q8_0"]')
    )
    text = run(study_file).stderr
    assert "never started: llamacpp cache_type_v=q8_0 flash_attn=off: cache_type_v=q8_0 needs flash_attn=" in text


def test_an_endpoint_is_planned_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that runs already is not started, and that is said."""
    study = presets.for_endpoint("http://127.0.0.1:1", minutes=1)
    made = make_plan(study, Path("nowhere"))
    plan_command._say_plan(made)
    assert made.launches[0].command == Command(argv=())
    assert "(runs already; nothing is started)" in capsys.readouterr().err
