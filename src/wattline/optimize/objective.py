"""What a decision is charged for: a tensor by job, configuration and busy GPUs of its node, and what waiting
costs.

Energy of a node goes to its jobs by their GPUs. So a job alone on a node pays for all of it, and one that
shares it pays less: the tensor needs to know how many GPUs are busy, and nothing else of the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.table import Floats
from wattline.optimize.instance import Event

_AHEAD = 0.2  # of the median of what jobs take: for so long a decision is taken to stand
_RATHER = (
    1e-3  # of the dearest way to run: who waits pays so much more, so that nobody waits beside free GPUs
)
_SOFT = 0.3  # of what a job takes: the width around its due date in which it is a little late


@dataclass(frozen=True, eq=False)
class Charges:
    """*runs*[job, configuration, busy] is inf where it cannot be; *waits* by job.

    *stands_s*: for how long the decision is taken to stand; who decides by it should decide again then.
    *delay*: by job, what a second without progress costs beside energy.
    """

    runs: Floats
    waits: Floats
    stands_s: float
    delay: Floats


def to_the_end(event: Event, rho: float = 1.0) -> Charges:
    """Everybody runs on to its end as decided now, or waits and is then the slowest it can be.

    Energy is never a reason to wait: who waits pays for the dearest way to run.
    """
    share, left_s = event.share_s, event.known_s
    late_s = np.maximum(0.0, event.now_s + left_s - event.due_s[:, None])
    energy = left_s[:, :, None] * share
    runs = np.where(_may(event), energy + (event.late[:, None] * late_s)[:, :, None], np.inf)
    dearest = np.where(_may(event), energy, 0.0).max(axis=(1, 2), initial=0.0)
    slow_s = np.where(np.isfinite(event.slowest_s), event.slowest_s, 0.0)
    stop_s = event.stop_s if event.stop_s.size else np.zeros(event.jobs)
    slow_s = slow_s + stop_s
    waits = (1 + _RATHER) * dearest + rho * event.late * np.maximum(0.0, event.now_s + slow_s - event.due_s)
    waits = waits + stop_s * _dearest_s(event) + _RATHER * event.late
    delay = np.where(event.now_s + slow_s > event.due_s, event.late, 0.0)
    return Charges(runs, _something(waits), np.inf, delay)


def rolling(event: Event) -> Charges:
    """A decision stands for a while only; then everybody goes on at a fair share's speed.

    What is not done meanwhile is done in the cheapest way; who is nearly late is a little late already.
    Where energy will be cheaper before a job is due, the same work is worth less now, and the job may wait.
    """
    fair_s = _fair_s(event)
    ahead_s = _AHEAD * float(np.median(fair_s[np.isfinite(fair_s)])) if np.isfinite(fair_s).any() else 1.0
    ahead_s = min(ahead_s, event.stands_s)
    left_s = event.known_s
    run_s = np.minimum(left_s, ahead_s)
    pause_s = event.pause_s if event.pause_s.size else 0.0
    done = np.maximum(run_s - pause_s, 0.0) / np.where(event.possible, left_s - pause_s, 1.0)
    rest_s = (1.0 - done) * np.where(np.isfinite(fair_s), fair_s, 0.0)[:, None]
    share = event.share_s
    later = event.later if event.later.size else np.ones(event.jobs)
    stop_s = event.stop_s if event.stop_s.size else np.zeros(event.jobs)
    may = _may(event)
    cheapest = np.where(may, left_s[:, :, None] * share, np.inf).min(axis=(1, 2), initial=np.inf)
    cheapest = np.where(np.isfinite(cheapest), cheapest, 0.0)
    energy = run_s[:, :, None] * share + ((1.0 - done) * (later * cheapest)[:, None])[:, :, None]
    late = event.late[:, None] * _soft_late_s(
        event.now_s + run_s + rest_s, event.due_s[:, None], fair_s[:, None]
    )
    runs = np.where(may, energy + late[:, :, None], np.inf)
    dearest = np.where(may, energy, 0.0).max(axis=(1, 2), initial=0.0)
    later_s = event.now_s + ahead_s + stop_s + np.where(np.isfinite(fair_s), fair_s, 0.0)
    full = np.where(may, run_s[:, :, None] * share, 0.0).max(axis=(1, 2), initial=0.0)
    # Energy is no reason to stop who runs, if that costs anything: also not for who wastes more by waiting.
    least = np.where(may, energy, np.inf).min(axis=(1, 2), initial=np.inf)
    over = dearest - np.where(np.isfinite(least), least, 0.0)
    dearest = dearest + np.where(stop_s > 0, over.max(initial=0.0) - over, 0.0)
    dearest = np.where(later < 1.0, later * cheapest, dearest + _RATHER * full)
    waits = dearest + event.late * _soft_late_s(later_s, event.due_s, fair_s) + stop_s * _dearest_s(event)
    waits = waits + np.where(later < 1.0, 0.0, _RATHER * event.late)  # also where energy costs nothing
    more_s = _soft_late_s(later_s + 1.0, event.due_s, fair_s) - _soft_late_s(later_s, event.due_s, fair_s)
    return Charges(runs, _something(waits), ahead_s, event.late * more_s)


def _something(waits: Floats) -> Floats:
    """*waits*, with a little where neither energy nor being late costs anything: nobody waits for nothing."""
    return np.where(waits > 0, waits, max(_RATHER, _RATHER * float(waits.max(initial=0.0))))


def _dearest_s(event: Event) -> Floats:
    """Money per second of each job in its dearest configuration."""
    return np.asarray(np.where(_may(event), event.share_s, 0.0).max(axis=(1, 2), initial=0.0))


def _may(event: Event) -> Floats:
    """Which job, configuration and number of busy GPUs go together."""
    used = np.arange(event.cost_s.shape[1])
    room = event.gpus[event.config_sort]
    fits = (used >= event.config_gpus[:, None]) & (used <= room[:, None])
    return np.asarray(event.possible[:, :, None] & fits)


def _fair_s(event: Event) -> Floats:
    """What each job takes with a fair share of the GPUs, waiting for its turn where there are too few."""
    crowd = max(1.0, event.jobs / max(1, event.total_gpus))
    most = max(1, event.total_gpus // max(1, event.jobs))
    fair = event.possible & (event.config_gpus <= max(most, int(event.config_gpus.min(initial=1))))
    best_s = np.where(fair, event.left_s, np.inf).min(axis=1, initial=np.inf)
    return np.asarray(np.where(np.isfinite(best_s), best_s, event.fastest_s) * crowd)


def _soft_late_s(ends_s: Floats, due_s: Floats, takes_s: Floats) -> Floats:
    """Seconds late, with a bend as wide as a part of what a job takes: more than none just before."""
    width_s = np.maximum(_SOFT * np.where(np.isfinite(takes_s), takes_s, 1.0), 1e-6)
    late = np.where(np.isinf(due_s), -np.inf, (ends_s - np.where(np.isinf(due_s), 0.0, due_s)) / width_s)
    return np.asarray(width_s * np.logaddexp(0.0, late))
