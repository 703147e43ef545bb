"""Which job holds which GPUs."""

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
    """Who holds what: one column of *block* per job and node, sorted by job, then node.

    Columns with the same *group* run as one (packed or fused) on the same GPUs, counted once: for
    the job that leads, `job == group`. All columns of a group have its power cap, batch and host share.
    """

    block: Ints  # rows job, group, node, gpus, cap_w, batch, and those of HOST

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
        """Leases from their columns, sorted as they have to be; *host* has the rows of `HOST`."""
        block = np.zeros((LEASE_ROWS, len(job)), dtype=np.int64)
        for row, column in enumerate((job, group, node, gpus, cap_w, batch)):
            if column is not None:
                block[row] = column
        if host is not None:
            block[6:] = host
        return cls(np.ascontiguousarray(block[:, np.lexsort((block[2], block[0]))]))

    def __post_init__(self) -> None:
        check_array("Leases.block", self.block, INT64, 2, PlanError)
        self.block.setflags(write=False)

    def __len__(self) -> int:
        return int(self.block.shape[1])

    @property
    def job(self) -> Ints:
        """Row in `Snapshot.jobs`."""
        row: Ints = self.block[0]
        return row

    @property
    def group(self) -> Ints:
        """The job that leads the group."""
        row: Ints = self.block[1]
        return row

    @property
    def node(self) -> Ints:
        """Row in `Snapshot.nodes`."""
        row: Ints = self.block[2]
        return row

    @property
    def gpus(self) -> Ints:
        """GPUs held on that node."""
        row: Ints = self.block[3]
        return row

    @property
    def cap_w(self) -> Ints:
        """Power cap of each of its GPUs; 0: none."""
        row: Ints = self.block[4]
        return row

    @property
    def batch(self) -> Ints:
        """Samples of a step, of all its GPUs; 0: as asked."""
        row: Ints = self.block[5]
        return row

    @property
    def host(self) -> Ints:
        """What each of its GPUs has of the host: rows as in `HOST`."""
        rows: Ints = self.block[6:]
        return rows
