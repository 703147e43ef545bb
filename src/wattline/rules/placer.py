"""Placement on the nodes that rules leave to each job: partitions, reservations, racks and preemption."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Ints
from wattline.errors import PlanError
from wattline.models.remaining import group_remaining_s
from wattline.placement.kernel_arrays import NO_INTS, take_node_columns, take_plan_columns
from wattline.placement.lease_builder import build_placement
from wattline.placement.selection import (
    BACKFILL_MODES,
    NO_TIMES,
    OUTCOME_REASON,
    Backfill,
    Selection,
    check_backfill,
    check_entries,
    exclude_other_kinds,
)
from wattline.rules.drains import NodeDrains
from wattline.rules.job_rules import UNLIMITED, JobRules
from wattline.rules.node_limits import RecordedNodeLimits
from wattline.rules.node_search import NodeRules, RowRules
from wattline.rules.node_sets import NodeSets
from wattline.rules.placer_kernel import place_rows
from wattline.rules.use_limits import UseRules
from wattline.rules.windows import ReservationWindows

_NO_LIMITS = np.empty((2, 0), dtype=np.int64)
_MAINTENANCE, _RESERVED = REASONS.index(Reason.MAINTENANCE), REASONS.index(Reason.RESERVED)


@dataclass(frozen=True, eq=False)
class RuledPack:
    """`Pack` on the nodes that rules leave to each job.

    All GPUs of a job or none, of one kind, on nodes of its partition that no reservation of others takes
    before it ends by its time limit: the node with the least room that is enough, else the fewest nodes in
    one rack, else in one pod, else anywhere. A job that runs keeps its GPUs, also when a reservation begins.
    Each partition has a first job that does not fit, for which *backfill* `easy` reserves GPUs. No job starts
    with which its user, its account or all jobs of its partition or QOS would exceed a limit of use; one that
    may borrow then starts after all others. Jobs that share GPUs count as the one that leads. A job with
    the right to preempt gets the GPUs of running jobs, those last in the plan first, if it then fits.
    With *node_limits* a job waits for as few nodes as it was recorded on.
    """

    nodes: NodeSets
    jobs: JobRules | None = None
    windows: ReservationWindows | None = None
    drains: NodeDrains | None = None
    backfill: Backfill = "easy"
    node_limits: RecordedNodeLimits | None = None

    def __post_init__(self) -> None:
        check_backfill(self.backfill)

    def __str__(self) -> str:
        return "pack" if self.backfill == "easy" else f"pack:backfill={self.backfill}"

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        """Return leases for the plan, and a reason for every job without."""
        if plan.node is not None:
            raise PlanError("the plan names nodes, but with --rules nodes follow from the rules")
        check_entries(plan, snapshot)
        rows, next_s = self._take_row_rules(snapshot)
        excluded = exclude_other_kinds(plan, snapshot)
        nodes, drained_until_s = self._take_node_rules(snapshot)
        if self.node_limits is not None:
            most = self.node_limits.limit_rows(plan, snapshot, self.nodes.bits, rows.partition, excluded)
            rows = rows._replace(max_nodes=np.minimum(rows.max_nodes, most))
        remaining_s = NO_TIMES
        while True:
            outcome, free_gpus, entry_range, entries, waiting, needs_remaining = place_rows(
                take_plan_columns(plan),
                take_node_columns(snapshot),
                nodes,
                rows,
                self._take_use_rules(snapshot),
                len(snapshot.nodes.kind.names),
                snapshot.free_gpus,
                snapshot.queue.block,
                snapshot.leases.block,
                BACKFILL_MODES.index(self.backfill),
                remaining_s,
                excluded if len(excluded) else NO_INTS,
            )
            if not needs_remaining:
                break
            remaining_s = group_remaining_s(snapshot, models, plan)
        placement = build_placement(
            plan, snapshot, Selection(outcome, free_gpus, 0, waiting), (entry_range, entries)
        )
        reason = outcome[OUTCOME_REASON]
        if drained_until_s < math.inf and waiting:
            placement = replace(placement, next_decision_s=drained_until_s)
        if next_s == math.inf or self.windows is None:
            return placement
        if not ((reason == _MAINTENANCE) | (reason == _RESERVED)).any():
            return placement
        return replace(placement, next_decision_s=min(next_s, drained_until_s))

    def _take_row_rules(self, snapshot: Snapshot) -> tuple[RowRules, float]:
        """Return the rules by row of the queue, and when a reservation begins or ends next."""
        job, count = snapshot.queue.job, len(snapshot.queue)
        zeros = np.zeros(count, dtype=np.int64)
        blocked, named, next_s = zeros, zeros, math.inf
        if self.windows is not None:
            blocked, next_s = self.windows.look(snapshot)
            own = self.windows.named[job]
            named = np.where(own >= 0, np.int64(1) << np.maximum(own, 0), 0)
        if self.jobs is None:
            columns = (np.ones(count, dtype=np.int64), np.full(count, UNLIMITED), zeros, zeros)
        else:
            rules = self.jobs
            columns = (rules.partition_bit[job], rules.max_nodes[job], rules.qos[job], rules.preempts[job])
        return RowRules(columns[0], blocked, named, *columns[1:]), next_s

    def _take_use_rules(self, snapshot: Snapshot) -> UseRules:
        counters = None if self.jobs is None else self.jobs.counters
        if counters is None:
            return UseRules(np.empty((0, len(snapshot.queue)), dtype=np.int64), _NO_LIMITS, NO_INTS, NO_INTS)
        of_row = np.ascontiguousarray(counters.of_job[:, snapshot.queue.job])
        return UseRules(of_row, counters.most, counters.reason, counters.borrow)

    def _take_node_rules(self, snapshot: Snapshot) -> tuple[NodeRules, float]:
        """Return the rules by node, and when the first drained one is back."""
        nodes, sets, until_s = snapshot.nodes, self.nodes, math.inf
        partitions = sets.bits
        if self.drains is not None:
            drained, until_s = self.drains.look(snapshot.now_s)
            partitions = np.where(drained, 0, partitions) if drained.any() else partitions
        bits = np.zeros(len(nodes), dtype=np.int64) if self.windows is None else self.windows.node_bits
        maintenance = 0 if self.windows is None else self.windows.maintenance
        options = _pack_options(sets.within, maintenance)
        return NodeRules(partitions, bits, sets.rack, sets.pod, options, sets.bits), until_s


@lru_cache(maxsize=8)
def _pack_options(within: int, maintenance: int) -> Ints:
    return np.array((within, maintenance), dtype=np.int64)
