"""What leases say, once it is known who runs where."""

from __future__ import annotations

import numpy as np

from wattline.core.leases import LEASE_ROWS, Leases
from wattline.core.plan import Placement, Plan
from wattline.core.queue import JOB
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.jit import F2, I1, I2, kernel
from wattline.placement.selection import LEADER, POOL, REASON, STAYS, Chosen

_NOBODY = np.empty(0, dtype=np.int64)
_NOTHING = np.empty((3, 0), dtype=np.int64)


Seats = tuple[Ints, Ints]
"""Places of those who do not stay: for row i of the queue, entries at[0, i] to at[1, i] of the second.

Its rows are nodes, which rise, and GPUs.
"""


def write(
    plan: Plan,
    snapshot: Snapshot,
    chosen: Chosen,
    seats: Seats,
    host: Ints = _NOTHING,
    unsettled: bool = False,
) -> Placement:
    """The placement that gives everybody who was chosen a place, with the cap and batch of its leader.

    *host* is what each GPU of a leader has of it, by row of the queue; empty: all have their share.
    """
    placed, changed = _write(
        plan.row,
        _NOBODY if plan.cap_w is None else plan.cap_w,
        _NOBODY if plan.batch is None else plan.batch,
        chosen.fate,
        snapshot.queue.block,
        snapshot.leases.block,
        *seats,
        host,
    )
    leases = Leases(placed) if changed else snapshot.leases
    return Placement(leases, chosen.fate[REASON], chosen.waiting, unsettled=unsettled)


@kernel(I1, I1, I1, I2, F2, I2, I2, I2, I2)
def _write(
    plan_row: Ints,
    plan_cap_w: Ints,
    plan_batch: Ints,
    fate: Ints,
    block: Floats,
    leases: Ints,
    seat_at: Ints,
    seats: Ints,
    host: Ints,
) -> tuple[Ints, bool]:
    queued = block.shape[1]
    leader, pool, stays = fate[LEADER], fate[POOL], fate[STAYS]
    cap_w = np.zeros(queued, dtype=np.int64)
    batch = np.zeros(queued, dtype=np.int64)
    for p in range(len(plan_row)):
        if len(plan_cap_w) > 0:
            cap_w[plan_row[p]] = plan_cap_w[p]
        if len(plan_batch) > 0:
            batch[plan_row[p]] = plan_batch[p]
    first = np.zeros(queued + 1, dtype=np.int64)  # old leases by row of the queue
    r = 0
    for i in range(queued):
        first[i] = r
        while r < leases.shape[1] and leases[0, r] == block[JOB, i]:
            r += 1
    first[queued] = r

    rows = 0
    for i in range(queued):
        if pool[i] >= 0:
            lead = leader[i]
            rows += first[lead + 1] - first[lead] if stays[lead] else seat_at[1, lead] - seat_at[0, lead]
    placed = np.empty((LEASE_ROWS, rows), dtype=np.int64)
    at = 0
    for i in range(queued):
        if pool[i] < 0:
            continue
        lead = leader[i]
        length = first[lead + 1] - first[lead] if stays[lead] else seat_at[1, lead] - seat_at[0, lead]
        for s in range(length):
            placed[0, at] = int(block[JOB, i])
            placed[1, at] = int(block[JOB, lead])
            if stays[lead]:
                placed[2, at] = leases[2, first[lead] + s]
                placed[3, at] = leases[3, first[lead] + s]
            else:
                placed[2, at] = seats[0, seat_at[0, lead] + s]
                placed[3, at] = seats[1, seat_at[0, lead] + s]
            placed[4, at] = cap_w[lead]
            placed[5, at] = batch[lead]
            for h in range(3):
                placed[6 + h, at] = host[h, lead] if host.shape[1] > 0 else 0
            at += 1
    changed = rows != leases.shape[1]
    for r in range(rows):
        if changed:
            break
        for c in range(LEASE_ROWS):
            changed = changed or placed[c, r] != leases[c, r]
    return placed, changed
