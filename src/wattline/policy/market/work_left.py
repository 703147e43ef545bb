"""Work that jobs have left: what is known, or what is left on the average after estimates were off so far.

An estimate of a duration is often off by a factor, and jobs that have run for long tend to go on for long. So
the durations of ended jobs over their estimates, and what others have done of theirs, are a sample of what
may come: a job that has done a times its estimate has the mean of the larger ratios left, less a. Before jobs
have ended, and beside them, ratios are taken to be log-normal, and wide.

Many jobs end soon whatever their estimate: they fail, or are tests. A job in its first turn counts with the
work that it takes until one of so many such jobs has ended, if that is less: the inverse of its Gittins index
for one turn.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from wattline.core.estimates import Estimates
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats
from wattline.policy.elastic.restart_costs import compute_work_s

_SPREAD = 1.5  # standard deviation of the logarithm of ratios that have not been seen
_POINTS = 10  # of them, beside those of ended jobs
_LAST_ENDED = 1000  # jobs among which short ones are counted
_LEAST_LEFT_S = 60.0

_UNSEEN = np.exp([NormalDist(0.0, _SPREAD).inv_cdf((i + 0.5) / _POINTS) for i in range(_POINTS)])


def compute_work_left_s(snapshot: Snapshot, turn_s: Floats) -> Floats:
    """Return the remaining work of each row of the queue, in seconds as requested.

    *turn_s* is the length of its turn, see above.
    """
    if snapshot.estimates is None:
        return compute_work_s(snapshot)
    job = snapshot.queue.job
    estimate_s = np.maximum(np.nan_to_num(snapshot.estimates.at_arrival_s[job]), 1.0)
    done_s = snapshot.steps_done * snapshot.jobs.step_s[job]
    done = done_s / estimate_s
    left = compute_mean_left(done, snapshot.estimates.ratio, done[done > 0])
    left_s = np.where(np.isnan(left), done_s, left * estimate_s)
    new_s = np.minimum(left_s, turn_s / _find_chances(snapshot, snapshot.estimates, turn_s))
    return np.maximum(np.where(done_s < turn_s, new_s, left_s), _LEAST_LEFT_S)


def _find_chances(snapshot: Snapshot, estimates: Estimates, turn_s: Floats) -> Floats:
    """Return the part of ended jobs that took no more than each *turn_s*; one in ten before any has."""
    has_ended = ~np.isnan(estimates.at_arrival_s)
    has_ended[snapshot.queue.job] = False
    ended_s = np.sort(snapshot.jobs.duration_s[has_ended][-_LAST_ENDED:])
    return np.asarray((np.searchsorted(ended_s, turn_s, side="right") + 1.0) / (len(ended_s) + _POINTS))


def compute_mean_left(done: Floats, ratio: Floats, at_least: Floats) -> Floats:
    """Return what jobs that have *done* so much of their estimate have left of it; nan: no ratio is larger.

    *ratio* are the durations of ended jobs over their estimates, and *at_least* what jobs that have not ended
    have done so far: short jobs end first, so ended ones alone would make all others look short. Ratios count
    as Kaplan and Meier (1958) have it.
    """
    sample = np.sort(np.concatenate((ratio, _UNSEEN)))
    going_on = len(at_least) - np.searchsorted(np.sort(at_least), sample, side="left")
    at_risk = np.arange(len(sample), 0, -1) + going_on
    survives = np.cumprod(1.0 - 1.0 / at_risk)
    weight = np.concatenate(([1.0], survives[:-1])) - survives
    weight[-1] += survives[-1]
    total, mass = (np.concatenate((np.cumsum(each[::-1])[::-1], [0.0])) for each in (weight * sample, weight))
    first = np.searchsorted(sample, done, side="right")
    is_known = first < len(sample)
    return np.where(is_known, total[first] / np.where(is_known, mass[first], 1.0) - done, np.nan)
