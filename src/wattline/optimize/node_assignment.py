"""Choice among equal nodes, so that jobs that keep their configuration do not move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattline.core.table import Bools, Floats, Ints
from wattline.optimize.exact import compute_cost
from wattline.optimize.instance import POSTPONED, Assignment, Instance
from wattline.optimize.objective import Charges

_FIRST = 1e-6
_ROUNDING = 1e-12  # relative, of sums in another order
_SLACK = 1e-3  # of the cost of an assignment: a difference that does not count


def assign_nodes(
    instance: Instance, charges: Charges, assignment: Assignment, config: Ints, node: Ints, move_cost: Floats
) -> Assignment:
    """Return *assignment* on nodes such that few jobs move.

    Jobs now have *config* on *node* (POSTPONED: none). Nodes are renumbered, so that as many as possible
    have the jobs that they had. Or else jobs that keep their configuration stay on their nodes and the
    others go where they fit best, if that costs no more; a move costs a job *move_cost*.
    """
    staying = _keep_nodes(instance, assignment, config, node)
    if staying is None:
        return replace(assignment, node=_renumber(instance, assignment, config, node))
    stays = replace(
        assignment,
        node=staying,
        cost=compute_cost(instance, charges, replace(assignment, node=staying)),
    )
    same = stays.cost <= assignment.cost + _ROUNDING * abs(assignment.cost)
    if same and not _find_moved(stays, config, node).any():
        return stays  # renumbering could be no better
    fewer = _find_moved(stays, config, node)
    near = stays.cost - assignment.cost <= _SLACK * abs(assignment.cost)
    if near and not fewer.any() and _must_move_some(instance, assignment, config, node):
        return stays  # whatever the renumbering
    fewest = replace(assignment, node=_renumber(instance, assignment, config, node))
    moves = _find_moved(fewest, config, node)
    gain = fewest.cost + float(move_cost[moves].sum()) - stays.cost - float(move_cost[fewer].sum())
    slack = _SLACK * abs(assignment.cost) if fewer.sum() < moves.sum() else 0.0
    return stays if gain >= -slack else fewest


def _find_moved(assignment: Assignment, config: Ints, node: Ints) -> Bools:
    """Return which jobs go to another node in the same configuration."""
    return np.asarray((config != POSTPONED) & (assignment.config == config) & (assignment.node != node))


def _must_move_some(instance: Instance, assignment: Assignment, config: Ints, node: Ints) -> bool:
    """Return whether jobs that keep their configuration are grouped otherwise than now: some must move."""
    same = np.flatnonzero((config != POSTPONED) & (assignment.config == config))
    node_type, now, then = instance.config_node_type[config[same]], node[same], assignment.node[same]
    other = np.empty((len(instance.node_counts), int(instance.node_counts.max(initial=0))), dtype=np.int64)
    for one, two in ((now, then), (then, now)):
        other[node_type, one] = two
        if (other[node_type, one] != two).any():
            return True
    return False


def _keep_nodes(instance: Instance, assignment: Assignment, config: Ints, node: Ints) -> Ints | None:
    """Return nodes such that jobs that keep their configuration stay, except those in the way of larger ones.

    None: some job finds no node.
    """
    free = [
        np.full(int(count), gpus)
        for count, gpus in zip(instance.node_counts, instance.gpus.tolist(), strict=True)
    ]
    chosen = np.full(instance.jobs, -1, dtype=np.int64)
    runs = assignment.config != POSTPONED
    stays = runs & (assignment.config == config)
    node_type, gpus = instance.config_node_type[assignment.config], instance.config_gpus[assignment.config]
    chosen[stays] = node[stays]
    for of_type, room in enumerate(free):
        here = stays & (node_type == of_type)
        np.subtract.at(room, node[here], gpus[here])
    line = sorted(np.flatnonzero(runs & ~stays).tolist(), key=lambda job: -gpus[job])
    while line:
        job = line.pop(0)
        room = free[node_type[job]]
        fits = np.flatnonzero(room >= gpus[job])
        if len(fits):
            chosen[job] = fits[np.argmin(room[fits])]
        else:
            smaller = np.flatnonzero((chosen >= 0) & (node_type == node_type[job]) & (gpus < gpus[job]))
            leaves = _find_leaving(smaller, chosen, gpus, room, int(gpus[job]))
            if not leaves:
                return None
            chosen[job] = chosen[leaves[0]]
            for other in leaves:
                room[chosen[other]] += gpus[other]
                chosen[other] = -1
            line = sorted([*line, *leaves], key=lambda job: -gpus[job])
        room[chosen[job]] -= gpus[job]
    return chosen


def _find_leaving(smaller: Ints, chosen: Ints, gpus: Ints, room: Ints, need: int) -> list[int]:
    """Return the fewest of *smaller* jobs on one node that make room for *need* GPUs; empty: impossible."""
    best: list[int] = []
    for n in range(len(room)):
        leaves: list[int] = []
        free = int(room[n])
        for job in sorted(smaller[chosen[smaller] == n].tolist(), key=lambda job: -gpus[job]):
            if free < need:
                leaves.append(job)
                free += int(gpus[job])
        if free >= need and (not best or len(leaves) < len(best)):
            best = leaves
    return best


def _renumber(instance: Instance, assignment: Assignment, config: Ints, node: Ints) -> Ints:
    """Return the nodes of *assignment*, renumbered so that as many GPUs as possible keep their jobs."""
    from scipy.optimize import linear_sum_assignment  # takes a while to import

    chosen = assignment.node.copy()
    same = (assignment.config != POSTPONED) & (assignment.config == config)
    for node_type, count in enumerate(instance.node_counts.tolist()):
        here = np.flatnonzero(same & (instance.config_node_type[np.maximum(config, 0)] == node_type))
        mine = (assignment.config != POSTPONED) & (
            instance.config_node_type[np.maximum(assignment.config, 0)] == node_type
        )
        # Only nodes with jobs need a number: a cluster may have hundreds without.
        used, row = np.unique(assignment.node[mine], return_inverse=True)
        row_of = np.zeros(count, dtype=np.int64)
        row_of[assignment.node[mine]] = row
        overlap = np.zeros((len(used), count))
        np.add.at(overlap, (row_of[assignment.node[here]], node[here]), instance.config_gpus[config[here]])
        overlap -= _FIRST * np.arange(count)  # of nodes that are as good, the first
        _, number = linear_sum_assignment(-overlap)
        chosen[mine] = number[row]
    return chosen
