"""Prints a ReportView as one HTML page that needs nothing else: no network, no script, no other file.

All text passes Jinja's escaping; the only markup from outside the templates are the charts, which charts.svg has
reduced to shapes and text. The content security policy allows our one style sheet, by its hash, and nothing more.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib import resources

import jinja2
from markupsafe import Markup

from servetune.report import formatting
from servetune.report.document import Part
from servetune.report.phrases import Phrases
from servetune.report.views import ReportView


def page(view: ReportView, *, drawings: Mapping[str, str], version: str, say: Phrases | None = None) -> str:
    """Return the page. `drawings` holds the charts as SVG by name, as far as they could be drawn."""
    style = _template_text("report.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    # The drawings come from charts.svg.sanitised: shapes and escaped text only.
    charts = {name: Markup(drawing) for name, drawing in drawings.items()}  # noqa: S704
    environment = _environment()
    return environment.get_template("report.html.j2").render(
        view=view,
        say=say or Phrases(),
        drawings=charts,
        version=version,
        style=Markup(style),  # noqa: S704 - our own file
        style_hash=f"sha256-{digest}",
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["kind"] = _kind
    return environment


def _template_text(name: str) -> str:
    return resources.files("servetune.report").joinpath("templates", name).read_text(encoding="utf-8")


def _visible(value: object) -> object:
    """Write out control characters of every text that is printed, except markup that is already safe."""
    return formatting.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _kind(part: Part) -> str:
    """The name of a part's form, by which the template chooses how to print it."""
    return type(part).__name__.lower()
