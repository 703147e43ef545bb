"""Which node is which: jobs that go on as they are should not move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattline.optimize.event import POSTPONED, Event, Schedule
from wattline.optimize.exact import charged
from wattline.optimize.objective import Charges
from wattline.table import Ints

_SLACK = 1e-3  # of what a schedule costs: so much more is nothing


def stick(event: Event, charges: Charges, schedule: Schedule, config: Ints, node: Ints) -> Schedule:
    """*schedule* on nodes such that few of the jobs move that now have *config* on *node* (POSTPONED: none).

    Who keeps its configuration stays on its node, and others go where they fit best, if that costs no more;
    else nodes change their numbers, so that as many as possible have the jobs that they had.
    """
    kept = _keep(event, schedule, config, node)
    if kept is not None:
        worth = charged(event, charges, replace(schedule, node=kept))
        if worth <= schedule.worth + _SLACK * abs(schedule.worth):
            return replace(schedule, node=kept, worth=worth)
    return replace(schedule, node=_renumber(event, schedule, config, node))


def _keep(event: Event, schedule: Schedule, config: Ints, node: Ints) -> Ints | None:
    """Nodes on which everybody who keeps its configuration stays; None: somebody else finds no place."""
    free = [np.full(int(count), gpus) for count, gpus in zip(event.nodes, event.gpus.tolist(), strict=True)]
    found = np.full(event.jobs, -1, dtype=np.int64)
    runs = schedule.config != POSTPONED
    stays = runs & (schedule.config == config)
    for job in np.flatnonzero(stays).tolist():
        found[job] = node[job]
        free[event.config_sort[config[job]]][node[job]] -= event.config_gpus[config[job]]
    others = np.flatnonzero(runs & ~stays)
    for job in others[np.argsort(-event.config_gpus[schedule.config[others]], kind="stable")].tolist():
        c = schedule.config[job]
        room = free[event.config_sort[c]]
        fits = np.flatnonzero(room >= event.config_gpus[c])
        if not len(fits):
            return None
        found[job] = fits[np.argmin(room[fits])]
        room[found[job]] -= event.config_gpus[c]
    return found


def _renumber(event: Event, schedule: Schedule, config: Ints, node: Ints) -> Ints:
    from scipy.optimize import linear_sum_assignment  # takes a while to import

    found = schedule.node.copy()
    same = (schedule.config != POSTPONED) & (schedule.config == config)
    for sort, count in enumerate(event.nodes.tolist()):
        here = np.flatnonzero(same & (event.config_sort[np.maximum(config, 0)] == sort))
        overlap = np.zeros((count, count))
        np.add.at(overlap, (schedule.node[here], node[here]), event.config_gpus[config[here]])
        _, number = linear_sum_assignment(-overlap)
        mine = (schedule.config != POSTPONED) & (event.config_sort[np.maximum(schedule.config, 0)] == sort)
        found[mine] = number[schedule.node[mine]]
    return found
