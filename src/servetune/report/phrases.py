"""Turns a key and values into a sentence of one language's catalogue.

Pure. It knows no sentence; `english.py` holds them, and another language is another such table with the same keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from servetune import metrics, space
from servetune.records import Config, EngineSpec
from servetune.report import formatting
from servetune.report.english import TEXT


class Phrases:
    """One language's catalogue; calling it with a key gives the sentence with its values filled in."""

    def __init__(self, text: Mapping[str, str] = TEXT, *, engines: Sequence[EngineSpec] = ()) -> None:
        """`engines` are the study's engine tables: what they fix for every config is left out of its name."""
        self._text = text
        self._engines = tuple(engines)

    def about(self, engines: Sequence[EngineSpec]) -> Phrases:
        """Return the same language for a study of these engines."""
        return Phrases(self._text, engines=engines)

    def config(self, config: Config) -> str:
        """Return the name of a config in at most 80 characters."""
        return formatting.clip(space.label(space.without_fixed(config, self._engines)))

    def __call__(self, key: str, **values: object) -> str:
        """Return the sentence `key`; raises KeyError for an unknown key or a value that the sentence lacks."""
        return self._text[key].format_map(values)

    def word(self, group: str, code: str) -> str:
        """Return the catalogue's word for a code (`group.code`), or the code itself if it has none."""
        return self._text.get(f"{group}.{code}", code)

    def either(self, key: str, general: str, **values: object) -> str:
        """Return the sentence `key` if the catalogue has it, else the one of the `general` key."""
        return self(key if key in self._text else general, **values)

    def counted(self, key: str, number: int) -> str:
        """Return `key.one` or `key.many` with the number filled in."""
        return self(f"{key}.{'one' if number == 1 else 'many'}", n=number)

    def metric(self, name: str) -> str:
        """Return a metric's name in this language, as it stands inside a sentence."""
        if f"metric.{name}" in self._text:
            return self(f"metric.{name}")
        statistic, _, latency = name.removesuffix("_ms").partition("_")
        if name.endswith("_ms") and f"latency.{latency}" in self._text:
            return self(
                "metric.of-latency", statistic=self.word("statistic", statistic), latency=self(f"latency.{latency}")
            )
        found = metrics.METRICS.get(name)
        return found.label if found else name

    def metric_title(self, name: str) -> str:
        """Return a metric's name with its unit, as the title of a row or column."""
        found = metrics.METRICS.get(name)
        words = self.metric(name)
        title = words if words[1:2].isdigit() else words[:1].upper() + words[1:]
        return self("metric.with-unit", metric=title, unit=found.unit) if found and found.unit else title

    def joined(self, items: list[str], *, most: int = 4) -> str:
        """Return the first `most` items in one line, and how many more there are."""
        shown = self("list.comma").join(items[:most])
        return self("list.more", shown=shown, n=len(items) - most) if len(items) > most else shown
