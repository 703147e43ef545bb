"""GPU indices of leases on each node, laid out as aligned buddy blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.leases import Leases
from wattline.core.table import Ints, Table


@dataclass(frozen=True, eq=False)
class GpuBlocks(Table):
    """Runs of GPUs of one node, one row each, by node and offset."""

    job: Ints  # leader of the group that holds it
    node: Ints
    offset: Ints  # the first of its GPUs
    size: Ints  # a power of two that divides the offset


def lay_out_blocks(leases: Leases) -> GpuBlocks:
    """Return the canonical layout of *leases*: on every node the largest block first, one after the other.

    Leases count GPUs; the backend picks the devices, and for displays this layout is as good as any. A
    lease that is no power of two is several blocks, one for each binary digit. Every block is preceded by
    multiples of its size only, so it is aligned for any size of the node.
    """
    leads = np.flatnonzero(leases.job == leases.group)
    gpus = leases.gpus[leads]
    digits = np.arange(int(gpus.max(initial=0)).bit_length(), dtype=np.int64)
    row, digit = np.nonzero((gpus[:, None] >> digits) & 1)
    job, node, size = leases.job[leads][row], leases.node[leads][row], np.int64(1) << digit
    order = np.lexsort((job, -size, node))
    job, node, size = job[order], node[order], size[order]
    before = np.cumsum(size) - size
    first = np.searchsorted(node, node)  # the first block of the same node
    return GpuBlocks(job=job, node=node, offset=before - before[first], size=size)
