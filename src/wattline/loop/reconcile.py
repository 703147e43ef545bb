"""The actions that turn one set of leases into another."""

from __future__ import annotations

import math

import numpy as np

from wattline.core.actions import (
    ACTION_COLUMNS,
    NO_ACTIONS,
    POWER_OFF,
    POWER_ON,
    RETUNE,
    START,
    STOP,
    Actions,
)
from wattline.core.leases import LEASE_ROWS, Leases
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Ints
from wattline.jit import I2, kernel


def reconcile(old: Leases, new: Leases) -> Actions:
    """The fewest stops and starts that turn *old* into *new*; another cap alone is set without a stop.

    Who joins or leaves a group that goes on moves to other GPUs, even on the same node.
    """
    if old is new:
        return NO_ACTIONS
    actions = _reconcile(old.block, new.block)
    actions.setflags(write=False)
    return actions


@kernel(I2, I2)
def _reconcile(old: Ints, new: Ints) -> Actions:
    old_job, old_group, old_node, old_gpus = old[0], old[1], old[2], old[3]
    job, group, node, gpus = new[0], new[1], new[2], new[3]
    # One walk over both, job by job, notes what becomes of each; stops are written before starts,
    # because what one job gives back another may take.
    stops = np.zeros(len(old_job), dtype=np.bool_)  # on the first row of a job
    starts = np.zeros(len(job), dtype=np.bool_)  # on every row of a job
    tunes = np.zeros(len(job), dtype=np.bool_)  # on the first row of a job
    count = 0
    a = b = 0
    while a < len(old_job) or b < len(job):
        who = old_job[a] if b == len(job) or (a < len(old_job) and old_job[a] <= job[b]) else job[b]
        a_end, b_end = a, b
        while a_end < len(old_job) and old_job[a_end] == who:
            a_end += 1
        while b_end < len(job) and job[b_end] == who:
            b_end += 1
        same = a_end - a == b_end - b and old_group[a] == group[b] and old[5, a] == new[5, b]
        for k in range(a_end - a if same else 0):
            same = same and old_node[a + k] == node[b + k] and old_gpus[a + k] == gpus[b + k]
        if not same:
            if a_end > a:
                stops[a] = True
                count += 1
            starts[b:b_end] = True
            count += b_end - b
        else:
            for c in range(4, LEASE_ROWS):
                tunes[b] = tunes[b] or old[c, a] != new[c, b]
            count += tunes[b]
        a, b = a_end, b_end
    actions = np.zeros((count, ACTION_COLUMNS), dtype=np.int64)
    at = 0
    for r in range(len(old_job)):
        if stops[r]:
            actions[at, :4] = (STOP, old_job[r], old_group[r], -1)
            at += 1
    for r in range(len(job)):  # before others start: who gives something back does so first
        if tunes[r]:
            actions[at, :4] = (RETUNE, job[r], group[r], -1)
            actions[at, 5:] = new[4:, r]
            at += 1
    for r in range(len(job)):
        if starts[r]:
            actions[at, :5] = (START, job[r], group[r], node[r], gpus[r])
            actions[at, 5:] = new[4:, r]
            at += 1
    return actions


def switch(snapshot: Snapshot, on: Bools) -> Actions:
    """What switches nodes so that *on* are on; a node that is down for another reason is left alone."""
    off = np.flatnonzero(snapshot.up & ~on)
    wake = np.flatnonzero((snapshot.wakes_s == math.inf) & on)
    actions = np.zeros((len(off) + len(wake), ACTION_COLUMNS), dtype=np.int64)
    actions[:, 0] = np.repeat((POWER_OFF, POWER_ON), (len(off), len(wake)))
    actions[:, 1:3] = -1
    actions[:, 3] = np.concatenate((off, wake))
    return actions
