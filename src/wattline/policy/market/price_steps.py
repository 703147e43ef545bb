"""One step of the prices of GPUs towards those at which the market clears.

A price rises where more is wanted than there is, and falls where less is. Jobs are indifferent between times
of the same price, so that their demand jumps from one bucket to the next, and prices swing. Two facts
steady them. Every job would rather run earlier at the same price, so prices fall with time, unless a joule is
cheaper later: prices that rise are replaced by their mean. And the mean of the last steps is nearer to the
solution than the last one.
"""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import inner
from wattline.policy.market.response import Buckets, ClassTable

_STEP = 0.7  # exponent of the first price step; it falls with 1 / (1 + _DAMPING · iteration)
_DAMPING = 0.15
_LEAST_PRICE, _MOST_PRICE = 1e-12, 1e12
_LEAST_DEMAND, _MOST_DEMAND = 0.3, 3.0  # over what there is, that a step follows


@inner
def move_prices(
    gpu: Floats, used: Floats, room: Ints, classes: ClassTable, buckets: Buckets, step: int
) -> None:
    """Move the prices *gpu* by kind and bucket with the demand *used*, in GPU-seconds."""
    power = _STEP / (1.0 + _DAMPING * step)
    falls = _can_only_fall(classes, buckets)
    for k in range(gpu.shape[0]):
        for t in range(gpu.shape[1]):
            offered = room[k] * (buckets.end_s[t] - buckets.begin_s[t])
            demand = used[k, t] / offered if offered > 0 else 1.0
            moved = max(gpu[k, t], _LEAST_PRICE) * min(max(demand, _LEAST_DEMAND), _MOST_DEMAND) ** power
            gpu[k, t] = min(max(moved, _LEAST_PRICE), _MOST_PRICE)
        if falls:
            _make_falling(gpu[k], buckets)


@inner
def _can_only_fall(classes: ClassTable, buckets: Buckets) -> bool:
    """Return whether prices of GPUs fall with time: they do unless a joule is cheaper later."""
    extra = classes.extra.max() if len(classes.extra) > 0 else 0.0
    for t in range(1, len(buckets.begin_s)):
        if buckets.energy_price[t] < buckets.energy_price[t - 1]:
            return False
        if extra > 0 and buckets.budget[t] < buckets.budget[t - 1]:
            return False
    return True


@inner
def _make_falling(price: Floats, buckets: Buckets) -> None:
    """Write the falling prices nearest to *price*: by least squares of their logarithms over time.

    Neighbours that rise are pooled until none does (Ayer et al. 1955).
    """
    count = len(price)
    level, long_s, first = np.empty(count), np.empty(count), np.empty(count, dtype=np.int64)
    top = 0
    for t in range(count):
        level[top], long_s[top], first[top] = np.log(price[t]), buckets.end_s[t] - buckets.begin_s[t], t
        top += 1
        while top > 1 and level[top - 1] > level[top - 2]:
            total_s = long_s[top - 2] + long_s[top - 1]
            level[top - 2] = (level[top - 2] * long_s[top - 2] + level[top - 1] * long_s[top - 1]) / total_s
            long_s[top - 2] = total_s
            top -= 1
    last = count
    for p in range(top - 1, -1, -1):
        for t in range(first[p], last):
            price[t] = np.exp(level[p])
        last = first[p]
