"""Actions that turn one set of leases into another, or switch nodes on and off."""

from __future__ import annotations

import math

import numpy as np

from wattline.core.actions import (
    ACTION_CAP_W,
    ACTION_COLUMNS,
    ACTION_GPUS,
    ACTION_GROUP,
    ACTION_JOB,
    ACTION_NODE,
    ACTION_VERB,
    NO_ACTIONS,
    POWER_OFF,
    POWER_ON,
    RETUNE,
    START,
    STOP,
    Actions,
)
from wattline.core.leases import (
    LEASE_BATCH,
    LEASE_CAP_W,
    LEASE_GPUS,
    LEASE_GROUP,
    LEASE_JOB,
    LEASE_NODE,
    LEASE_ROWS,
    Leases,
)
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Ints
from wattline.jit import I2, inner, kernel


def reconcile(old: Leases, new: Leases) -> Actions:
    """Return the fewest actions that turn *old* into *new*.

    If only the power cap or the host share of a job changes, it is retuned without a stop. A job that joins
    or leaves a group is restarted, even on the same node, because it moves to other GPUs.
    """
    if old is new:
        return NO_ACTIONS
    actions = _reconcile(old.block, new.block)
    actions.setflags(write=False)
    return actions


@inner
def _find_first_change(old: Ints, new: Ints) -> int:
    """Return the first column of the first job with other leases than before: most rounds only add some."""
    length: int = min(old.shape[1], new.shape[1])
    for c in range(LEASE_ROWS):
        r = 0
        while r < length and old[c, r] == new[c, r]:
            r += 1
        length = r
    while length > 0 and (
        (length < old.shape[1] and old[LEASE_JOB, length] == old[LEASE_JOB, length - 1])
        or (length < new.shape[1] and new[LEASE_JOB, length] == new[LEASE_JOB, length - 1])
    ):
        length -= 1
    return length


@kernel(I2, I2)
def _reconcile(old: Ints, new: Ints) -> Actions:
    """Merge both lists of leases job by job, then write stops, retunes and starts."""
    old_job, job = old[LEASE_JOB], new[LEASE_JOB]
    old_group, group = old[LEASE_GROUP], new[LEASE_GROUP]
    old_node, node = old[LEASE_NODE], new[LEASE_NODE]
    old_gpus, gpus = old[LEASE_GPUS], new[LEASE_GPUS]
    stops = np.zeros(len(old_job), dtype=np.bool_)  # on the first row of a job
    starts = np.zeros(len(job), dtype=np.bool_)  # on every row of a job
    retunes = np.zeros(len(job), dtype=np.bool_)  # on the first row of a job
    count = 0
    a = b = same_until = _find_first_change(old, new)
    while a < len(old_job) or b < len(job):
        current = old_job[a] if b == len(job) or (a < len(old_job) and old_job[a] <= job[b]) else job[b]
        a_end, b_end = a, b
        while a_end < len(old_job) and old_job[a_end] == current:
            a_end += 1
        while b_end < len(job) and job[b_end] == current:
            b_end += 1
        same = (
            a_end - a == b_end - b and old_group[a] == group[b] and old[LEASE_BATCH, a] == new[LEASE_BATCH, b]
        )
        for k in range(a_end - a if same else 0):
            same = same and old_node[a + k] == node[b + k] and old_gpus[a + k] == gpus[b + k]
        if not same:
            if a_end > a:
                stops[a] = True
                count += 1
            starts[b:b_end] = True
            count += b_end - b
        else:
            for c in range(LEASE_CAP_W, LEASE_ROWS):
                retunes[b] = retunes[b] or old[c, a] != new[c, b]
            count += retunes[b]
        a, b = a_end, b_end
    actions = np.zeros((count, ACTION_COLUMNS), dtype=np.int64)
    at = 0
    # Resources are released before other jobs take them: stops first, then retunes, then starts.
    for r in range(same_until, len(old_job)):
        if stops[r]:
            actions[at, :ACTION_GPUS] = (STOP, old_job[r], old_group[r], -1)
            at += 1
    for r in range(same_until, len(job)):
        if retunes[r]:
            actions[at, :ACTION_GPUS] = (RETUNE, job[r], group[r], -1)
            actions[at, ACTION_CAP_W:] = new[LEASE_CAP_W:, r]
            at += 1
    for r in range(same_until, len(job)):
        if starts[r]:
            actions[at, :ACTION_CAP_W] = (START, job[r], group[r], node[r], gpus[r])
            actions[at, ACTION_CAP_W:] = new[LEASE_CAP_W:, r]
            at += 1
    return actions


def switch_nodes(snapshot: Snapshot, on: Bools) -> Actions:
    """Return the actions that switch the nodes *on* on and the others off; failed nodes are left alone."""
    off = np.flatnonzero(snapshot.up & ~on)
    boot = np.flatnonzero((snapshot.boot_done_s == math.inf) & on)
    actions = np.zeros((len(off) + len(boot), ACTION_COLUMNS), dtype=np.int64)
    actions[:, ACTION_VERB] = np.repeat((POWER_OFF, POWER_ON), (len(off), len(boot)))
    actions[:, ACTION_JOB] = actions[:, ACTION_GROUP] = -1
    actions[:, ACTION_NODE] = np.concatenate((off, boot))
    return actions
