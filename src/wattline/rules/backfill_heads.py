"""Reservations of GPUs for the first jobs that do not fit, as compiled code."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wattline.core.leases import LEASE_GPUS, LEASE_NODE
from wattline.core.table import Bools, Floats, Ints
from wattline.jit import inner
from wattline.placement.kernel_arrays import ENTRY_GPUS, ENTRY_NODE, NodeColumns
from wattline.rules.node_search import NodeRules, RowRules, may_use

UNDECIDED, STAYS, STARTS, WAITS = range(4)
"""What becomes of a row of the queue."""


class ReservationHeads(NamedTuple):
    """First jobs that do not fit, one for each set of nodes: what is reserved for them."""

    nodes: Bools  # 2-D, by head: the nodes on which it can start
    kind: Ints
    extra: Ints  # GPUs of these nodes that it leaves over at that time
    shadow_s: Floats  # when it can start


@inner
def _release(
    j: int,
    status: int,
    keys: Bools,
    leases: Ints,
    old_start: Ints,
    entry_range: Ints,
    entries: Ints,
    room: Ints,
) -> int:
    """Add the GPUs that row *j* will hold on the nodes *keys* to *room*; return their number."""
    gpus = 0
    if status == STAYS:
        for r in range(old_start[j], old_start[j + 1]):
            if keys[leases[LEASE_NODE, r]]:
                room[leases[LEASE_NODE, r]] += leases[LEASE_GPUS, r]
                gpus += leases[LEASE_GPUS, r]
    elif status == STARTS:
        for e in range(entry_range[0, j], entry_range[1, j]):
            if keys[entries[ENTRY_NODE, e]]:
                room[entries[ENTRY_NODE, e]] += entries[ENTRY_GPUS, e]
                gpus += entries[ENTRY_GPUS, e]
    return gpus


@inner
def _choose_roomiest(most: int, need: int, keys: Bools, room: Ints, chosen: Bools) -> int:
    """Set *chosen* to the nodes *keys* if there are at most *most*, else to those of them with most room.

    Return the GPUs that they have beyond *need*; negative: too few.
    """
    total, count = 0, 0
    for n in range(len(room)):
        chosen[n] = keys[n]
        count += keys[n]
        total += room[n] if keys[n] else 0
    if count <= most or total < need:
        return total - need
    total = 0
    chosen[:] = False
    for _ in range(most):
        pick = -1
        for n in range(len(room)):
            if keys[n] and not chosen[n] and (pick < 0 or room[n] > room[pick]):
                pick = n
        chosen[pick] = True
        total += room[pick]
        if total >= need:
            break
    return total - need


@inner
def reserve_gpus(
    i: int,
    need: int,
    accepted: int,
    kinds: int,
    nodes: NodeColumns,
    rules: NodeRules,
    rows: RowRules,
    partition: Ints,
    blocked: Ints,
    free: Ints,
    status: Ints,
    remaining_s: Floats,
    leases: Ints,
    old_start: Ints,
    entry_range: Ints,
    entries: Ints,
    reserved: Bools,
) -> tuple[int, float, int]:
    """Return kind and seconds after which *need* GPUs are free for row *i*, and how many more are then.

    *reserved* is set to the nodes on which they are: all that it may use, or as many as it may hold.
    """
    best, best_s, best_extra = -1, np.inf, 0
    queued = len(status)
    held = np.zeros(queued, dtype=np.int64)
    keys, chosen = np.zeros(len(free), dtype=np.bool_), np.zeros(len(free), dtype=np.bool_)
    room, unused = np.zeros(len(free), dtype=np.int64), np.zeros(len(free), dtype=np.int64)
    for k in range(kinds):
        if not (accepted >> k) & 1:
            continue
        when_s = -np.inf
        for n in range(len(free)):
            keys[n] = nodes.kind[n] == k and may_use(n, i, partition, blocked, rules, rows.named)
            room[n] = free[n] if keys[n] else 0
            if keys[n] and not nodes.up[n] and nodes.boot_done_s[n] > -np.inf:
                room[n] += nodes.gpus[n]  # it is switched on for the first job in line
        for j in range(queued):
            held[j] = _release(j, status[j], keys, leases, old_start, entry_range, entries, unused)
        extra = _choose_roomiest(rows.max_nodes[i], need, keys, room, chosen)
        while extra < 0:
            next_s = np.inf
            for j in range(queued):
                if held[j] > 0 and when_s < remaining_s[j] < next_s:
                    next_s = remaining_s[j]
            if next_s == np.inf:
                break
            for j in range(queued):
                if held[j] > 0 and remaining_s[j] == next_s:
                    _release(j, status[j], keys, leases, old_start, entry_range, entries, room)
            when_s = next_s
            extra = _choose_roomiest(rows.max_nodes[i], need, keys, room, chosen)
        if extra >= 0 and when_s < best_s:
            best, best_s, best_extra = k, when_s, extra
            reserved[:] = chosen
    return best, best_s, best_extra


@inner
def check_heads(
    i: int,
    kind: int,
    count: int,
    found: Ints,
    heads: ReservationHeads,
    heads_found: int,
    remaining_s: Floats,
    takes: bool,
) -> bool:
    """Return whether no head is delayed by row *i* on the nodes *found*; *takes*: count them as used."""
    for h in range(heads_found):
        if heads.kind[h] != kind or remaining_s[i] <= heads.shadow_s[h]:
            continue
        used = 0
        for e in range(count):
            if heads.nodes[h, found[ENTRY_NODE, e]]:
                used += found[ENTRY_GPUS, e]
        if takes:
            heads.extra[h] -= used
        elif used > heads.extra[h]:
            return False
    return True


@inner
def leave_reserved(
    i: int, heads: ReservationHeads, heads_found: int, remaining_s: Floats, free: Ints, left: Ints
) -> None:
    """Set *left* to the GPUs of each node that row *i* may take without delay of a head."""
    left[:] = free
    for h in range(heads_found):
        if remaining_s[i] <= heads.shadow_s[h]:
            continue
        for n in range(len(free)):
            if heads.nodes[h, n] and heads.extra[h] < left[n]:
                left[n] = heads.extra[h]
