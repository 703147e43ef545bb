"""Leases: the GPUs that jobs hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattline.core.table import INT64, Ints, check_array
from wattline.errors import PlanError

LEASE_JOB, LEASE_GROUP, LEASE_NODE, LEASE_GPUS, LEASE_CAP_W, LEASE_BATCH, LEASE_HOST = range(7)
LEASE_ROWS = 9  # LEASE_HOST is the first of the three host rows


@dataclass(frozen=True, eq=False, slots=True)
class Leases:
    """GPUs that jobs hold: one column of *block* per job and node, sorted by job, then node.

    Columns with the same *group* share their GPUs (packed or fused). These are counted once, for the group's
    leader, where `job == group`. All columns of a group have the same power cap, batch and host share.
    """

    block: Ints  # rows as in LEASE_JOB ...; the last three as in `HOST_RESOURCES`

    @classmethod
    def of(
        cls,
        job: Sequence[int],
        group: Sequence[int],
        node: Sequence[int],
        gpus: Sequence[int],
        cap_w: Sequence[int] | None = None,
        batch: Sequence[int] | None = None,
        host: Sequence[Sequence[int]] | Ints | None = None,
    ) -> Leases:
        """Build leases from their columns in any order; *host* has the rows of `HOST_RESOURCES`."""
        block = np.zeros((LEASE_ROWS, len(job)), dtype=np.int64)
        for row, column in enumerate((job, group, node, gpus, cap_w, batch)):
            if column is not None:
                block[row] = column
        if host is not None:
            block[LEASE_HOST:] = host
        return cls(np.ascontiguousarray(block[:, np.lexsort((block[LEASE_NODE], block[LEASE_JOB]))]))

    def __post_init__(self) -> None:
        check_array("Leases.block", self.block, INT64, 2, PlanError)
        self.block.setflags(write=False)

    def __len__(self) -> int:
        return int(self.block.shape[1])

    @property
    def job(self) -> Ints:
        """Row of the job in `Snapshot.jobs`."""
        row: Ints = self.block[LEASE_JOB]
        return row

    @property
    def group(self) -> Ints:
        """Job that leads the group."""
        row: Ints = self.block[LEASE_GROUP]
        return row

    @property
    def node(self) -> Ints:
        """Row of the node in `Snapshot.nodes`."""
        row: Ints = self.block[LEASE_NODE]
        return row

    @property
    def gpus(self) -> Ints:
        """GPUs held on that node."""
        row: Ints = self.block[LEASE_GPUS]
        return row

    @property
    def cap_w(self) -> Ints:
        """Power cap of each GPU; 0: no cap."""
        row: Ints = self.block[LEASE_CAP_W]
        return row

    @property
    def batch(self) -> Ints:
        """Batch size of the whole job; 0: as requested."""
        row: Ints = self.block[LEASE_BATCH]
        return row

    @property
    def host(self) -> Ints:
        """Host resources per GPU, rows as in `HOST_RESOURCES`; 0: the proportional share."""
        rows: Ints = self.block[LEASE_HOST:]
        return rows
