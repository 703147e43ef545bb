"""Gandiva: time slices in turn, and packing of two jobs onto the same GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wattline.core.grants import Grants
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_ACCEPTED_KINDS
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Ints
from wattline.errors import ConfigError
from wattline.policy.chain import can_all_run, plan_as_requested, predict_running, rank_rows


@dataclass(frozen=True)
class Gandiva:
    """Round robin by time slices, two jobs to a GPU where that pays (Xiao et al., OSDI 2018, "Gandiva").

    The job that has had fewest slices of *slice_s* seconds goes first; a decision is made every slice while
    a job waits. When the queue requests more GPUs than there are, jobs that would wait are packed onto jobs
    with as many GPUs, if the models predict that a pair does more work than its members one after the
    other. A job keeps its GPUs until it has saved a checkpoint in its turn: it would start over in the next.
    *Deviates:* the original finds pairs by trying them; here the models predict them. Growing into idle GPUs
    and migrating to defragment are left to other stages and placers.
    """

    slice_s: float = 300.0

    def __post_init__(self) -> None:
        if not self.slice_s >= 1:
            raise ConfigError(f"slice_s must be at least 1, got {self.slice_s}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`."""
        if plan is None and can_all_run(snapshot):
            return plan_as_requested(snapshot)
        slices = np.floor(snapshot.service_s / self.slice_s)
        slices[snapshot.unsaved] = -1.0
        plan = rank_rows(snapshot, plan, slices)
        _, waits, _ = predict_running(snapshot, plan)
        if not waits.any():
            return plan
        tick_s = min(plan.next_decision_s, snapshot.now_s + self.slice_s)
        return replace(plan, group=_pair_jobs(snapshot, models, plan), next_decision_s=tick_s, stable=False)


def _pair_jobs(snapshot: Snapshot, models: Models, plan: Plan) -> Ints:
    """Return the group of every entry of the plan after waiting jobs were packed onto running ones."""
    group = plan.group.copy()
    at = np.full(len(snapshot.queue), -1, dtype=np.int64)  # row of the queue → row of the plan
    at[plan.row] = np.arange(len(plan))
    alone = np.bincount(plan.group, minlength=len(at))[plan.group] == 1
    free = _find_packable(snapshot, models, plan) & alone

    # Pairs that run as pairs stay pairs: moving them costs a restart.
    leases, job = snapshot.leases, snapshot.queue.job
    packed = leases.job != leases.group
    followers = at[np.searchsorted(job, np.unique(leases.job[packed]))]
    leaders = at[
        np.searchsorted(job, leases.group[packed][np.unique(leases.job[packed], return_index=True)[1]])
    ]
    both = (followers >= 0) & (leaders >= 0)  # no earlier stage has held one back
    followers, leaders = followers[both], leaders[both]
    stay = free[followers] & free[leaders] & (plan.gpus[followers] == plan.gpus[leaders])
    group[followers[stay]] = plan.row[leaders[stay]]
    free[followers[stay]] = False
    free[leaders[stay]] = False

    leads = group == plan.row
    runs = leads & predict_running(snapshot, Plan(plan.row, plan.gpus, group.copy()))[0]
    accepts = snapshot.queue.block[QUEUE_ACCEPTED_KINDS][plan.row]
    for size, kinds in sorted(set(zip(plan.gpus[free].tolist(), accepts[free].tolist(), strict=True))):
        alike = free & (plan.gpus == size) & (accepts == kinds)
        hosts = np.flatnonzero(alike & runs)
        guests = np.flatnonzero(alike & leads & ~runs)
        pairs = min(len(hosts), len(guests))
        group[guests[:pairs]] = plan.row[hosts[:pairs]]
    return group


def _find_packable(snapshot: Snapshot, models: Models, plan: Plan) -> Bools:
    """Return which jobs have more than half their speed beside another job."""
    job, two = snapshot.queue.job[plan.row], np.full(len(plan), 2, dtype=np.int64)
    alone = models.speed(snapshot.jobs, Grants.of(job, plan.gpus))
    beside = models.speed(snapshot.jobs, Grants.of(job, plan.gpus, members=two))
    return np.asarray(2 * beside > alone)
