"""Draws Vega-Lite specifications as SVG text, where vl-convert-python (extra `charts`) is installed.

It knows nothing of reports. The drawing needs no network and no browser. What comes out is reduced to shapes and text:
no script, link, image, style or event survives, whatever the data said.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as ET

_VEGA_LITE = "5.20"
_NAMESPACE = "http://www.w3.org/2000/svg"
_ELEMENTS = frozenset({"svg", "g", "path", "rect", "line", "circle", "text", "tspan", "title", "defs", "clipPath"})
_ATTRIBUTES = frozenset(
    {"width", "height", "viewBox", "x", "y", "x1", "x2", "y1", "y2", "dx", "dy", "cx", "cy", "r", "d", "transform"}
    | {"fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap"}
    | {"stroke-linejoin", "stroke-miterlimit", "opacity", "font-family", "font-size", "font-weight", "font-style"}
    | {"text-anchor", "dominant-baseline", "clip-path", "id", "class", "display", "role", "aria-hidden", "aria-label"}
)


def available() -> bool:
    """Tell whether charts can be drawn here."""
    return importlib.util.find_spec("vl_convert") is not None


def draw(spec: Mapping[str, Any]) -> str:
    """Return `spec` drawn as one SVG element; raises ImportError where vl-convert-python is missing."""
    converter = importlib.import_module("vl_convert")
    drawn: str = converter.vegalite_to_svg(json.dumps(spec), vl_version=_VEGA_LITE)
    return sanitised(drawn)


def sanitised(svg: str) -> str:
    """Return `svg` with only shapes and text; raises ValueError if it is not SVG."""
    # Entities cannot be declared in it: the document type that would hold them is refused first.
    if "<!DOCTYPE" in svg or "<!ENTITY" in svg:
        raise ValueError("an SVG drawing with a document type is not accepted")
    try:
        root = ET.fromstring(svg)  # noqa: S314 - our own renderer's output, without a document type
    except ET.ParseError as error:
        raise ValueError(f"not an SVG drawing: {error}") from error
    if _local(root.tag) != "svg":
        raise ValueError("not an SVG drawing")
    _reduce(root)
    ET.register_namespace("", _NAMESPACE)
    return ET.tostring(root, encoding="unicode")


def _reduce(element: ET.Element) -> None:
    for name in [name for name in element.attrib if name not in _ATTRIBUTES]:
        del element.attrib[name]
    for name in ("fill", "stroke", "clip-path"):
        if "url(" in element.attrib.get(name, "") and "url(#" not in element.attrib[name]:
            del element.attrib[name]
    for child in list(element):
        if _local(child.tag) in _ELEMENTS:
            _reduce(child)
        else:
            element.remove(child)


def _local(tag: str) -> str:
    """The tag's name in the SVG namespace; "" for other namespaces."""
    return tag.removeprefix(f"{{{_NAMESPACE}}}") if tag.startswith(f"{{{_NAMESPACE}}}") else ""
