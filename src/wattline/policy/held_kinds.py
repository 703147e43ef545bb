"""Kinds of GPU that running jobs hold, for the kernels of policies."""

from __future__ import annotations

import numpy as np

from wattline.core.leases import LEASE_JOB, LEASE_NODE
from wattline.core.queue import QUEUE_JOB
from wattline.core.table import Floats, Ints
from wattline.jit import inner


@inner
def find_held_kinds(block: Floats, leases: Ints, node_kind: Ints) -> Ints:
    """Return by row of the queue the kind of GPU that it holds; -1: it waits. Both tables are by job."""
    kind = np.full(block.shape[1], -1, dtype=np.int64)
    i = 0
    for r in range(leases.shape[1]):
        while block[QUEUE_JOB, i] < leases[LEASE_JOB, r]:
            i += 1
        kind[i] = node_kind[leases[LEASE_NODE, r]]
    return kind
