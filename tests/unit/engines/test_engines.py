"""The table of engines."""

from __future__ import annotations

from importlib import metadata

import pytest

from servetune import engines
from servetune.errors import HostProblem, UserError


def test_engines_are_made_once_and_by_name() -> None:
    """The same engine comes back, with the name it is asked by."""
    assert engines.get("mock") is engines.ENGINES["mock"]
    assert engines.get("mock").name == "mock"
    assert "mock" in engines.ENGINES
    assert len(engines.ENGINES) == len(list(engines.ENGINES))


def test_an_unknown_engine_gets_the_nearest_name() -> None:
    """Did you mean; without a near name, all names."""
    with pytest.raises(UserError, match='did you mean "mock"'):
        engines.get("mok")
    with pytest.raises(UserError, match=r"engines: .*llamacpp.*mock"):
        engines.get("zzzzz")
    with pytest.raises(KeyError):
        engines.ENGINES["zzzzz"]


def test_entry_points_add_engines_but_never_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package's engine is found; the built-in names stay ours; a broken one is said when it is used."""
    points = (
        metadata.EntryPoint(name="extra", value="servetune.engines.mock:Mock", group="servetune.engines"),
        metadata.EntryPoint(name="broken", value="servetune.engines.mock:Nothing", group="servetune.engines"),
        metadata.EntryPoint(name="mock", value="elsewhere:Mock", group="servetune.engines"),
    )
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)
    engines._places.cache_clear()
    try:
        assert engines.get("extra").name == "mock"
        assert engines.get("mock").name == "mock"
        with pytest.raises(HostProblem, match="Nothing"):
            engines.get("broken")
    finally:
        engines._places.cache_clear()
