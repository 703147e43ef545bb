"""Gap of a decision: how much more any other allocation of the same GPUs could be worth at these prices.

The bound is the Lagrangian relaxation of choosing one configuration per job within the GPUs of each kind,
which for one kind equals its linear relaxation. It bounds the decision now, not the schedule.
"""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import F1, F3, I1, inner, kernel
from wattline.policy.market.rounding import NEVER, NOW_ROWS, SIZE_COSTS, NowRows, SizeCosts

_STEPS = 12  # of the bisection of each kind's price


@inner
def _value_at(
    rows: NowRows, sizes: SizeCosts, room: Ints, worth: Floats, none: Floats, price: Floats, kind: int
) -> tuple[float, int]:
    """Return the Lagrangian value at these prices, and the GPUs of one kind that are wanted."""
    classes = len(sizes.size_count) // len(room)
    total, taken = 0.0, 0
    for k in range(len(room)):
        total += price[k] * room[k]
    for i in range(len(none)):
        net, wants = none[i], 0
        for k in range(len(room)):
            c = rows.job_class[i] + k * classes
            for s in range(sizes.size_count[c]):
                if worth[i, k, s] > NEVER and worth[i, k, s] - price[k] * sizes.gpus[c, s] > net:
                    net = worth[i, k, s] - price[k] * sizes.gpus[c, s]
                    wants = sizes.gpus[c, s] if k == kind else 0
        total += net
        taken += wants
    return total, taken


@kernel(NOW_ROWS, SIZE_COSTS, I1, F3, F1, F1)
def compute_bound(
    rows: NowRows, sizes: SizeCosts, room: Ints, worth: Floats, none: Floats, gpu_price: Floats
) -> float:
    """Return an upper bound of the worth of any allocation of *room*: the least Lagrangian value found.

    At prices λ of GPUs every row takes what is best for it, and all GPUs are paid for: Σ max (U − λ n) + λ N.
    Each kind's price is searched by bisection, starting from *gpu_price*.
    """
    price = gpu_price.copy()
    best = np.inf
    for k in range(len(room)):
        low, high = 0.0, max(price[k], 1e-9)
        for _ in range(_STEPS):
            total, taken = _value_at(rows, sizes, room, worth, none, price, k)
            best = min(best, total)
            if taken > room[k]:
                low = price[k]
                high = max(high, 2.0 * low)
            else:
                high = price[k]
            price[k] = 0.5 * (low + high) if high > low else 2.0 * low
    return best
