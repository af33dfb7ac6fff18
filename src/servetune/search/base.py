"""What a searcher is: a pure function from the history of a study to where it stands and what it wants next.

Knows no searcher. The same history always gives the same answer, so that resume, replay and tests are free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from servetune.compare import UNKNOWN, Variance
from servetune.records import Catalogue, Measurement, Record, StepResult, Study, Trial


class Progress(Record, frozen=True, kw_only=True):
    """Where a search stands."""

    steps: tuple[StepResult, ...]
    """Finished steps, then the one that is being measured, if any."""
    wanted: Measurement | None
    """What to measure next; None: the search is over."""
    variance: Variance = UNKNOWN
    """Of what one launch reports of the objective, pooled over all blocks of the search."""
    unselected: Variance = UNKNOWN
    """The same over the steps after the last adoption, which had no part in it: a spread that is small by chance makes
    an adoption more likely."""
    stop_reason: str = ""
    """Why it ended before its plan was done; "" if it was done."""


class Searcher(Protocol):
    """One way to choose what is measured."""

    def __call__(self, study: Study, catalogues: Mapping[str, Catalogue], history: Sequence[Trial]) -> Progress:
        """Return where the search of `study` stands after `history`; trials of the validation are ignored."""
        ...
