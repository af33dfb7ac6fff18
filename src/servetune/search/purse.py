"""How the budget of a study is divided between the steps of its search and its validation.

Pure. Every answer depends only on the trials before the moment it is about, so that a longer history never changes
an earlier one.
"""

from __future__ import annotations

from servetune.records import Record, Study
from servetune.search.ledger import Ledger, objective_workload

VALIDATION_SHARE = 1 / 3
"""Most of the budget that is kept for the validation, as long as that pays for two blocks of it."""


class Purse(Record, frozen=True, kw_only=True):
    """What one step of a search may spend."""

    ledger: Ledger
    places: int
    """Trials before the step began."""
    share: float
    """Its part of what is left for this and later steps, by their number of configs."""

    def allows_start(self, launches: int) -> bool:
        """Tell whether a step of `launches` configs can be judged at all: two blocks of it can be paid."""
        return self._left(self.places, 2 * launches) >= 0

    def allows_launch(self, places: int) -> bool:
        """Tell whether one more launch can be paid after the first `places` trials."""
        return self._left(places, 1) >= 0

    def blocks(self, places: int, launches: int) -> int:
        """Return how many more blocks of `launches` fit into the step's share after the first `places` trials."""
        before, now = self.ledger.spent(self.places), self.ledger.spent(places)
        left_s = (self._limit(places) - before) * self.share - (now - before)
        block_s = launches * self._launch_s(places)
        return max(0, int(left_s / block_s)) if block_s else looks(self.ledger.study)

    def _left(self, places: int, launches: int) -> float:
        return self._limit(places) - self.ledger.spent(places) - launches * self._launch_s(places)

    def _launch_s(self, places: int) -> float:
        known = self.ledger.launch_cost(places)
        return known[0] if known else 0.0

    def _limit(self, places: int) -> float:
        """Seconds that the search may have spent in all, as estimated after the first `places` trials."""
        study = self.ledger.study
        return study.budget.seconds - reserve(study, self.ledger, places)


def looks(study: Study) -> int:
    """Return the number of blocks after which a step ends; a decision needs two."""
    return max(2, study.budget.max_repeats)


def block_cost(study: Study, ledger: Ledger, places: int) -> float | None:
    """Return the seconds of one block of the validation, as estimated after the first `places` trials; None: unknown.

    From launches of the validation, else from those of the search: runs of other workloads are then taken to last as
    long as the objective's, for equally many requests.
    """
    made = ledger.launch_cost(places, validation=True)
    if made is not None:
        return 2 * made[0]
    known = ledger.launch_cost(places)
    if known is None:
        return None
    launch_s, measured_s = known
    prompts = {spec.name: spec.num_prompts for spec in study.workloads}
    ratio = sum(prompts.values()) / max(1, prompts[objective_workload(study)])
    return 2 * (launch_s + measured_s * (ratio - 1))


def reserve(study: Study, ledger: Ledger, places: int) -> float:
    """Return the seconds that the search leaves to the validation."""
    block_s = block_cost(study, ledger, places) or 0.0
    return min(looks(study) * block_s, max(2 * block_s, VALIDATION_SHARE * study.budget.seconds))
