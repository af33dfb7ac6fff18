"""When each request of a load is due. Pure: values in, offsets out.

Times are offsets in ns from the start of the load; this module knows no clock.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from servetune.records import Load, RampUp

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NS_PER_S = 1_000_000_000
_SEEDS = 2**32


def offsets_ns(count: int, load: Load, seed: int) -> tuple[int, ...]:
    """Return the due times of `count` requests, ascending.

    Without a rate all are due at 0. With one, the gaps are drawn from a gamma distribution with shape `burstiness` and
    mean 1/rate (burstiness 1: Poisson arrivals; infinite: even gaps) and then stretched so that the last request is due
    at exactly count/rate, as `vllm bench serve` does: the number of requests in the window is fixed, which varies less
    from run to run than a true Poisson process. The first request waits for its own gap. Equal seeds give equal
    offsets, the same that vLLM's client draws with that `--seed`.

    With a ramp each gap is drawn with the rate of its own request, and nothing is stretched.
    """
    if count == 0 or (load.request_rate is None and load.ramp_up is None):
        return (0,) * count
    import numpy as np  # noqa: PLC0415  # a load without a rate starts sooner without it

    rates = np.full(count, load.request_rate) if load.ramp_up is None else _rising(count, load.ramp_up)
    if math.isinf(load.burstiness):
        gaps = 1.0 / rates
    else:
        # The legacy generator is the one that vLLM draws from.
        generator = np.random.RandomState(seed % _SEEDS)
        gaps = generator.gamma(load.burstiness, 1.0 / (rates * load.burstiness))
    due_s = np.cumsum(gaps)
    # A tiny burstiness can draw only zeros; then there is nothing to stretch.
    if load.ramp_up is None and load.request_rate is not None and due_s[-1] > 0:
        due_s *= count / load.request_rate / due_s[-1]
    return tuple(round(moment) for moment in (due_s * _NS_PER_S).tolist())


def _rising(count: int, ramp: RampUp) -> NDArray[np.float64]:
    """Return the rate of each request: from the first's to the last's by equal steps, or by equal factors.

    As in vLLM, the rate depends on a request's place in the row, not on the time.
    """
    import numpy as np  # noqa: PLC0415

    progress = np.arange(count) / max(count - 1, 1)
    if ramp.strategy == "linear":
        return ramp.start_rps + (ramp.end_rps - ramp.start_rps) * progress
    rising: NDArray[np.float64] = ramp.start_rps * (ramp.end_rps / ramp.start_rps) ** progress
    return rising
