"""Arrays that the kernels of placers share: columns of plans and nodes, and pairs of node and GPUs."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from wattline.core.leases import LEASE_JOB
from wattline.core.plan import Plan
from wattline.core.queue import QUEUE_JOB
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.jit import B1, BOOL, F1, I1, inner, record

NO_INTS = np.empty(0, dtype=np.int64)
NO_FLOATS = np.empty(0)

NodeEntries = tuple[Ints, Ints]
"""Nodes of jobs: for row i of the queue, columns `range[0, i]` to `range[1, i]` of the second array.

Rows of the second array are as in `ENTRY_NODE`, `ENTRY_GPUS`; the nodes of a job ascend.
"""

ENTRY_NODE, ENTRY_GPUS = range(2)


class PlanColumns(NamedTuple):
    """Columns of a plan."""

    row: Ints
    gpus: Ints
    group: Ints
    reason: Ints  # by row of the queue, why a job is not in the plan; empty: HELD
    non_preemptive: bool


class NodeColumns(NamedTuple):
    """Columns of the nodes and their state."""

    kind: Ints
    gpus: Ints
    rack: Ints
    up: Bools
    boot_done_s: Floats  # inf: stays off, -inf: is not off


class KindCapacity(NamedTuple):
    """GPUs by kind: on nodes that are up, on nodes that are off or booting, and in all."""

    up: Ints
    off: Ints
    total: Ints


PLAN_COLUMNS = record(PlanColumns, I1, I1, I1, I1, BOOL)
NODE_COLUMNS = record(NodeColumns, I1, I1, I1, B1, F1)


def take_plan_columns(plan: Plan) -> PlanColumns:
    """Return the columns of *plan* that kernels read."""
    # A plain tuple: kernels read it by position, and building a NamedTuple takes longer.
    reason = NO_INTS if plan.reason is None else plan.reason
    return cast(PlanColumns, (plan.row, plan.gpus, plan.group, reason, plan.non_preemptive))


def take_node_columns(snapshot: Snapshot) -> NodeColumns:
    """Return the columns of the nodes of *snapshot* that kernels read."""
    nodes = snapshot.nodes
    return cast(NodeColumns, (nodes.kind.codes, nodes.gpus, nodes.rack, snapshot.up, snapshot.boot_done_s))


@inner
def count_gpus(nodes: NodeColumns, kinds: int) -> KindCapacity:
    """Return the GPUs of the cluster by kind."""
    kind, gpus, _, is_up, boot_done_s = nodes
    capacity = np.zeros((3, kinds), dtype=np.int64)
    for k in range(kinds):  # the sums stay in registers
        up = off = total = 0
        for n in range(len(gpus)):
            here = gpus[n] if kind[n] == k else 0
            total += here
            up += here if is_up[n] else 0
            off += here if not is_up[n] and boot_done_s[n] > -np.inf else 0
        capacity[0, k], capacity[1, k], capacity[2, k] = up, off, total
    return KindCapacity(capacity[0], capacity[1], capacity[2])


@inner
def sort_by_node(entries: Ints, start: int, end: int) -> None:
    """Sort columns *start* to *end* of node entries: leases list nodes in ascending order."""
    for a in range(start + 1, end):
        b = a
        while b > start and entries[ENTRY_NODE, b - 1] > entries[ENTRY_NODE, b]:
            for row in range(2):
                entries[row, b - 1], entries[row, b] = entries[row, b], entries[row, b - 1]
            b -= 1


@inner
def index_leases(queue: Floats, leases: Ints) -> Ints:
    """Return by row i of the queue the first column of its leases; they end where those of i + 1 begin."""
    queued = queue.shape[1]
    start = np.zeros(queued + 1, dtype=np.int64)
    r = 0
    for i in range(queued):
        start[i] = r
        while r < leases.shape[1] and leases[LEASE_JOB, r] == queue[QUEUE_JOB, i]:
            r += 1
    start[queued] = r
    return start
