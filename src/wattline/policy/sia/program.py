"""The integer program of Sia: one configuration for each job, within the GPUs of each kind."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.optimize.quiet_solver import solve_quietly


class GroupProgram(NamedTuple):
    """Groups of equal jobs and their options; columns behind *room* are by option.

    An option is a number of GPUs of one kind for a job of one group, at a cost below that of none.
    """

    members: Ints  # jobs of each group
    room: Ints  # GPUs of each kind
    group: Ints
    kind: Ints
    gpus: Ints
    saved: Floats  # cost of a job without GPUs, less that with this option; above 0


class ProgramChoice(NamedTuple):
    """Solution of a program."""

    jobs: Ints  # number of jobs with each option
    gap: float  # relative distance from the best bound; inf: unknown, because no solution was found


def solve_program(program: GroupProgram, gap: float, node_limit: int) -> ProgramChoice:
    """Return how many jobs of each group get each option, so that they save most.

    Without a shortage every job has its best option, and no solver is needed. Otherwise HiGHS stops within
    *gap* of the best bound, or after *node_limit* nodes of its search tree: a limit on time would make runs
    differ.
    """
    best = _take_best_options(program)
    if best is not None:
        return ProgramChoice(best, 0.0)
    from scipy.optimize import Bounds, LinearConstraint  # takes a while to import
    from scipy.sparse import coo_array

    options, groups, kinds = len(program.group), len(program.members), len(program.room)
    rows = np.concatenate((program.group, groups + program.kind))
    columns = np.tile(np.arange(options), 2)
    entries = np.concatenate((np.ones(options), program.gpus.astype(np.float64)))
    matrix = coo_array((entries, (rows, columns)), shape=(groups + kinds, options)).tocsr()
    most = np.minimum(program.members[program.group], program.room[program.kind] // program.gpus)
    result = solve_quietly(
        -program.saved,
        integrality=np.ones(options),
        bounds=Bounds(0, most.astype(np.float64)),
        constraints=LinearConstraint(matrix, ub=np.concatenate((program.members, program.room))),
        options={"mip_rel_gap": gap, "node_limit": node_limit},
    )
    if result.x is None:
        return ProgramChoice(np.zeros(options, dtype=np.int64), math.inf)
    reached = math.inf if result.mip_gap is None else float(result.mip_gap)
    return ProgramChoice(np.round(result.x).astype(np.int64), reached)


def _take_best_options(program: GroupProgram) -> Ints | None:
    """Return the choice in which every job has its best option; None: there are too few GPUs."""
    count = np.zeros(len(program.group), dtype=np.int64)
    order = np.lexsort((program.gpus, -program.saved, program.group))
    first = np.unique(program.group[order], return_index=True)[1]
    best = order[first]
    count[best] = program.members[program.group[best]]
    used = np.bincount(program.kind, count * program.gpus, len(program.room))
    return count if (used <= program.room).all() else None
