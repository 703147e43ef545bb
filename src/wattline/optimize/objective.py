"""Objectives: the cost of a job by configuration and busy GPUs of its node, and the cost of waiting.

Jobs pay for the energy of their node in proportion to their GPUs. A job alone on a node pays for all of it,
one that shares it pays less: the cost depends on the number of busy GPUs, and on nothing else of the other
jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.table import Bools, Floats
from wattline.optimize.instance import Instance
from wattline.optimize.rolling_charges import RollingTerms, charge_rolling

_AHEAD = 0.2  # of the median remaining time: a decision is taken to be valid for so long
_RATHER = 1e-3  # of the dearest way to run, added to the cost of waiting: no job waits beside free GPUs
_SOFT = 0.3  # of the remaining time: width around the due date in which tardiness rises smoothly


@dataclass(frozen=True, eq=False)
class Charges:
    """Costs in money that a decision minimises.

    *valid_s* is for how long the decision is taken to be valid; the next should be made then.
    """

    run_cost: Floats  # by job, configuration and busy GPUs of its node; inf: impossible
    wait_cost: Floats  # by job
    valid_s: float
    delay_per_s: Floats  # by job, for a second without progress, beside energy


def to_the_end(instance: Instance, rho: float = 1.0) -> Charges:
    """Return the costs if every job runs to its end as decided now, or waits and is then as slow as possible.

    Energy is never a reason to wait: a waiting job pays for its dearest configuration.
    """
    share, left_s = instance.job_cost_per_s, instance.finite_left_s
    late_s = np.maximum(0.0, instance.now_s + left_s - instance.due_s[:, None])
    energy = left_s[:, :, None] * share
    may = _find_possible(instance)
    run_cost = np.where(may, energy + (instance.late_per_s[:, None] * late_s)[:, :, None], np.inf)
    dearest = np.where(may, energy, 0.0).max(axis=(1, 2), initial=0.0)
    slow_s = np.where(np.isfinite(instance.slowest_s), instance.slowest_s, 0.0)
    stop_penalty_s = instance.stop_penalty_s if instance.stop_penalty_s.size else np.zeros(instance.jobs)
    slow_s = slow_s + stop_penalty_s
    wait_cost = (1 + _RATHER) * dearest + rho * instance.late_per_s * np.maximum(
        0.0, instance.now_s + slow_s - instance.due_s
    )
    wait_cost = (
        wait_cost + stop_penalty_s * _compute_dearest_per_s(instance, may) + _RATHER * instance.late_per_s
    )
    delay = np.where(instance.now_s + slow_s > instance.due_s, instance.late_per_s, 0.0)
    return Charges(run_cost, _make_positive(wait_cost), np.inf, delay)


def rolling(instance: Instance) -> Charges:
    """Return the costs if a decision is valid for a while, and jobs then go on at the speed of a fair share.

    The rest of the work is done in the cheapest configuration; tardiness rises smoothly around the due date.
    Where energy will be cheaper before a job is due, the same work is worth less now, and the job may wait.
    """
    fair_s = _compute_fair_s(instance)
    ahead_s = _AHEAD * _find_median(fair_s[np.isfinite(fair_s)]) if np.isfinite(fair_s).any() else 1.0
    ahead_s = min(ahead_s, instance.valid_s)
    jobs, shape = instance.jobs, instance.left_s.shape
    later = instance.later_price if instance.later_price.size else np.ones(jobs)
    stop_penalty_s = instance.stop_penalty_s if instance.stop_penalty_s.size else np.zeros(jobs)
    terms = RollingTerms(
        left_s=_as_column(np.where(instance.possible, instance.left_s, np.inf)),
        pause_s=_as_column(instance.pause_s if instance.pause_s.size else np.zeros(shape)),
        own_cost_per_s=_as_column(
            instance.own_cost_per_s if instance.own_cost_per_s.size else np.zeros(shape)
        ),
        cost_per_s=_as_column(instance.cost_per_s),
        fair_s=_as_column(fair_s),
        due_s=_as_column(instance.due_s),
        late_per_s=_as_column(instance.late_per_s),
        later_price=_as_column(later),
        config_node_type=np.ascontiguousarray(instance.config_node_type, dtype=np.int64),
        config_gpus=np.ascontiguousarray(instance.config_gpus, dtype=np.int64),
        gpus=np.ascontiguousarray(instance.gpus, dtype=np.int64),
    )
    run_cost, cheapest, least, dearest, full, dearest_per_s = charge_rolling(
        terms, instance.now_s, ahead_s, _SOFT
    )
    # Energy is no reason to stop a running job at a cost, nor to stop it for a job that wastes more waiting.
    over = dearest - least
    dearest = dearest + np.where(stop_penalty_s > 0, over.max(initial=0.0) - over, 0.0)
    dearest = np.where(later < 1.0, later * cheapest, dearest + _RATHER * full)
    later_s = instance.now_s + ahead_s + stop_penalty_s + np.where(np.isfinite(fair_s), fair_s, 0.0)
    late_s = _smooth_late_s(later_s, instance.due_s, fair_s)
    wait_cost = dearest + instance.late_per_s * late_s + stop_penalty_s * dearest_per_s
    wait_cost = wait_cost + np.where(
        later < 1.0, 0.0, _RATHER * instance.late_per_s
    )  # also where energy costs nothing
    more_s = _smooth_late_s(later_s + 1.0, instance.due_s, fair_s) - late_s
    return Charges(run_cost, _make_positive(wait_cost), ahead_s, instance.late_per_s * more_s)


def _find_median(values: Floats) -> float:
    """Return the median; `np.median` takes longer than all else that is done with few values."""
    ranked, half = np.sort(values), len(values) // 2
    return float(ranked[half] if len(ranked) % 2 else (ranked[half - 1] + ranked[half]) / 2)


def _as_column(values: Floats) -> Floats:
    """Return *values* as kernels take them."""
    return np.ascontiguousarray(values, dtype=np.float64)


def _make_positive(wait_cost: Floats) -> Floats:
    """Return *wait_cost*, raised above 0 where neither energy nor tardiness costs anything."""
    return np.where(wait_cost > 0, wait_cost, max(_RATHER, _RATHER * float(wait_cost.max(initial=0.0))))


def _compute_dearest_per_s(instance: Instance, may: Bools) -> Floats:
    """Return the money per second of each job in its dearest configuration."""
    return np.asarray(np.where(may, instance.job_cost_per_s, 0.0).max(axis=(1, 2), initial=0.0))


def _find_possible(instance: Instance) -> Bools:
    """Return which jobs, configurations and numbers of busy GPUs are possible together."""
    used = np.arange(instance.cost_per_s.shape[1])
    room = instance.gpus[instance.config_node_type]
    fits = (used >= instance.config_gpus[:, None]) & (used <= room[:, None])
    return np.asarray(instance.possible[:, :, None] & fits)


def _compute_fair_s(instance: Instance) -> Floats:
    """Return the remaining time of each job with a fair share of the GPUs, or of time if GPUs are too few."""
    crowd = max(1.0, instance.jobs / max(1, instance.total_gpus))
    most = max(1, instance.total_gpus // max(1, instance.jobs))
    fair = instance.possible & (instance.config_gpus <= max(most, int(instance.config_gpus.min(initial=1))))
    best_s = np.where(fair, instance.left_s, np.inf).min(axis=1, initial=np.inf)
    return np.asarray(np.where(np.isfinite(best_s), best_s, instance.fastest_s) * crowd)


def _smooth_late_s(ends_s: Floats, due_s: Floats, takes_s: Floats) -> Floats:
    """Return the seconds late, smoothed around the due date over a part of the remaining time *takes_s*."""
    width_s = np.maximum(_SOFT * np.where(np.isfinite(takes_s), takes_s, 1.0), 1e-6)
    late = np.where(np.isinf(due_s), -np.inf, (ends_s - np.where(np.isinf(due_s), 0.0, due_s)) / width_s)
    return np.asarray(width_s * np.logaddexp(0.0, late))
