"""Price of watts over time under a budget: it falls as jobs end.

If watts are what jobs compete for, those that need few joules should run first, as with GPUs. A price that is
the same at all times cannot say so. The profile is the closed form for one machine that turns all allowed
watts into work, the jobs that need the fewest joules for their weight first: at each time the weight of the
jobs that have not ended by then, as a part of that of all jobs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats
from wattline.policy.budget_limits import JOULES, WATTS, BudgetLimits, compute_idle_w
from wattline.policy.market.scene import Scene
from wattline.policy.market.time_values import TimeValues

_LEAST = 1e-3  # of the price now: watts are never free


class WattProfile(NamedTuple):
    """Relative price of budgets over time, 1 now."""

    ends_s: Floats  # of the jobs, ascending, from now
    left: Floats  # part of the weight before the first of them, the second, ..., and after the last

    @property
    def end_s(self) -> float:
        """Time until all jobs have ended; 0: not known."""
        return float(self.ends_s[-1]) if len(self.ends_s) else 0.0

    def at(self, seconds: Floats) -> Floats:
        """Return the price so many seconds from now."""
        if not len(self.ends_s):
            return np.ones(len(seconds))
        return np.asarray(self.left[np.searchsorted(self.ends_s, seconds, side="right")])


FLAT = WattProfile(np.empty(0), np.empty(0))
"""The same price at all times: what a budget of joules needs."""


def build_profile(snapshot: Snapshot, scene: Scene, times: TimeValues, limits: BudgetLimits) -> WattProfile:
    """Return the profile under *limits* of watts; it is flat without one of them, or with one of joules."""
    watts = limits.unit == WATTS
    of_cluster = watts & (limits.team < 0)
    if of_cluster.any():  # with the draw of nodes, which the joules of jobs have their share of
        allowed_w = float(limits.amount[of_cluster].min()) + compute_idle_w(snapshot)
    else:
        allowed_w = float(limits.amount[watts].sum())
    if (limits.unit == JOULES).any() or not 0 < allowed_w < np.inf:
        return FLAT
    columns = scene.columns
    per_work = np.full(len(columns.start) - 1, np.inf)
    of = np.repeat(np.arange(len(per_work)), np.diff(columns.start))
    np.minimum.at(per_work, of, columns.watts / columns.speed)
    joules, weight = scene.work_s * per_work[scene.job_class], times.weight + times.late
    counts = (scene.open_to > 0) & np.isfinite(joules)
    joules, weight = joules[counts], weight[counts]
    if not weight.sum() > 0:
        return FLAT
    order = np.argsort(joules / np.maximum(weight, 1e-12), kind="stable")
    left = np.concatenate((np.cumsum(weight[order][::-1])[::-1], [0.0]))
    return WattProfile(np.cumsum(joules[order]) / allowed_w, np.maximum(left / left[0], _LEAST))
