"""The best decision: a program whose whole numbers do not depend on how many jobs or nodes there are.

Nodes of one sort are interchangeable, so it is enough to count how many of them have which pattern, a
multiset of GPU counts. With the patterns fixed, giving jobs their slots is a transportation problem, which
needs no whole numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.optimize.instance import POSTPONED, Event, Schedule
from wattline.optimize.objective import Charges

_GAP = 1e-3
_TIME_S = 2.0
_PATTERNS = 2000  # more would take longer to write down than to solve


class Pattern(NamedTuple):
    """What the jobs of one node have: the GPUs of each, ascending."""

    sort: int
    gpus: tuple[int, ...]


def patterns(event: Event, most: int) -> list[Pattern] | None:
    """Every way to fill a node, by sort; the empty one is left out. None: they are more than *most*."""
    found: list[Pattern] = []
    for sort, room in enumerate(event.gpus.tolist()):
        sizes = sorted(set(event.config_gpus[event.config_sort == sort].tolist()))
        line: list[tuple[tuple[int, ...], int]] = [((), 0)]
        while line:
            used, total = line.pop()
            for size in sizes:
                if (not used or size >= used[-1]) and total + size <= room:
                    if len(found) == most:
                        return None
                    found.append(Pattern(sort, (*used, size)))
                    line.append(((*used, size), total + size))
    return found


def solve(event: Event, charges: Charges, *, gap: float = _GAP, time_s: float = _TIME_S) -> Schedule | None:
    """The cheapest schedule by *charges*, within *gap*; None: no schedule was found in *time_s*."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # takes a while to import
    from scipy.sparse import csr_array

    if not event.jobs or not event.possible.any():
        return nobody(event, charges)
    known = patterns(event, _PATTERNS)
    if known is None:
        return None
    job, config, used = np.nonzero(np.isfinite(charges.runs))
    slots, slot = np.unique(np.stack((config, used)), axis=1, return_inverse=True)
    slot = slot.reshape(-1)
    count, jobs = len(job), event.jobs
    columns = count + jobs + len(known)
    cost = np.concatenate((charges.runs[job, config, used], charges.waits, np.zeros(len(known))))
    # Each job has one slot, or waits.
    once = csr_array(
        (
            np.ones(count + jobs),
            (np.concatenate((job, np.arange(jobs))), np.arange(count + jobs)),
        ),
        shape=(jobs, columns),
    )
    # As many jobs have a slot as patterns offer.
    rows, cols, values = [slot], [np.arange(count)], [np.ones(count)]
    for p, pattern in enumerate(known):
        total = sum(pattern.gpus)
        for s, (c, u) in enumerate(slots.T.tolist()):
            if u == total and event.config_sort[c] == pattern.sort:
                many = pattern.gpus.count(int(event.config_gpus[c]))
                if many:
                    rows.append(np.array([s]))
                    cols.append(np.array([count + jobs + p]))
                    values.append(np.array([-float(many)]))
    offers = csr_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(cols))),
        shape=(slots.shape[1], columns),
    )
    # There are so many nodes of each sort.
    sort = np.array([pattern.sort for pattern in known])
    room = csr_array(
        (np.ones(len(known)), (sort, count + jobs + np.arange(len(known)))), shape=(len(event.nodes), columns)
    )
    whole = np.concatenate((np.zeros(count + jobs), np.ones(len(known))))
    most = np.concatenate((np.ones(count + jobs), event.nodes[sort].astype(np.float64)))
    found = milp(
        cost,
        integrality=whole,
        bounds=Bounds(0, most),
        constraints=(
            LinearConstraint(once, 1, 1),
            LinearConstraint(offers, 0, 0),
            LinearConstraint(room, ub=event.nodes),
        ),
        options={"mip_rel_gap": gap, "time_limit": time_s},
    )
    if found.x is None:
        return None
    many = np.round(found.x[count + jobs :]).astype(np.int64)
    bound = float(found.mip_dual_bound) if found.mip_dual_bound is not None else np.nan
    return realise(event, charges, known, many, bound)


def realise(
    event: Event, charges: Charges, known: list[Pattern], many: Ints, bound: float = np.nan
) -> Schedule:
    """Nodes with these patterns, and the cheapest way to give jobs their slots."""
    from scipy.optimize import linear_sum_assignment

    config_at = {
        (int(sort), int(gpus)): c
        for c, (sort, gpus) in enumerate(zip(event.config_sort, event.config_gpus, strict=True))
    }
    slots: list[tuple[int, int, int]] = []  # configuration, busy GPUs, node
    next_node = [0] * len(event.nodes)
    for pattern, count in zip(known, many.tolist(), strict=True):
        for _ in range(count):
            node = next_node[pattern.sort]
            next_node[pattern.sort] += 1
            slots += [(config_at[pattern.sort, g], sum(pattern.gpus), node) for g in pattern.gpus]
    waits = np.full((event.jobs, event.jobs), np.inf)
    np.fill_diagonal(waits, charges.waits)
    by_slot = (
        np.stack([charges.runs[:, c, u] for c, u, _ in slots], axis=1) if slots else np.empty((event.jobs, 0))
    )
    matrix = np.concatenate((by_slot, waits), axis=1)
    large = 1e3 * (1.0 + np.abs(matrix[np.isfinite(matrix)]).sum())
    rows, columns = linear_sum_assignment(np.where(np.isfinite(matrix), matrix, large))
    config = np.full(event.jobs, POSTPONED, dtype=np.int64)
    places = np.full(event.jobs, -1, dtype=np.int64)
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        if column < len(slots):
            config[row], _, places[row] = slots[column]
    return Schedule(config, places, charged(event, charges, Schedule(config, places)), bound)


def charged(event: Event, charges: Charges, schedule: Schedule) -> float:
    """What a schedule costs by *charges*, with the GPUs that are really busy on its nodes."""
    used = np.zeros((len(event.nodes), int(event.nodes.max(initial=0)) + 1), dtype=np.int64)
    runs = np.flatnonzero(schedule.config != POSTPONED)
    config = schedule.config[runs]
    np.add.at(used, (event.config_sort[config], schedule.node[runs]), event.config_gpus[config])
    cost: Floats = charges.runs[runs, config, used[event.config_sort[config], schedule.node[runs]]]
    waits = schedule.config == POSTPONED
    return float(cost.sum() + charges.waits[waits].sum())


def nobody(event: Event, charges: Charges) -> Schedule:
    """The schedule in which everybody waits, where nobody can run."""
    none = np.full(event.jobs, POSTPONED, dtype=np.int64)
    worth = float(charges.waits.sum())
    return Schedule(none, none.copy(), worth, worth)
