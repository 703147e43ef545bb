"""Simulation of a data loader, item by item: the reference of the memory axis.

A reader fetches items in random order, from a cache that never evicts or from storage; cores prepare
them; the GPU takes whole batches. All three run ahead only as far as their queues allow, and every item
takes its own time.
"""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True)
def simulate_samples_s(
    cores: int,
    cached: float,
    fetch_s: float,
    prepare_s: np.ndarray,
    hit: np.ndarray,
    gpu_s: float,
    batch: int,
    ahead: int,
) -> float:
    """Return the samples per second of the second half of the items, with a share of them *cached*."""
    items = len(prepare_s)
    free = np.zeros(cores)
    began, done = np.zeros(items), np.zeros(items)
    taken = np.zeros(items // batch + 1)
    fetched = gpu = half = 0.0
    for i in range(items):
        room = began[i - ahead * batch] if i >= ahead * batch else 0.0
        fetched = max(fetched, room) + (0.0 if hit[i] < cached else fetch_s)
        core = int(np.argmin(free))
        slot = taken[i // batch - ahead] if i // batch >= ahead else 0.0
        began[i] = max(fetched, free[core], slot)
        done[i] = began[i] + prepare_s[i]
        free[core] = done[i]
        if (i + 1) % batch == 0:
            ready = done[i + 1 - batch : i + 1].max()
            taken[i // batch] = max(gpu, ready)
            gpu = taken[i // batch] + gpu_s
            if i + 1 == items // 2:
                half = gpu
    return (items - items // 2) / (gpu - half)
