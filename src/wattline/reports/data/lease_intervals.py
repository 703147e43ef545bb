"""Who held which GPUs, from when to when.

The log is walked once, in order; every other number of a report is array code over the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.actions import START, STOP, Actions
from wattline.core.events import FAILED, FINISHED, LOST
from wattline.core.table import Bools, Floats, Ints, Table
from wattline.jit import F1, FLOAT, I1, I2, INT, inner, kernel
from wattline.loop.runlog import Log

_JOB, _GROUP, _NODE, _GPUS, _START_S, _END_S, _FIRST = range(7)


@dataclass(frozen=True, eq=False)
class Spans(Table):
    """One row per job and node, cut where the job's group changes; in order of *start_s*.

    GPUs of a packed or fused group are held once, by the rows that lead; *first* marks one row per
    job where it spans nodes, so that its seconds are counted once.
    """

    job: Ints
    group: Ints
    node: Ints
    gpus: Ints
    start_s: Floats
    end_s: Floats
    first: Bools

    @property
    def leads(self) -> Bools:
        """Rows to add up when GPUs are counted."""
        return np.asarray(self.job == self.group)


def spans(log: Log) -> Spans:
    """All that was held in *log*; what is still held at its end ends there."""
    verb, job = log.events[:, 0], log.events[:, 1]
    ends = np.flatnonzero((verb == FINISHED) | (verb == FAILED) | (verb == LOST))
    leasing = log.actions[:, 0] <= STOP
    actions = np.ascontiguousarray(log.actions[leasing])
    jobs = int(max(actions[:, 1:3].max(initial=-1), job[ends].max(initial=-1))) + 1
    table = _walk(
        jobs,
        job[ends].astype(np.int64),
        np.ascontiguousarray(log.events[ends, 2]),
        log.event_round[ends],
        actions,
        log.action_s[leasing],
        log.action_round[leasing],
        log.end_s,
    )
    who, group, node, gpus = table[: _GPUS + 1].astype(np.int64)
    return Spans(who, group, node, gpus, table[_START_S], table[_END_S], table[_FIRST] > 0)


@inner
def _room(table: Floats, used: int) -> Floats:
    """*table* with at least one more column after the *used* ones."""
    if used < table.shape[1]:
        return table
    larger = np.empty((7, 2 * used))
    larger[:, :used] = table[:, :used]
    return larger


@inner
def _join(job: int, to: int, group: Ints, head: Ints, after: Ints, before: Ints) -> None:
    group[job] = to
    before[job] = -1
    after[job] = head[to]
    if head[to] >= 0:
        before[head[to]] = job
    head[to] = job


@inner
def _leave(job: int, group: Ints, head: Ints, after: Ints, before: Ints) -> int:
    """Take *job* out of its group; answers who leads the group from now on if somebody new does, or -1."""
    was = group[job]
    group[job] = -1
    if before[job] >= 0:
        after[before[job]] = after[job]
    else:
        head[was] = after[job]
    if after[job] >= 0:
        before[after[job]] = before[job]
    if was != job or head[job] < 0:
        return -1
    leader = member = head[job]
    while member >= 0:  # the smallest number leads, as in the core and in the simulator
        leader = min(leader, member)
        member = after[member]
    head[leader] = head[job]
    head[job] = -1
    return int(leader)


@inner
def _recut(
    table: Floats, used: int, top: Ints, rows: Ints, job: int, to: int, at_s: float
) -> tuple[Floats, int]:
    """End the open rows of *job* and go on with the same GPUs in group *to*."""
    first = top[job]
    top[job] = used
    for r in range(first, first + rows[job]):
        table[_END_S, r] = at_s
        table = _room(table, used)
        table[:, used] = table[:, r]
        table[_GROUP, used] = to
        table[_START_S, used] = at_s
        used += 1
    return table, used


@kernel(INT, I1, F1, I1, I2, F1, I1, FLOAT)
def _walk(
    jobs: int,
    end_job: Ints,
    end_s: Floats,
    end_round: Ints,
    actions: Actions,
    action_s: Floats,
    action_round: Ints,
    last_s: float,
) -> Floats:
    """Columns of `Spans`. In a round, what happened comes before what was done about it."""
    group = np.full(jobs, -1, dtype=np.int64)  # -1: holds nothing
    head = np.full(jobs, -1, dtype=np.int64)  # first member of each group, in a list both ways
    after = np.full(jobs, -1, dtype=np.int64)
    before = np.full(jobs, -1, dtype=np.int64)
    top = np.zeros(jobs, dtype=np.int64)  # first of the open rows of a job
    rows = np.zeros(jobs, dtype=np.int64)  # how many they are
    table = np.empty((7, max(16, len(actions))))
    used = e = a = 0
    while e < len(end_job) or a < len(actions):
        happened = e < len(end_job) and (a == len(actions) or end_round[e] <= action_round[a])
        job = end_job[e] if happened else actions[a, 1]
        at_s = end_s[e] if happened else action_s[a]
        if not happened and actions[a, 0] == START:
            goes_on = group[job] >= 0  # on a further node
            if not goes_on:
                _join(job, actions[a, 2], group, head, after, before)
                top[job] = used
                rows[job] = 0
            table = _room(table, used)
            table[_JOB, used] = job
            table[_GROUP : _GPUS + 1, used] = actions[a, 2:5]
            table[_START_S, used] = at_s
            table[_END_S, used] = last_s
            table[_FIRST, used] = not goes_on
            rows[job] += 1
            used += 1
        elif group[job] >= 0:  # else it had been told to stop before it ended
            table[_END_S, top[job] : top[job] + rows[job]] = at_s
            leader = _leave(job, group, head, after, before)
            member = head[leader] if leader >= 0 else -1
            while member >= 0:
                group[member] = leader
                table, used = _recut(table, used, top, rows, member, leader, at_s)
                member = after[member]
        e += happened
        a += not happened
    return table[:, :used].copy()
