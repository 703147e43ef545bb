"""Forecast of start times."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

import numpy as np

from wattline.core.plan import Plan
from wattline.core.queue import QUEUE_ACCEPTED_KINDS
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.jit import F1, I1, kernel


def predict_starts_s(snapshot: Snapshot, plan: Plan, takes_s: Floats) -> Floats:
    """Return in how many seconds each entry of *plan* starts, if no job overtakes another; inf: never.

    *takes_s* is the remaining time of each row of the queue. GPUs are counted, not nodes; a job that accepts
    several kinds is taken to wait for the kind with most GPUs. The members of a group start with its leader.
    """
    nodes, block = snapshot.nodes, snapshot.queue.block
    kinds = len(nodes.kind.names)
    room = np.bincount(nodes.kind.codes, nodes.gpus * snapshot.usable, kinds).astype(np.int64)
    accepts = (block[QUEUE_ACCEPTED_KINDS, plan.row].astype(np.int64)[:, None] >> np.arange(kinds)) & 1
    kind = np.argmax(accepts * (room + 1), axis=1)
    start_s = np.full(len(snapshot.queue), np.inf)
    leads = np.flatnonzero(plan.group == plan.row)
    start_s[plan.row[leads]] = _predict_starts_s(
        plan.gpus[leads], kind[leads], takes_s[plan.row[leads]], room
    )
    return start_s[plan.group]


@kernel(I1, I1, F1, I1)
def _predict_starts_s(gpus: Ints, kind: Ints, takes_s: Floats, room: Ints) -> Floats:
    start_s = np.full(len(gpus), np.inf)
    for k in range(len(room)):
        free = [(0.0, room[k])]  # when, and how many GPUs
        for p in range(len(gpus)):
            if kind[p] != k or gpus[p] > room[k]:
                continue
            need = gpus[p]
            while need > 0:
                start_s[p], many = free[0]
                if many > need:
                    heapreplace(free, (start_s[p], many - need))
                else:
                    heappop(free)
                need -= min(need, many)
            heappush(free, (start_s[p] + takes_s[p], gpus[p]))
    return start_s
