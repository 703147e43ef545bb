"""Loops of the objective `rolling`, compiled: they run over jobs, configurations and busy GPUs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import F1, F2, FLOAT, I1, inner, kernel, record


class RollingTerms(NamedTuple):
    """Columns of an instance; see `Instance`. No column is empty, and *left_s* is inf where impossible."""

    left_s: Floats
    pause_s: Floats
    own_cost_per_s: Floats
    cost_per_s: Floats
    fair_s: Floats
    due_s: Floats
    late_per_s: Floats
    later_price: Floats
    config_node_type: Ints
    config_gpus: Ints
    gpus: Ints


_TERMS = record(RollingTerms, F2, F2, F2, F2, F1, F1, F1, F1, I1, I1, I1)


@inner
def _compute_node_shares(terms: RollingTerms) -> Floats:
    """Return the part of a node's money per second that a job pays, by configuration and busy GPUs."""
    share = np.zeros((len(terms.config_gpus), terms.cost_per_s.shape[1]))
    for c in range(len(share)):
        for used in range(1, share.shape[1]):
            share[c, used] = terms.config_gpus[c] * terms.cost_per_s[terms.config_node_type[c], used] / used
    return share


@inner
def _smooth_late_s(ends_s: float, due_s: float, takes_s: float, soft: float) -> float:
    """Return the seconds late, smoothed around the due date; see `wattline.optimize.objective`."""
    if np.isinf(due_s):
        return 0.0
    width_s = max(soft * (takes_s if np.isfinite(takes_s) else 1.0), 1e-6)
    late = (ends_s - due_s) / width_s
    return float(width_s * (max(late, 0.0) + np.log1p(np.exp(-abs(late)))))


@kernel(_TERMS, FLOAT, FLOAT, FLOAT)
def charge_rolling(
    terms: RollingTerms, now_s: float, ahead_s: float, soft: float
) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats]:
    """Return the cost by job, configuration and busy GPUs, and five columns by job; 0: it can run nowhere.

    They are: money for energy to the end in the cheapest way, energy in the cheapest and in the dearest way
    of running now, the dearest energy of the time until *ahead_s*, and the dearest money per second.
    """
    jobs, configs = terms.left_s.shape
    run_cost = np.full((jobs, configs, terms.cost_per_s.shape[1]), np.inf)
    cheapest, least, dearest = np.zeros(jobs), np.zeros(jobs), np.zeros(jobs)
    full, dearest_per_s = np.zeros(jobs), np.zeros(jobs)
    node_share = _compute_node_shares(terms)
    for j in range(jobs):
        low = np.inf
        for c in range(configs):
            if np.isfinite(terms.left_s[j, c]):
                for used in range(terms.config_gpus[c], terms.gpus[terms.config_node_type[c]] + 1):
                    share = node_share[c, used] + terms.own_cost_per_s[j, c]
                    low = min(low, terms.left_s[j, c] * share)
                    dearest_per_s[j] = max(dearest_per_s[j], share)
        cheapest[j] = low if np.isfinite(low) else 0.0
        low = np.inf
        rest_s = terms.fair_s[j] if np.isfinite(terms.fair_s[j]) else 0.0
        for c in range(configs):
            left_s = terms.left_s[j, c]
            if not np.isfinite(left_s):
                continue
            run_s = min(left_s, ahead_s)
            completed = max(run_s - terms.pause_s[j, c], 0.0) / (left_s - terms.pause_s[j, c])
            ends_s = now_s + run_s + (1.0 - completed) * rest_s
            late = terms.late_per_s[j] * _smooth_late_s(ends_s, terms.due_s[j], terms.fair_s[j], soft)
            rest = (1.0 - completed) * terms.later_price[j] * cheapest[j]
            for used in range(terms.config_gpus[c], terms.gpus[terms.config_node_type[c]] + 1):
                now = run_s * (node_share[c, used] + terms.own_cost_per_s[j, c])
                run_cost[j, c, used] = now + rest + late
                low = min(low, now + rest)
                dearest[j] = max(dearest[j], now + rest)
                full[j] = max(full[j], now)
        least[j] = low if np.isfinite(low) else 0.0
    return run_cost, cheapest, least, dearest, full, dearest_per_s
