"""When each request of a load is due. Pure: values in, offsets out.

Times are offsets in ns from the start of the load; this module knows no clock.
"""

from __future__ import annotations

import math

import numpy as np

from servetune.records import Load

_NS_PER_S = 1_000_000_000
_SEEDS = 2**32


def offsets_ns(count: int, load: Load, seed: int) -> tuple[int, ...]:
    """Return the due times of `count` requests, ascending.

    Without a rate all are due at 0. With one, the gaps are drawn from a gamma distribution with shape `burstiness` and
    mean 1/rate (burstiness 1: Poisson arrivals; infinite: even gaps) and then stretched so that the last request is due
    at exactly count/rate, as `vllm bench serve` does: the number of requests in the window is fixed, which varies less
    from run to run than a true Poisson process. The first request waits for its own gap. Equal seeds give equal
    offsets, the same that vLLM's client draws with that `--seed`.
    """
    if load.request_rate is None or count == 0:
        return (0,) * count
    rate = load.request_rate
    if math.isinf(load.burstiness):
        gaps = np.full(count, 1.0 / rate)
    else:
        # The legacy generator is the one that vLLM draws from.
        generator = np.random.RandomState(seed % _SEEDS)
        gaps = generator.gamma(load.burstiness, 1.0 / (rate * load.burstiness), size=count)
    due_s = np.cumsum(gaps)
    # A tiny burstiness can draw only zeros; then there is nothing to stretch.
    stretch = count / rate / due_s[-1] if due_s[-1] > 0 else 1.0
    return tuple(round(moment) for moment in (due_s * stretch * _NS_PER_S).tolist())
