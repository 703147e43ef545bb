"""Where in a node: which of its GPUs each lease stands for, if blocks are laid out as buddies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.leases import Leases
from wattline.core.table import Ints, Table


@dataclass(frozen=True, eq=False)
class Blocks(Table):
    """Runs of GPUs of one node, one row each, by node and offset."""

    job: Ints  # who leads the group that holds it
    node: Ints
    offset: Ints  # the first of its GPUs
    size: Ints  # a power of two that divides the offset


def blocks(leases: Leases) -> Blocks:
    """The canonical layout of *leases*: on every node the largest block first, one after the other.

    Leases count GPUs; which ones is the backend's business, and for displays this is as good as any. A
    lease that is no power of two is several blocks, one for each binary digit. Because every block is
    preceded by multiples of its size only, it is aligned, whatever the size of the node.
    """
    leads = np.flatnonzero(leases.job == leases.group)
    gpus = leases.gpus[leads]
    digits = np.arange(int(gpus.max(initial=0)).bit_length(), dtype=np.int64)
    row, digit = np.nonzero((gpus[:, None] >> digits) & 1)
    job, node, size = leases.job[leads][row], leases.node[leads][row], np.int64(1) << digit
    order = np.lexsort((job, -size, node))
    job, node, size = job[order], node[order], size[order]
    before = np.cumsum(size) - size
    begins = np.searchsorted(node, node)  # the first block of the same node
    return Blocks(job=job, node=node, offset=before - before[begins], size=size)
