"""Search for nodes that rules leave to a job, as compiled code."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wattline.core.reasons import REASONS, Reason
from wattline.core.table import Bools, Ints
from wattline.jit import I1, inner, record
from wattline.placement.kernel_arrays import ENTRY_GPUS, ENTRY_NODE, NodeColumns
from wattline.placement.selection import NO_ROOM, TOO_BIG

_MAINTENANCE, _RESERVED = REASONS.index(Reason.MAINTENANCE), REASONS.index(Reason.RESERVED)
_TOPOLOGY, _PARTITION_LIMIT = REASONS.index(Reason.TOPOLOGY), REASONS.index(Reason.PARTITION_LIMIT)
_WITHIN_RACK = 1


class NodeRules(NamedTuple):
    """Rules by node. *options*: the region that jobs keep within, and the bits of maintenance."""

    partitions: Ints  # bits
    windows: Ints  # bits
    rack: Ints
    pod: Ints
    options: Ints
    every: Ints  # bits of partitions, also of drained nodes


class RowRules(NamedTuple):
    """Rules by row of the queue."""

    partition: Ints  # bits: a node must have one of them
    blocked: Ints  # bits of windows: a node must have none of them
    named: Ints  # bits of windows: a node must have all of them
    max_nodes: Ints
    qos: Ints
    preempts: Ints  # bits of qos


NODE_RULES = record(NodeRules, I1, I1, I1, I1, I1, I1)
ROW_RULES = record(RowRules, I1, I1, I1, I1, I1, I1)


@inner
def may_use(n: int, i: int, partition: Ints, blocked: Ints, rules: NodeRules, named: Ints) -> bool:
    """Return whether row *i* may use node *n*, free or not."""
    return bool(
        (rules.partitions[n] & partition[i]) != 0
        and (rules.windows[n] & blocked[i]) == 0
        and (rules.windows[n] & named[i]) == named[i]
    )


@inner
def _choose_region(need: int, room: Ints, region: Ints) -> int:
    """Return the region with the least room that is enough for *need* GPUs; -1: none."""
    total = np.zeros(region.max() + 1, dtype=np.int64)
    for n in range(len(room)):
        total[region[n]] += room[n]
    best = -1
    for g in range(len(total)):
        if total[g] >= need and (best < 0 or total[g] < total[best]):
            best = g
    return best


@inner
def _fits_empty(need: int, gpus: Ints, usable: Bools, region: Ints) -> bool:
    """Return whether one region could hold *need* GPUs if it was empty."""
    total = np.zeros(region.max() + 1, dtype=np.int64)
    for n in range(len(gpus)):
        if usable[n]:
            total[region[n]] += gpus[n]
    return bool(total.max() >= need)


@inner
def _fill_nodes(need: int, room: Ints, most: int, found: Ints) -> int:
    """Write nodes and GPUs for *need* into *found*, fewest nodes first; return their number, 0: too many."""
    left, count = need, 0
    while left > 0:
        if count == most or count == found.shape[1]:
            return 0
        pick = -1
        for n in range(len(room)):  # the tightest node that holds the rest, else the one with most room
            if room[n] <= 0:
                continue
            if pick < 0:
                pick = n
            elif room[n] >= left:
                if room[pick] < left or room[n] < room[pick]:
                    pick = n
            elif room[pick] < left and room[n] > room[pick]:
                pick = n
        if pick < 0:
            return 0
        taken = min(room[pick], left)
        found[ENTRY_NODE, count], found[ENTRY_GPUS, count] = pick, taken
        room[pick] = 0
        left -= taken
        count += 1
    return count


@inner
def find_nodes(
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
    found: Ints,
) -> tuple[int, int, bool]:
    """Return the number of nodes written to *found* (0: none), their kind, and if only the region lacks."""
    lacks_region = False
    usable = np.zeros(len(free), dtype=np.bool_)
    room = np.zeros(len(free), dtype=np.int64)
    for k in range(kinds):
        if not (accepted >> k) & 1:
            continue
        total, tight = 0, -1
        for n in range(len(free)):
            usable[n] = nodes.kind[n] == k and may_use(n, i, partition, blocked, rules, rows.named)
            room[n] = free[n] if usable[n] and free[n] > 0 else 0
            total += room[n]
            if room[n] >= need and (
                tight < 0
                or room[n] < room[tight]
                or (room[n] == room[tight] and nodes.boot_done_s[n] < nodes.boot_done_s[tight])
            ):
                tight = n
        if total < need:
            continue
        if tight >= 0:
            found[ENTRY_NODE, 0], found[ENTRY_GPUS, 0] = tight, need
            return 1, k, False
        within = rules.options[0]
        rack = _choose_region(need, room, rules.rack)
        pod = -1
        if rack >= 0:
            for n in range(len(room)):
                room[n] = room[n] if rules.rack[n] == rack else 0
        else:
            if within == _WITHIN_RACK and _fits_empty(need, nodes.gpus, usable, rules.rack):
                lacks_region = True
                continue
            pod = _choose_region(need, room, rules.pod)
            if pod >= 0:
                for n in range(len(room)):
                    room[n] = room[n] if rules.pod[n] == pod else 0
            elif within > 0 and _fits_empty(need, nodes.gpus, usable, rules.pod):
                lacks_region = True
                continue
        count = _fill_nodes(need, room, rows.max_nodes[i], found)
        if count > 0:
            return count, k, False
    return 0, -1, lacks_region


@inner
def _can_ever_fit(
    i: int, need: int, accepted: int, kinds: int, nodes: NodeColumns, rules: NodeRules, partition: Ints
) -> bool:
    """Return whether a kind has *need* GPUs on the nodes of the partitions of row *i*."""
    total = np.zeros(kinds, dtype=np.int64)
    for n in range(len(nodes.gpus)):
        if rules.every[n] & partition[i]:
            total[nodes.kind[n]] += nodes.gpus[n]
    fits = False
    for k in range(kinds):
        fits = fits or (total[k] >= need and (accepted >> k) & 1 == 1)
    return fits


@inner
def explain_row(
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
    found: Ints,
    lacks_region: bool,
) -> int:
    """Return the reason of row *i*, which finds no nodes; `NO_ROOM` if others only hold them."""
    if not _can_ever_fit(i, need, accepted, kinds, nodes, rules, partition):
        everywhere = np.ones(len(partition), dtype=np.int64)  # bit 0: every node
        fits = _can_ever_fit(i, need, accepted, kinds, nodes, rules, everywhere)
        return _PARTITION_LIMIT if fits else TOO_BIG
    if lacks_region:
        return _TOPOLOGY
    if blocked[i] != 0:
        open_windows = np.zeros(len(blocked), dtype=np.int64)
        count, _, _ = find_nodes(
            i, need, accepted, kinds, nodes, rules, rows, partition, open_windows, free, found
        )
        if count > 0:
            return _MAINTENANCE if blocked[i] & rules.options[1] else _RESERVED
    return NO_ROOM
