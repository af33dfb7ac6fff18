"""The engines that servetune can start: an explicit table, extended by the entry points `servetune.engines`.

An engine's module is imported when the engine is asked for, so that listing their names costs nothing.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Mapping
from typing import cast

from servetune.engines.base import Engine
from servetune.errors import HostProblem, UserError

BUILT_IN: dict[str, str] = {
    "llamacpp": "servetune.engines.llamacpp:LlamaCpp",
    "mock": "servetune.engines.mock:Mock",
    "endpoint": "servetune.engines.endpoint:Endpoint",
}
"""Name -> "module:Class" of the engines of this package."""


class _Engines(Mapping[str, Engine]):
    """Read-only table of engines; a value is made at its first use."""

    def __getitem__(self, name: str) -> Engine:
        places = _places()
        if name not in places:
            raise KeyError(name)
        return _made(places[name])

    def __iter__(self) -> Iterator[str]:
        return iter(_places())

    def __len__(self) -> int:
        return len(_places())

    def __contains__(self, name: object) -> bool:
        return name in _places()


@functools.cache
def _places() -> dict[str, str]:
    from importlib import metadata  # noqa: PLC0415 -- 50 ms that most of the program never needs

    found = {point.name: point.value for point in metadata.entry_points(group="servetune.engines")}
    return {**found, **BUILT_IN}


@functools.cache
def _made(place: str) -> Engine:
    module_name, _, class_name = place.partition(":")
    try:
        engine_class = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise HostProblem(f"the engine at {place} cannot be loaded: {error}") from error
    return cast("Engine", engine_class())


ENGINES: Mapping[str, Engine] = _Engines()
"""Name -> engine."""


def get(name: str) -> Engine:
    """Return the engine `name`; raises UserError with the nearest names if there is none."""
    if name in ENGINES:
        return ENGINES[name]
    import difflib  # noqa: PLC0415 -- 20 ms, for a message only

    near = difflib.get_close_matches(name, ENGINES, n=1)
    hint = f'did you mean "{near[0]}"?' if near else f"engines: {', '.join(sorted(ENGINES))}"
    raise UserError("engine", f'there is no engine "{name}"', hint)
