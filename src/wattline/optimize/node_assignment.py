"""Which node is which: jobs that go on as they are should not move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattline.core.table import Bools, Floats, Ints
from wattline.optimize.exact import charged
from wattline.optimize.instance import POSTPONED, Event, Schedule
from wattline.optimize.objective import Charges

_FIRST = 1e-6
_SLACK = 1e-3  # of what a schedule costs: so much more is nothing


def stick(
    event: Event, charges: Charges, schedule: Schedule, config: Ints, node: Ints, moving: Floats
) -> Schedule:
    """*schedule* on nodes such that few of the jobs move that now have *config* on *node* (POSTPONED: none).

    Nodes change their numbers, so that as many as possible have the jobs that they had. Or else who keeps its
    configuration stays on its node and others go where they fit best, if that costs no more; a move costs a
    job *moving*.
    """
    fewest = replace(schedule, node=_renumber(event, schedule, config, node))
    kept = _keep(event, schedule, config, node)
    if kept is None:
        return fewest
    stays = replace(schedule, node=kept, worth=charged(event, charges, replace(schedule, node=kept)))
    moves, fewer = (_moves(way, config, node) for way in (fewest, stays))
    gain = fewest.worth + float(moving[moves].sum()) - stays.worth - float(moving[fewer].sum())
    slack = _SLACK * abs(schedule.worth) if fewer.sum() < moves.sum() else 0.0
    return stays if gain >= -slack else fewest


def _moves(schedule: Schedule, config: Ints, node: Ints) -> Bools:
    """Who goes to another node in the same configuration."""
    return np.asarray((config != POSTPONED) & (schedule.config == config) & (schedule.node != node))


def _keep(event: Event, schedule: Schedule, config: Ints, node: Ints) -> Ints | None:
    """Nodes on which those who keep their configuration stay, but for who must make room for a larger job;
    None: somebody finds no place."""
    free = [np.full(int(count), gpus) for count, gpus in zip(event.nodes, event.gpus.tolist(), strict=True)]
    found = np.full(event.jobs, -1, dtype=np.int64)
    runs = schedule.config != POSTPONED
    stays = runs & (schedule.config == config)
    sort, gpus = event.config_sort[schedule.config], event.config_gpus[schedule.config]
    for job in np.flatnonzero(stays).tolist():
        found[job] = node[job]
        free[sort[job]][node[job]] -= gpus[job]
    line = sorted(np.flatnonzero(runs & ~stays).tolist(), key=lambda job: -gpus[job])
    while line:
        job = line.pop(0)
        room = free[sort[job]]
        fits = np.flatnonzero(room >= gpus[job])
        if len(fits):
            found[job] = fits[np.argmin(room[fits])]
        else:
            smaller = np.flatnonzero((found >= 0) & (sort == sort[job]) & (gpus < gpus[job]))
            leaves = _who_leaves(smaller, found, gpus, room, int(gpus[job]))
            if not leaves:
                return None
            found[job] = found[leaves[0]]
            for other in leaves:
                room[found[other]] += gpus[other]
                found[other] = -1
            line = sorted([*line, *leaves], key=lambda job: -gpus[job])
        room[found[job]] -= gpus[job]
    return found


def _who_leaves(smaller: Ints, found: Ints, gpus: Ints, room: Ints, need: int) -> list[int]:
    """The fewest of *smaller* jobs, all on one node, that make room for *need* GPUs; none: nobody can."""
    best: list[int] = []
    for n in range(len(room)):
        leaves: list[int] = []
        free = int(room[n])
        for job in sorted(smaller[found[smaller] == n].tolist(), key=lambda job: -gpus[job]):
            if free < need:
                leaves.append(job)
                free += int(gpus[job])
        if free >= need and (not best or len(leaves) < len(best)):
            best = leaves
    return best


def _renumber(event: Event, schedule: Schedule, config: Ints, node: Ints) -> Ints:
    from scipy.optimize import linear_sum_assignment  # takes a while to import

    found = schedule.node.copy()
    same = (schedule.config != POSTPONED) & (schedule.config == config)
    for sort, count in enumerate(event.nodes.tolist()):
        here = np.flatnonzero(same & (event.config_sort[np.maximum(config, 0)] == sort))
        overlap = np.zeros((count, count))
        np.add.at(overlap, (schedule.node[here], node[here]), event.config_gpus[config[here]])
        mine = (schedule.config != POSTPONED) & (event.config_sort[np.maximum(schedule.config, 0)] == sort)
        overlap[schedule.node[mine]] -= _FIRST * np.arange(count)  # of nodes that are as good, the first
        _, number = linear_sum_assignment(-overlap)
        found[mine] = number[schedule.node[mine]]
    return found
