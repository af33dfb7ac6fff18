"""Searchers by name, extended by the entry points of group `servetune.searchers`."""

from __future__ import annotations

from importlib.metadata import entry_points

from servetune.search import staged
from servetune.search.base import Searcher

SEARCHERS: dict[str, Searcher] = {"staged": staged.progress}


def get(name: str) -> Searcher:
    """Return the searcher called `name`; raises LookupError if there is none."""
    if name in SEARCHERS:
        return SEARCHERS[name]
    for found in entry_points(group="servetune.searchers", name=name):
        searcher: Searcher = found.load()
        return searcher
    raise LookupError(f"there is no searcher {name}")
