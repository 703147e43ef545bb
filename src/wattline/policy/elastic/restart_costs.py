"""Remaining work of jobs, and their speed at each size with the cost of a restart."""

from __future__ import annotations

import numpy as np

from wattline.core.queue import (
    QUEUE_FIRST_START_S,
    QUEUE_JOB,
    QUEUE_PROGRESS_AT_S,
    QUEUE_STEPS_DONE,
    QUEUE_STEPS_PER_S,
)
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.jit import BOOL, F1, F2, F3, FLOAT, I1, I2, kernel
from wattline.policy.elastic.capacity import Capacity


def compute_work_s(snapshot: Snapshot) -> Floats:
    """Return the remaining work of each row of the queue, in seconds as requested."""
    return _compute_work_s(snapshot.queue.block, snapshot.now_s, snapshot.jobs.steps, snapshot.jobs.step_s)


@kernel(F2, FLOAT, F1, F1)
def _compute_work_s(block: Floats, now_s: float, steps: Floats, step_s: Floats) -> Floats:
    work_s = np.empty(block.shape[1])
    for i in range(len(work_s)):
        job = int(block[QUEUE_JOB, i])
        ran_s = max(0.0, now_s - block[QUEUE_PROGRESS_AT_S, i])
        done = block[QUEUE_STEPS_DONE, i] + block[QUEUE_STEPS_PER_S, i] * ran_s
        work_s[i] = max(0.0, steps[job] - done) * step_s[job]
    return work_s


def compute_restart_s(snapshot: Snapshot, assumed_s: float) -> Floats:
    """Return what a restart of each row of the queue costs: its start-up, and the work that a stop loses.

    The start-up is that of its last restart. Until one is measured, it is the median of the queued jobs of
    the same model, or *assumed_s* without any, and at least that of its first start, which loads no
    checkpoint.
    """
    queue, model = snapshot.queue, snapshot.jobs.model.codes[snapshot.queue.job]
    measured_s = queue.restart_s
    expected_s = np.full(len(queue), assumed_s)
    known = np.flatnonzero(~np.isnan(measured_s))
    if len(known):
        order = known[np.lexsort((measured_s[known], model[known]))]
        models, first, count = np.unique(model[order], return_index=True, return_counts=True)
        median_s = measured_s[order[first + count // 2]]
        at = np.minimum(np.searchsorted(models, model), len(models) - 1)
        expected_s = np.where(models[at] == model, median_s[at], assumed_s)
    expected_s = np.fmax(expected_s, queue.startup_s)  # where that is not nan
    return np.where(np.isnan(measured_s), expected_s, measured_s) + snapshot.lost_work_s


def discount_restarts(
    snapshot: Snapshot, capacity: Capacity, left_s: Floats, rescale_s: float, horizon_s: float
) -> Floats:
    """Return the factor on the speed of each row at each size that accounts for a restart.

    It is H / (H + *rescale_s*) where a job that has run would change its size, else 1. H is *left_s*, the
    remaining time of the job, or *horizon_s* if that is shorter. Work that a stop would lose adds to
    *rescale_s*.
    """
    counted_s = np.clip(left_s, 1.0, horizon_s)
    cost_s = rescale_s + snapshot.lost_work_s[:, None]
    restarts = capacity.configs.gpus[capacity.job_class] != capacity.held[:, None]
    restarts &= ~np.isnan(snapshot.queue.first_start_s)[:, None]
    return np.where(restarts, counted_s / (counted_s + cost_s), 1.0)


def compute_speeds(
    snapshot: Snapshot,
    capacity: Capacity,
    left_s: Floats,
    rescale_s: float,
    horizon_s: float,
    *,
    as_requested: bool,
) -> Floats:
    """Return the speed of each row at each size without cap, times the factor of `discount_restarts`.

    *left_s* is the remaining time of each row; if it is *as_requested*, at speed 1, so that other sizes
    take less or more.
    """
    configs = capacity.configs
    return _compute_speeds(
        snapshot.queue.block,
        snapshot.lost_work_s,
        left_s,
        as_requested,
        rescale_s,
        horizon_s,
        capacity.job_class,
        capacity.held,
        configs.gpus,
        configs.speed,
    )


@kernel(F2, F1, F1, BOOL, FLOAT, FLOAT, I1, I1, I2, F3)
def _compute_speeds(
    block: Floats,
    lost_s: Floats,
    left_s: Floats,
    as_requested: bool,
    rescale_s: float,
    horizon_s: float,
    job_class: Ints,
    held: Ints,
    gpus: Ints,
    speeds: Floats,
) -> Floats:
    """Return the factor of `discount_restarts` times the speed without cap, by row and size."""
    last = speeds.shape[2] - 1
    speed = np.empty((len(job_class), gpus.shape[1]))
    for i in range(len(job_class)):
        c = job_class[i]
        has_run = not np.isnan(block[QUEUE_FIRST_START_S, i])
        for s in range(gpus.shape[1]):
            speed[i, s] = speeds[c, s, last]
            if has_run and gpus[c, s] != held[i]:
                counted_s = left_s[i]
                if as_requested:
                    counted_s = left_s[i] / speed[i, s] if speed[i, s] > 0 else np.inf
                counted_s = min(max(counted_s, 1.0), horizon_s)
                speed[i, s] *= counted_s / (counted_s + (rescale_s + lost_s[i]))
    return speed
