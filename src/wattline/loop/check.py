"""Raise when a placement breaks a rule."""

from __future__ import annotations

import numpy as np

from wattline.core.plan import Placement
from wattline.core.queue import (
    ACCEPTS,
    JOB,
)
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import GrantedTwice, Oversubscribed, PlanError, UnknownJob
from wattline.jit import B1, F2, I1, I2, find, kernel


def check(placement: Placement, snapshot: Snapshot) -> None:
    """Raise a `PlanError` where leases give a node away twice or name jobs wrongly."""
    leases = placement.leases
    if len(placement.reason) != len(snapshot.queue):
        raise PlanError(
            f"{len(placement.reason)} reasons were given for {len(snapshot.queue)} jobs in the queue"
        )
    nodes = snapshot.nodes
    if placement.on is not None and (at := np.flatnonzero(~placement.on[leases.node])).size:
        name = nodes.name[int(leases.node[at[0]])]
        raise PlanError(f"job {leases.job[at[0]]} got a lease on node {name}, which is to be switched off")
    problem, row, node = _check(
        leases.block,
        snapshot.queue.block,
        nodes.gpus,
        nodes.kind.codes,
        snapshot.up,
        nodes.host,
    )
    if problem == 0:
        return
    if problem > 6:
        unit = ("thousandths of a core", "MiB of memory", "MiB/s of storage")[problem - 7]
        raise Oversubscribed(f"node {nodes.name[node]} was given {row} {unit} more than it has")
    if problem == 4:
        raise Oversubscribed(
            f"node {snapshot.nodes.name[node]} was given {row} GPUs more than it has"
            if snapshot.up[node]
            else f"node {snapshot.nodes.name[node]} is down and was given {row} GPUs"
        )
    job = int(leases.job[row])
    if problem == 5:
        raise PlanError(f"job {job} got a lease on node {leases.node[row]} of {len(snapshot.nodes)}")
    if problem == 6:
        kind = snapshot.nodes.kind.word(int(leases.node[row]))
        raise PlanError(f"job {job} got a lease on {kind}, which it does not accept")
    if problem == 1:
        raise UnknownJob(f"job {job} got a lease, but is not in the queue")
    if problem == 2:
        raise GrantedTwice(f"job {job} got two leases on node {snapshot.nodes.name[int(leases.node[row])]}")
    raise PlanError(f"job {job} got {leases.gpus[row]} GPUs in group {leases.group[row]}, which nobody leads")


@kernel(I2, F2, I1, I1, B1, I2)
def _check(
    leases: Ints, block: Floats, node_gpus: Ints, node_kind: Ints, up: Bools, node_host: Ints
) -> tuple[int, int, int]:
    job, group, node, gpus, queue = leases[0], leases[1], leases[2], leases[3], block[JOB]
    used = np.zeros(len(node_gpus), dtype=np.int64)
    left = node_host.copy()
    said = False
    i = 0
    for r in range(len(job)):
        if r > 0 and (job[r] < job[r - 1] or (job[r] == job[r - 1] and node[r] <= node[r - 1])):
            return 2, r, 0
        while i < len(queue) and queue[i] < job[r]:
            i += 1
        if i == len(queue) or queue[i] != job[r]:
            return 1, r, 0
        if node[r] < 0 or node[r] >= len(node_gpus):
            return 5, r, 0
        if not (int(block[ACCEPTS, i]) >> node_kind[node[r]]) & 1:
            return 6, r, 0
        if job[r] == group[r]:
            if gpus[r] <= 0:
                return 3, r, 0
            used[node[r]] += gpus[r]
            for h in range(left.shape[0]):
                each = leases[6 + h, r]
                said = said or each > 0
                left[h, node[r]] -= gpus[r] * (
                    each if each > 0 else node_host[h, node[r]] // node_gpus[node[r]]
                )
        else:
            at = find(job, len(job), group[r])
            led = False
            while at < len(job) and job[at] == group[r]:
                led = led or (group[at] == job[at] and node[at] == node[r] and gpus[at] == gpus[r])
                at += 1
            if not led:
                return 3, r, 0
    for n in range(len(node_gpus)):
        room = node_gpus[n] if up[n] else 0
        if used[n] > room:
            return 4, used[n] - room, n
        for h in range(left.shape[0] if said else 0):
            if left[h, n] < 0 and node_host[h, n] > 0:
                return 7 + h, -left[h, n], n
    return 0, 0, 0
