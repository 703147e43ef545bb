"""Validation of placements."""

from __future__ import annotations

import numpy as np

from wattline.core.leases import LEASE_GPUS, LEASE_GROUP, LEASE_HOST, LEASE_JOB, LEASE_NODE
from wattline.core.plan import Placement
from wattline.core.queue import (
    QUEUE_ACCEPTED_KINDS,
    QUEUE_JOB,
)
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import GrantedTwice, Oversubscribed, PlanError, UnknownJob
from wattline.jit import B1, F2, I1, I2, find, inner, kernel

# Results of `_find_problem`; host resource number h is _HOST_OVER + h.
_NO_PROBLEM, _NOT_QUEUED, _UNSORTED, _NO_LEADER, _GPUS_OVER, _NO_SUCH_NODE, _WRONG_KIND, _HOST_OVER = range(8)


def check_placement(placement: Placement, snapshot: Snapshot) -> None:
    """Raise `PlanError` if *placement* oversubscribes a node or has leases of wrong jobs, nodes or groups."""
    leases = placement.leases
    if len(placement.reason) != len(snapshot.queue):
        raise PlanError(
            f"Placement.reason has {len(placement.reason)} entries, expected one for each of the "
            f"{len(snapshot.queue)} jobs in the queue"
        )
    nodes = snapshot.nodes
    if placement.powered_on is not None and (bad := np.flatnonzero(~placement.powered_on[leases.node])).size:
        name = nodes.name[int(leases.node[bad[0]])]
        raise PlanError(
            f"job {leases.job[bad[0]]} has a lease on node {name}, which the placement switches off"
        )
    problem, row, node = _find_problem(
        leases.block,
        snapshot.queue.block,
        nodes.gpus,
        nodes.kind.codes,
        snapshot.up,
        nodes.host,
    )
    if problem == _NO_PROBLEM:
        return
    if problem >= _HOST_OVER:
        unit = ("thousandths of a core", "MiB of memory", "MiB/s of storage")[problem - _HOST_OVER]
        raise Oversubscribed(f"node {nodes.name[node]} is oversubscribed by {row} {unit}")
    if problem == _GPUS_OVER:
        raise Oversubscribed(
            f"node {nodes.name[node]} is oversubscribed by {row} GPUs"
            if snapshot.up[node]
            else f"node {nodes.name[node]} is down, but {row} of its GPUs are leased"
        )
    job = int(leases.job[row])
    if problem == _NO_SUCH_NODE:
        raise PlanError(f"job {job} has a lease on node {leases.node[row]}, expected 0 to {len(nodes) - 1}")
    if problem == _WRONG_KIND:
        kind = nodes.kind.word(int(leases.node[row]))
        raise PlanError(f"job {job} has a lease on {kind}, a GPU kind that it does not accept")
    if problem == _NOT_QUEUED:
        raise UnknownJob(f"job {job} has a lease, but is not in the queue")
    if problem == _UNSORTED:
        raise GrantedTwice(f"job {job} has two leases on node {nodes.name[int(leases.node[row])]}")
    raise PlanError(
        f"job {job} has {leases.gpus[row]} GPUs in group {leases.group[row]}, "
        "expected the GPUs of the group's leader"
    )


@inner
def _find_host_problem(leases: Ints, node_gpus: Ints, node_host: Ints) -> tuple[int, int, int]:
    """Return the first node with oversubscribed host resources, as `_find_problem` does."""
    left = node_host.copy()
    for r in range(leases.shape[1]):
        node = leases[LEASE_NODE, r]
        if leases[LEASE_JOB, r] == leases[LEASE_GROUP, r]:
            for h in range(left.shape[0]):
                share = node_host[h, node] // node_gpus[node]
                per_gpu = leases[LEASE_HOST + h, r]
                left[h, node] -= leases[LEASE_GPUS, r] * (per_gpu if per_gpu > 0 else share)
    for n in range(len(node_gpus)):
        for h in range(left.shape[0]):
            if left[h, n] < 0 and node_host[h, n] > 0:
                return _HOST_OVER + h, -left[h, n], n
    return _NO_PROBLEM, 0, 0


@kernel(I2, F2, I1, I1, B1, I2)
def _find_problem(
    leases: Ints, block: Floats, node_gpus: Ints, node_kind: Ints, up: Bools, node_host: Ints
) -> tuple[int, int, int]:
    """Return the first problem, then its lease or the surplus, then its node where it has one."""
    job, group, node, gpus = leases[LEASE_JOB], leases[LEASE_GROUP], leases[LEASE_NODE], leases[LEASE_GPUS]
    queue = block[QUEUE_JOB]
    used = np.zeros(len(node_gpus), dtype=np.int64)
    has_host = False
    i = 0
    for r in range(len(job)):
        if r > 0 and (job[r] < job[r - 1] or (job[r] == job[r - 1] and node[r] <= node[r - 1])):
            return _UNSORTED, r, 0
        while i < len(queue) and queue[i] < job[r]:
            i += 1
        if i == len(queue) or queue[i] != job[r]:
            return _NOT_QUEUED, r, 0
        if node[r] < 0 or node[r] >= len(node_gpus):
            return _NO_SUCH_NODE, r, 0
        if not (int(block[QUEUE_ACCEPTED_KINDS, i]) >> node_kind[node[r]]) & 1:
            return _WRONG_KIND, r, 0
        if job[r] == group[r]:
            if gpus[r] <= 0:
                return _NO_LEADER, r, 0
            used[node[r]] += gpus[r]
            for h in range(node_host.shape[0]):
                has_host = has_host or leases[LEASE_HOST + h, r] > 0
        else:
            at = find(job, len(job), group[r])
            led = False
            while at < len(job) and job[at] == group[r]:
                led = led or (group[at] == job[at] and node[at] == node[r] and gpus[at] == gpus[r])
                at += 1
            if not led:
                return _NO_LEADER, r, 0
    for n in range(len(node_gpus)):
        room = node_gpus[n] if up[n] else 0
        if used[n] > room:
            return _GPUS_OVER, used[n] - room, n
    return _find_host_problem(leases, node_gpus, node_host) if has_host else (_NO_PROBLEM, 0, 0)
