"""Shares of GPU kinds that maximise the least value of all jobs: a linear program."""

from __future__ import annotations

import numpy as np

from wattline.core.table import Bools, Floats
from wattline.errors import ModelError


def maximise_least_value(value: Floats, gpus: Floats, room: Floats, possible: Bools) -> tuple[Floats, float]:
    """Return shares x (job, kind) with the largest least Σ_k value·x over the jobs, and that least value.

    A share is a fraction of time: Σ_k x ≤ 1 for each job, and Σ_j *gpus*·x ≤ *room* for each kind. Pairs that
    are not *possible* get 0.
    """
    from scipy.optimize import linprog  # takes long to import
    from scipy.sparse import coo_array

    count = len(value)
    shares = np.zeros_like(value)
    if count == 0:
        return shares, 0.0
    job, kind = np.nonzero(possible)
    scale = float(np.mean(value[job, kind]))  # values of any size lead to the same program
    pairs, column = len(job), np.arange(len(job))
    rows = np.concatenate((job, np.arange(count), count + job, 2 * count + kind))
    columns = np.concatenate((column, np.full(count, pairs), column, column))
    entries = np.concatenate((-value[job, kind] / scale, np.ones(count), np.ones(pairs), gpus[job]))
    matrix = coo_array((entries, (rows, columns)), shape=(2 * count + len(room), pairs + 1)).tocsr()
    limits = np.concatenate((np.zeros(count), np.ones(count), room))
    cost = np.zeros(pairs + 1)
    cost[-1] = -1.0
    result = linprog(cost, matrix, limits, method="highs")
    if result.x is None:
        raise ModelError(f"the shares of {count} jobs were not found: {result.message}")
    shares[job, kind] = np.clip(result.x[:-1], 0.0, 1.0)
    return shares, float(result.x[-1]) * scale
