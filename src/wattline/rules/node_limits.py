"""The most nodes that each job may hold, by its record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.plan import Plan
from wattline.core.queue import QUEUE_ACCEPTED_KINDS
from wattline.core.snapshot import Snapshot
from wattline.core.table import Ints
from wattline.rules.job_rules import UNLIMITED
from wattline.trace.recorded import RecordedSchedule
from wattline.trace.recorded_nodes import count_recorded_nodes


@dataclass(frozen=True, eq=False)
class RecordedNodeLimits:
    """Jobs hold at most as many nodes as they did when they were recorded.

    A job that could never run so, because the nodes are smaller or a policy gives it more GPUs, may hold the
    fewest nodes that have its GPUs.
    """

    most: Ints  # by job; `UNLIMITED`: unknown

    @property
    def known_jobs(self) -> int:
        """The number of jobs with a recorded number of nodes."""
        return int((self.most < UNLIMITED).sum())

    def limit_rows(
        self, plan: Plan, snapshot: Snapshot, node_bits: Ints, row_bits: Ints, excluded: Ints
    ) -> Ints:
        """Return the most nodes of each row of the queue.

        *node_bits* are the partitions of nodes, *row_bits* those of rows, *excluded* the GPU kinds that a row
        may not use; empty: none.
        """
        most = self.most[snapshot.queue.job]
        need = np.ones(len(most), dtype=np.int64)
        need[plan.row] = plan.gpus
        accepted = snapshot.queue.block[QUEUE_ACCEPTED_KINDS].astype(np.int64)
        if len(excluded):
            accepted = accepted & ~excluded
        fewest = np.full(len(most), UNLIMITED)
        nodes = snapshot.nodes
        for bits in np.unique(row_bits).tolist():
            for kind in range(len(nodes.kind.names)):
                rows = np.flatnonzero((row_bits == bits) & ((accepted >> kind) & 1 == 1))
                usable = ((node_bits & bits) != 0) & (nodes.kind.codes == kind)
                sums = np.cumsum(np.sort(nodes.gpus[usable])[::-1])
                count = np.searchsorted(sums, need[rows]) + 1
                fewest[rows] = np.minimum(fewest[rows], np.where(count > len(sums), UNLIMITED, count))
        limit: Ints = np.maximum(most, fewest)
        return limit


def bind_node_limits(recorded: RecordedSchedule | None) -> RecordedNodeLimits | None:
    """Return the limits of recorded jobs; None: the number of nodes of no job is known."""
    if recorded is None:
        return None
    counts = count_recorded_nodes(recorded)
    if not counts.any():
        return None
    return RecordedNodeLimits(np.where(counts > 0, counts, UNLIMITED))
