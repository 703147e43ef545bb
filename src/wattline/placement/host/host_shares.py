"""Cores, memory and storage of every node for the jobs that another placer has put there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from wattline.core.leases import LEASE_GPUS, LEASE_GROUP, LEASE_HOST, LEASE_JOB, LEASE_NODE, Leases
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models, Placer
from wattline.core.queue import QUEUE_JOB
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.jit import F2, I2, kernel
from wattline.models.sensitivity import find_saturation_points
from wattline.placement.host.host_arrays import (
    HOST_NODES,
    JOB_SETS,
    POINT_TABLE,
    HostNodes,
    JobSets,
    PointTable,
)
from wattline.placement.host.synergy_tune import look_up_sensitivity, split_hosts
from wattline.placement.kernel_arrays import (
    ENTRY_GPUS,
    ENTRY_NODE,
    PLAN_COLUMNS,
    PlanColumns,
    take_plan_columns,
)
from wattline.placement.pack import Pack
from wattline.placement.selection import OUTCOME_KIND, OUTCOME_LEADER, OUTCOME_ROWS, OUTCOME_STAYS


@dataclass(frozen=True)
class Host:
    """The leases of *place*, with the host resources of each node where they help most, as in `Tune`.

    Every job gets the least that makes it as fast as its proportional share; what is left goes in steps to
    the jobs that gain most speed for what the step takes. Nodes stay those that *place* has chosen, and jobs
    that share GPUs have their proportional share. Other shares need no restart.
    """

    place: Placer = field(default_factory=Pack)

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        """Return leases for the plan, and a reason for every job without."""
        placement = self.place(plan, snapshot, models)
        if not len(placement.leases):
            return placement
        nodes = snapshot.nodes
        known, job_sets = look_up_sensitivity(plan, snapshot, models)
        shapes = (nodes.kind.codes, nodes.gpus, nodes.host, nodes.host_share, known.node_shape)
        points = (known.set_start, find_saturation_points(known, 1.0), known.host, known.speed)
        # Plain tuples where kernels take records: building a NamedTuple takes longer.
        host, limited = _split(
            take_plan_columns(plan),
            placement.leases.block,
            snapshot.queue.block,
            cast(HostNodes, (*shapes, snapshot.boot_done_s)),
            job_sets,
            cast(PointTable, points),
        )
        block = placement.leases.block.copy()
        block[LEASE_HOST:] = host
        same = block.shape == snapshot.leases.block.shape and np.array_equal(block, snapshot.leases.block)
        leases = snapshot.leases if same else Leases(block)
        return replace(placement, leases=leases, host_limited=limited)


@kernel(PLAN_COLUMNS, I2, F2, HOST_NODES, JOB_SETS, POINT_TABLE)
def _split(
    plan: PlanColumns, leases: Ints, queue: Floats, nodes: HostNodes, job_sets: JobSets, points: PointTable
) -> tuple[Ints, bool]:
    """Return the host resources of each lease, and whether a job could use more."""
    queued, count = queue.shape[1], leases.shape[1]
    outcome = np.full((OUTCOME_ROWS, queued), -1, dtype=np.int64)
    row, planned = np.empty(count, dtype=np.int64), np.zeros(queued, dtype=np.int64)
    entry_range, entries = np.zeros((2, queued), dtype=np.int64), np.empty((2, count), dtype=np.int64)
    alone, held = np.ones(queued, dtype=np.bool_), np.zeros(queued, dtype=np.int64)
    for p in range(len(plan.row)):
        planned[plan.row[p]] = plan.gpus[p]
    i = at = 0
    for r in range(count):
        while queue[QUEUE_JOB, i] < leases[LEASE_JOB, r]:
            i += 1
        row[r] = i
        if leases[LEASE_JOB, r] != leases[LEASE_GROUP, r]:
            continue
        if entry_range[1, i] == 0:
            entry_range[0, i] = at
        n = leases[LEASE_NODE, r]
        entries[ENTRY_NODE, at], entries[ENTRY_GPUS, at] = n, leases[LEASE_GPUS, r]
        at += 1
        entry_range[1, i] = at
        held[i] += leases[LEASE_GPUS, r]
        outcome[OUTCOME_LEADER, i], outcome[OUTCOME_KIND, i], outcome[OUTCOME_STAYS, i] = i, nodes.kind[n], 1
    leads = np.empty(count, dtype=np.int64)
    for r in range(count):
        leads[r] = row[np.searchsorted(leases[LEASE_JOB], leases[LEASE_GROUP, r])]
        if leads[r] != row[r]:
            alone[leads[r]] = False
    for i in range(queued):
        if held[i] != planned[i]:  # its points are those of another number of GPUs
            alone[i] = False
    granted, limited = split_hosts(
        plan, outcome, alone, entry_range, entries, np.inf, nodes, job_sets, points
    )
    host = np.zeros((3, count), dtype=np.int64)
    for r in range(count):
        for h in range(3):
            host[h, r] = granted[h, leads[r]]
    return host, limited
