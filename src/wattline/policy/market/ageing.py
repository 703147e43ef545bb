"""Ageing: no job waits much longer than it would in order of submission.

The wait under FIFO is computed from the jobs themselves, without memory (see `fifo_waits`). A job that has
waited in all, before its first start and after stops, for more than a part of some such waits and an hour
gets GPUs before all others, and is not stopped for them any more. A small difference between paper and
cluster grows with every job that follows, so there are two such schedules, one with a few GPUs more. Where
durations are estimates, further ones end jobs as early as they can end, and the shortest wait counts.

The weight of a job's time grows with its completion time, as if a norm of all completion times was least, a
little above their mean: long jobs finish earlier, at next to no cost of the mean.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.policy.budget_limits import WATTS, BudgetLimits, compute_idle_w
from wattline.policy.market.fifo_waits import find_earliest_fifo_starts, find_fifo_starts
from wattline.policy.market.scene import Scene

_MORE_S = 3600.0  # a wait of some times that under FIFO and an hour is never exceeded
_MARGIN = 0.5  # of the times under FIFO have passed when a job becomes overdue: they are estimates
_LATE_MARGIN = 0.8  # of the hour, and of the least times under FIFO: until nodes have booted, jobs have moved
_PAPER_GPUS = (1.0, 1.1)  # on paper, times those of the cluster: the earlier start counts
_PAPER_STEPS = 16  # in which GPUs on paper follow a budget of watts
_LEAST_WAIT_S = 60.0  # until the next decision because of a job that becomes overdue
_MOST_OVERDUE = (
    0.5  # of GPUs and watts: beyond that there are too many jobs, or durations were underestimated
)
_SLOW = 5.0  # older jobs than so many times their run time and an hour gain weight
_TAIL = 0.4  # exponent of completion times in weights; 0: only their mean counts
_LEAST_JCT_S = 60.0  # jobs that end sooner have the same weight


class Overdue(NamedTuple):
    """Rows that must run, running ones first, then the most overdue, and when others would be."""

    rows: Ints
    at_s: Floats  # by row of the queue, if it waits from now on; inf: never, or already

    def find_next_s(self, now_s: float, waits: Bools) -> float:
        """Return when the first of the rows that *waits* is overdue; inf: none."""
        return max(float(self.at_s[waits].min(initial=math.inf)), now_s + _LEAST_WAIT_S)


def find_overdue(snapshot: Snapshot, scene: Scene, times: float, limits: BudgetLimits) -> Overdue:
    """Return the rows that have waited for so long that they must run: *times* the wait under FIFO.

    They have a part of the GPUs, and of the watts that *limits* allow.
    """
    queue, jobs = snapshot.queue, snapshot.jobs
    waited_s = snapshot.now_s - jobs.submit_s[queue.job] - snapshot.service_s
    allowed_s = np.full(len(waited_s), _LATE_MARGIN * _MORE_S)
    of_cluster = (limits.unit == WATTS) & (limits.team < 0)
    allowed_w = float(limits.amount[of_cluster].min(initial=math.inf)) + compute_idle_w(snapshot)
    if (waited_s > allowed_s).any():
        allowed_s += times * _find_fifo_waits_s(snapshot, _count_powered_gpus(snapshot, scene, allowed_w))
    is_open, left_s = scene.open_to > 0, allowed_s - waited_s
    rows = np.flatnonzero(is_open & (left_s < 0))
    # Those that run stay: jobs that are overdue would else stop each other in turn.
    rows = rows[np.lexsort((-(waited_s / allowed_s)[rows], ~queue.running[rows]))]
    least = scene.configs.gpus[scene.job_class[rows], 0]
    fits = _is_within(least, float(scene.room.sum()))
    if allowed_w < math.inf:
        fits &= _is_within(_find_least_watts(scene, rows), allowed_w)
    rows = rows[fits]
    return Overdue(rows, np.where(is_open & (left_s >= 0), snapshot.now_s + left_s, math.inf))


def _find_fifo_waits_s(snapshot: Snapshot, room: int) -> Floats:
    """Return the wait of each row under FIFO on *room* GPUs that may be relied on, less a margin."""
    papers = [round(more * room) for more in _PAPER_GPUS]
    starts = [_MARGIN * _count_wait_s(snapshot, find_fifo_starts(snapshot, gpus)) for gpus in papers]
    if snapshot.estimates is not None:
        earliest_s = find_earliest_fifo_starts(snapshot, papers)
        starts.append(_LATE_MARGIN * _count_wait_s(snapshot, earliest_s))
    return np.asarray(np.fmin.reduce(starts))


def _count_wait_s(snapshot: Snapshot, start_s: Floats) -> Floats:
    """Return the wait until *start_s*; of a start that is still to come only that it has not come yet."""
    return np.asarray(np.fmin(start_s, snapshot.now_s) - snapshot.jobs.submit_s[snapshot.queue.job])


def _count_powered_gpus(snapshot: Snapshot, scene: Scene, allowed_w: float) -> int:
    """Return how many GPUs *allowed_w* can supply, with their nodes: all, or some sixteenths of them.

    FIFO would have no more under the same budget. Steps keep schedules on paper valid for some decisions.
    """
    nodes, room = snapshot.nodes, int(scene.room.sum())
    full_w = float((nodes.base_w + nodes.gpus * nodes.busy_w).sum())
    if not allowed_w < full_w:
        return room
    return max(1, room * math.ceil(_PAPER_STEPS * allowed_w / full_w) // _PAPER_STEPS)


def _is_within(needs: Floats | Ints, room: float) -> Bools:
    """Return which rows, one after the other, have their part of *room*; the first has it in any case."""
    taken = np.cumsum(needs)
    return np.asarray(taken <= max(_MOST_OVERDUE * room, float(taken[:1].sum())))


def _find_least_watts(scene: Scene, rows: Ints) -> Floats:
    """Return what each of *rows* draws at least, with its share of its node."""
    configs, of = scene.configs, scene.job_class[rows]
    drawn_w = np.where(configs.speed[of, 0] > 0, configs.watts[of, 0], math.inf).min(axis=1)
    return np.asarray(drawn_w + configs.static_w[of] * configs.gpus[of, 0])


def compute_age_weights(snapshot: Snapshot, scene: Scene) -> Floats:
    """Return the weight of each row: 1 on the average, more for jobs that end late, or are late already.

    The derivative of Σ T^(1 + q), T the completion time at the requested speed, is T^q; a job gains further
    once its age exceeds a multiple of its run time.
    """
    jobs, job = snapshot.jobs, snapshot.queue.job
    age_s = snapshot.now_s - jobs.submit_s[job]
    weight = (np.maximum(age_s, 0.0) + scene.work_s + _LEAST_JCT_S) ** _TAIL
    is_open = scene.open_to > 0
    if is_open.any():  # the price of energy is in seconds of a job of mean weight
        weight /= weight[is_open].mean()
    return weight * np.maximum(1.0, age_s / (_SLOW * np.maximum(jobs.duration_s[job], 1.0) + _MORE_S))
