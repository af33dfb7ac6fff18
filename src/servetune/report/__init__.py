"""The report of a study: report.md, report.html and report.json, from Results and nothing else.

Views (pure) say what a report holds; html, markdown and jsonfile print it; charts draw. This module puts the files on
disk, each complete or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from servetune import __version__, engines, masking, studyfile
from servetune.engines.base import CAUSES
from servetune.records import EngineSpec, Results, Study
from servetune.report import html, jsonfile, markdown, views
from servetune.report.charts import svg
from servetune.store.files import explain_os_error, write_durably

__all__ = ["command_text", "verdict_sentence", "write"]


def write(results: Results, folder: Path) -> list[Path]:
    """Write report.md, report.html, report.json and charts/* into `folder`; return the three reports' paths.

    Secrets in the study's engine settings are masked. Raises StoreError where the folder cannot be written.
    """
    shown = msgspec.structs.replace(results, study=_masked(results.study))
    view = _view(shown)
    drawings = _drawings(view.charts)
    pages = {
        "report.md": markdown.page(view, drawings=drawings, version=__version__).encode(),
        "report.html": html.page(view, drawings=drawings, version=__version__).encode(),
        "report.json": jsonfile.page(shown, view, version=__version__),
    }
    _write_charts(view.charts, drawings, folder / "charts")
    for name, data in pages.items():
        write_durably(folder / name, data)
    return [folder / name for name in pages]


def verdict_sentence(results: Results) -> str:
    """Return the report's first sentence alone."""
    return _view(results).headline.sentence


def _view(results: Results) -> views.ReportView:
    defaults = {
        spec.name: {name: option.default for name, option in engines.get(spec.name).catalogue().options.items()}
        for spec in results.study.engines
        if spec.name in engines.ENGINES
    }
    return views.build(results, study_toml=studyfile.dump(results.study), causes=CAUSES, defaults=defaults)


def command_text(results: Results) -> str | None:
    """Return the command that starts the recommended config, as shell text; None where it was never launched."""
    trial = views.trials.latest(results, results.conclusion.recommended)
    return views.trials.shell_text(trial.command) if trial and trial.command.argv else None


def _masked(study: Study) -> Study:
    masked = tuple(_masked_engine(engine) for engine in study.engines)
    return msgspec.structs.replace(study, engines=masked, model=masking.mask_text(study.model))


def _masked_engine(engine: EngineSpec) -> EngineSpec:
    return msgspec.structs.replace(
        engine,
        env=masking.mask_env(engine.env),
        url=masking.mask_text(engine.url) if engine.url else engine.url,
        options={
            name: masking.MASK if isinstance(value, str) and masking.is_secret_name(name) else value
            for name, value in engine.options.items()
        },
    )


def _drawings(charts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Every chart as SVG; none where the library for it is not installed."""
    return {name: svg.draw(spec) for name, spec in charts.items()} if svg.available() else {}


def _write_charts(charts: Mapping[str, Mapping[str, Any]], drawings: Mapping[str, str], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain_os_error(error, folder) from error
    for name, spec in charts.items():
        write_durably(folder / f"{name}.vl.json", json.dumps(spec, indent=1, ensure_ascii=False).encode() + b"\n")
    for name, drawing in drawings.items():
        write_durably(folder / f"{name}.svg", drawing.encode())
