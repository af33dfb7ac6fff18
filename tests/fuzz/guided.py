"""The same checks on bytes that atheris finds by coverage: `python -m tests.fuzz` runs it where atheris is installed.

Its arguments are libFuzzer's: -runs=N and a folder of inputs to begin with.
"""

from __future__ import annotations

import importlib
import sys
from random import Random
from typing import Any

atheris: Any = importlib.import_module("atheris")
with atheris.instrument_imports(include=["servetune.http1", "servetune.loadgen"]):
    from tests.fuzz.answers import cut
    from tests.fuzz.driver import APIS
    from tests.fuzz.pipeline import Form, facts


def check(data: bytes) -> None:
    """The first two bytes choose the API, the form and the cuts; the others are the answer."""
    if len(data) < 3:
        return
    api = APIS[data[0] % len(APIS)]
    form: Form = "json" if data[0] >= 250 else "events"
    raw = data[2:]
    assert facts(cut(Random(data[1]), raw), form, api) == facts([raw], form, api)


if __name__ == "__main__":
    atheris.Setup([sys.argv[0], "-max_len=4096", "-timeout=10", "-print_final_stats=1", *sys.argv[1:]], check)
    atheris.Fuzz()
