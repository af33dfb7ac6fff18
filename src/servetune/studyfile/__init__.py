"""The study file: TOML text to a Study and back.

Every mistake is found in one reading, each with its path, what is allowed, and the nearest right name. Catalogues of
engine options and the parameters of workload kinds come in as values: this package knows no engine and no workload.
"""

from __future__ import annotations

from servetune.studyfile.parsing import load, parse
from servetune.studyfile.reading import Kinds
from servetune.studyfile.writing import dump

__all__ = ["Kinds", "dump", "load", "parse"]
