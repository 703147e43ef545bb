"""Remaining run time of queued jobs."""

from __future__ import annotations

import numpy as np

from wattline.core.grants import Grants
from wattline.core.nodes import HOST_RESOURCES
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats
from wattline.models.array_speed import count_group_members


def remaining_s(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Floats:
    """Return the seconds that each queued job still needs with its request, predicted by *models*.

    If *plan* sets host resources, a waiting job is assumed to get them and a running job to keep its own.
    """
    queue, jobs = snapshot.queue, snapshot.jobs
    host = None
    if plan is not None and plan.host is not None:
        host = np.zeros((len(HOST_RESOURCES), len(queue)), dtype=np.int64)
        host[:, plan.row] = plan.host
        runs = np.flatnonzero(queue.running)
        host[:, runs] = snapshot.leases.host[:, np.searchsorted(snapshot.leases.job, queue.job[runs])]
    speed = models.speed(jobs, Grants.of(queue.job, queue.requested_gpus, host=host))
    return np.asarray(snapshot.steps_left * jobs.step_s[queue.job] / speed)


def group_remaining_s(snapshot: Snapshot, models: Models, plan: Plan) -> Floats:
    """Return the seconds until the last job of each queued job's group ends under *plan*.

    Speeds are taken as at the start: that the rest of a group runs faster after the first end is ignored.
    """
    queue, jobs = snapshot.queue, snapshot.jobs
    gpus, leader = queue.requested_gpus, np.arange(len(queue), dtype=np.int64)
    gpus[plan.row], leader[plan.row] = plan.gpus, plan.group
    grants = Grants.of(queue.job, gpus)
    if (plan.group != plan.row).any():
        members, fused = count_group_members(jobs, queue.job, leader)
        grants = Grants.of(queue.job, gpus, members=members, fused=fused)
    end_s = snapshot.steps_left * jobs.step_s[queue.job] / models.speed(jobs, grants)
    last = np.zeros(len(queue))
    np.maximum.at(last, leader, end_s)
    return last[leader]
