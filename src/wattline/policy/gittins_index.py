"""Gittins index of jobs: how soon they may end, for the service that they would take until then.

With S the service (GPU-seconds) of a whole job and a what a job has attained, the index is

    G(a) = sup over Δ of  P(S − a ≤ Δ | S > a) / E[min(S − a, Δ) | S > a],

and the largest goes first (Gittins, 1979; Aalto, Ayesta and Righter, 2009, for attained service). S is
distributed as a sample of jobs that have ended.
"""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats
from wattline.jit import F1, kernel


def compute_index(attained: Floats, delta: Floats, ended: Floats) -> Floats:
    """Return the index of each job at its own Δ; 0 if no job of the sample attained as much.

    *ended* is the service of jobs that have ended, ascending. A Δ may be inf: the index is then one over
    the mean service that is left.
    """
    total = np.concatenate(([0.0], np.cumsum(ended)))
    first = np.searchsorted(ended, attained, side="right")
    last = np.searchsorted(ended, attained + delta, side="right")
    ends, survives = last - first, len(ended) - last
    cost = total[last] - total[first] - ends * attained
    cost = cost + survives * np.where(survives > 0, delta, 0.0)
    return np.where(ends > 0, ends / np.where(cost > 0, cost, 1.0), 0.0)


def compute_best_index(attained: Floats, least: Floats, ended: Floats) -> Floats:
    """Return the largest index of each job over all Δ of at least *least*; see `compute_index`.

    Between two values of the sample the index falls with Δ, so only *least* and the values beyond it count.
    A sample says little of a Δ within which few of its jobs end: *least* should cover some of them.
    Takes time in proportion to the distinct jobs times the sample.
    """
    pairs = np.stack((attained, least), axis=1)
    distinct, place = np.unique(pairs, axis=0, return_inverse=True)
    attained, least = (np.ascontiguousarray(column) for column in distinct.T)
    return _compute_best_index(attained, least, ended)[place.reshape(-1)]


@kernel(F1, F1, F1)
def _compute_best_index(attained: Floats, least: Floats, ended: Floats) -> Floats:
    index = np.zeros(len(attained))
    for i in range(len(attained)):
        first = np.searchsorted(ended, attained[i], side="right")
        alive = len(ended) - first
        served = 0.0  # until they end, by those that do within Δ
        for k in range(first, len(ended)):
            delta = ended[k] - attained[i]
            if delta > least[i]:
                if k > first:
                    cost = served + (alive - (k - first)) * least[i]
                    index[i] = max(index[i], (k - first) / cost)
                break
            served += delta
        served = 0.0
        for k in range(first, len(ended)):
            delta = ended[k] - attained[i]
            served += delta
            ends = k - first + 1
            if delta >= least[i] or ends == alive:
                index[i] = max(index[i], ends / (served + (alive - ends) * delta))
    return index
