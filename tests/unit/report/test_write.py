"""Writing a report: three files and the charts, each whole, without secrets."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from servetune import report
from servetune.cli import report as command
from servetune.errors import StoreError
from servetune.records import EngineSpec, Limits, Objective, Results
from servetune.report import jsonfile, views
from servetune.report.charts import svg
from servetune.report.phrases import Phrases
from tests.unit.report import sample


@pytest.fixture
def _no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts cannot be drawn."""
    monkeypatch.setattr(svg, "available", lambda: False)


def written(results: Results, folder: Path) -> dict[str, Any]:
    """Write a report and read its JSON."""
    paths = report.write(results, folder)
    assert [path.name for path in paths] == ["report.md", "report.html", "report.json"]
    data: dict[str, Any] = json.loads(paths[2].read_bytes())
    return data


@pytest.mark.usefixtures("_no_charts")
@pytest.mark.parametrize("name", sample.everything())
def test_every_study_has_a_report(name: str, tmp_path: Path) -> None:
    """Finished, unfinished, failed, empty or hostile: three files and no leftovers."""
    written(sample.everything()[name], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["charts", "report.html", "report.json", "report.md"]


@pytest.mark.skipif(not svg.available(), reason="vl-convert-python (extra charts) is not installed")
def test_charts_are_written_beside_the_pages(tmp_path: Path) -> None:
    """Each as its specification and, where it can be drawn, as SVG that also stands in the page."""
    written(sample.RESULTS, tmp_path)
    names = sorted(path.name for path in (tmp_path / "charts").iterdir())
    assert names == sorted(
        f"{name}.{end}" for name in ("before-after", "steps", "trials") for end in ("svg", "vl.json")
    )
    assert (tmp_path / "charts/steps.svg").read_text(encoding="utf-8") in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.usefixtures("_no_charts")
def test_without_the_extra_only_specifications_are_written(tmp_path: Path) -> None:
    """The page says how to get the drawings."""
    written(sample.RESULTS, tmp_path)
    assert {path.suffix for path in (tmp_path / "charts").iterdir()} == {".json"}
    assert "servetune[charts]" in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.usefixtures("_no_charts")
def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    """A report depends on the store alone; writing again replaces it."""
    report.write(sample.RESULTS, tmp_path)
    first = (tmp_path / "report.html").read_bytes()
    report.write(sample.RESULTS, tmp_path)
    assert (tmp_path / "report.html").read_bytes() == first


@pytest.mark.usefixtures("_no_charts")
def test_secrets_of_the_study_are_masked(tmp_path: Path) -> None:
    """Variables, options and URLs with secrets are not in any file."""
    engine = EngineSpec(
        name="endpoint",
        url="http://user:word@127.0.0.1:1/",
        options={"api_key": "sk-option", "threads": 1, "note": "n"},
    )
    study = msgspec.structs.replace(sample.STUDY, engines=(*sample.STUDY.engines, engine))
    report.write(msgspec.structs.replace(sample.RESULTS, study=study), tmp_path)
    for path in tmp_path.glob("report.*"):
        text = path.read_text("utf-8")
        for secret in ("hf_secret_value", "sk-option", "user:word"):
            assert secret not in text


@pytest.mark.usefixtures("_no_charts")
def test_a_folder_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    """A file in the place of the folder gives a StoreError that names it."""
    place = tmp_path / "file"
    place.write_text("")
    with pytest.raises(StoreError, match="file"):
        report.write(sample.RESULTS, place)


@pytest.mark.usefixtures("_no_charts")
def test_json_holds_the_results_and_the_derived_figures(tmp_path: Path) -> None:
    """Versioned, with units and definitions; the Results read back as they were, but for the secrets."""
    data = written(sample.RESULTS, tmp_path)
    assert data["schema"] == "servetune.report/1"
    assert data["verdict"]["gain"] == {"estimate": 0.98, "low": 0.91, "high": 1.05, "confidence": 0.95}
    assert data["metrics"]["p99_ttft_ms"]["unit"] == "ms"
    assert data["metrics"]["p99_ttft_ms"]["definition"].startswith("time to first token")
    row = data["comparison"]["rows"][0]
    assert row["change"] == 0.98
    assert row["recommended"] / row["baseline"] == pytest.approx(2.0, rel=0.02)
    back = msgspec.convert(data["results"], Results)
    assert back.trials == sample.RESULTS.trials
    assert back.study.engines[0].env["HF_TOKEN"] == "***"


def test_json_without_finite_figures_is_still_json() -> None:
    """An interval without a bound is null, never NaN; a metric without a definition has none."""
    study = msgspec.structs.replace(
        sample.STUDY,
        objective=Objective(metric="mean_ttft_ms", goal="minimize", on="chat"),
        limits=Limits(bounds={"duration_s": 9.0, "unknown": 1.0}),
    )
    change = msgspec.structs.replace(
        sample.CONCLUSION.changes[0], metric="mean_ttft_ms", gain=sample.interval(0.1, -1.0, 0.2)
    )
    results = sample.with_conclusion(msgspec.structs.replace(sample.RESULTS, study=study), changes=(change,))
    view = views.build(results, study_toml="")
    assert view.comparison.rows[0].interval is not None
    assert math.isinf(view.comparison.rows[0].interval.high)
    data = json.loads(jsonfile.page(results, view, version="0"))
    assert data["comparison"]["rows"][0]["interval"]["high"] is None
    assert data["metrics"]["duration_s"]["definition"] == ""
    assert "unknown" not in data["metrics"]
    assert jsonfile.definition("request_throughput", Phrases()).startswith("completed requests")


def test_the_sentence_alone_can_be_had() -> None:
    """The command line prints the same words as the page."""
    assert report.verdict_sentence(sample.RESULTS).startswith("llamacpp Q4_0 threads=2 serves chat with 98")


@pytest.mark.usefixtures("_no_charts")
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_the_command_writes_and_names_the_files(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths for people on stderr, the JSON for programs on stdout if asked for."""
    monkeypatch.setattr(command, "load_results", lambda folder: sample.RESULTS)
    done = CliRunner().invoke(command.report, [str(tmp_path), *flags], catch_exceptions=False)
    assert done.exit_code == 0
    assert str(tmp_path / "report.html") in done.stderr.replace("\n", "")
    assert done.stdout == ((tmp_path / "report.json").read_text("utf-8") if flags else "")


def test_the_command_says_what_is_no_study(tmp_path: Path) -> None:
    """An empty folder gives a StoreError, and no report."""
    with pytest.raises(StoreError, match="no study here"):
        CliRunner().invoke(command.report, [str(tmp_path)], catch_exceptions=False)
    assert not list(tmp_path.iterdir())
