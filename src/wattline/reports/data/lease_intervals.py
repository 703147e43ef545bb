"""Intervals during which each job held GPUs of each node.

The log is walked once, in order; every other number of a report is array code over the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.actions import ACTION_GPUS, ACTION_GROUP, ACTION_JOB, ACTION_VERB, START, STOP, Actions
from wattline.core.events import EVENT_AT_S, EVENT_JOB, EVENT_VERB, FAILED, FINISHED, LOST
from wattline.core.table import Bools, Floats, Ints, Table
from wattline.jit import F1, FLOAT, I1, I2, INT, inner, kernel
from wattline.loop.runlog import Log

_JOB, _GROUP, _NODE, _GPUS, _START_S, _END_S, _FIRST_NODE = range(7)
_COLUMNS = 7


@dataclass(frozen=True, eq=False)
class LeaseIntervals(Table):
    """One row per job and node, cut where the job's group changes; ordered by *start_s*.

    The GPUs of a packed or fused group are counted once, on the rows of its leader. *is_first_node*
    marks one row per job that spans nodes, so that its seconds are counted once.
    """

    job: Ints
    group: Ints
    node: Ints
    gpus: Ints
    start_s: Floats
    end_s: Floats
    is_first_node: Bools

    @property
    def is_leader(self) -> Bools:
        """Rows to add up when GPUs are counted."""
        return np.asarray(self.job == self.group)


def collect_lease_intervals(log: Log) -> LeaseIntervals:
    """Return all leases of *log*; a lease that is still open when the log ends, ends there."""
    verb, job = log.events[:, EVENT_VERB], log.events[:, EVENT_JOB]
    ends = np.flatnonzero((verb == FINISHED) | (verb == FAILED) | (verb == LOST))
    leasing = log.actions[:, ACTION_VERB] <= STOP
    actions = np.ascontiguousarray(log.actions[leasing])
    last_action_job = actions[:, ACTION_JOB : ACTION_GROUP + 1].max(initial=-1)
    jobs = int(max(last_action_job, job[ends].max(initial=-1))) + 1
    table = _walk(
        jobs,
        job[ends].astype(np.int64),
        np.ascontiguousarray(log.events[ends, EVENT_AT_S]),
        log.event_round[ends],
        actions,
        log.action_s[leasing],
        log.action_round[leasing],
        log.end_s,
    )
    holder, group, node, gpus = table[: _GPUS + 1].astype(np.int64)
    return LeaseIntervals(holder, group, node, gpus, table[_START_S], table[_END_S], table[_FIRST_NODE] > 0)


@inner
def _reserve_column(table: Floats, used: int) -> Floats:
    """Return *table*, enlarged if it has no free column after the *used* ones."""
    if used < table.shape[1]:
        return table
    larger = np.empty((_COLUMNS, 2 * used))
    larger[:, :used] = table[:, :used]
    return larger


@inner
def _join_group(job: int, to: int, group: Ints, head: Ints, after: Ints, before: Ints) -> None:
    group[job] = to
    before[job] = -1
    after[job] = head[to]
    if head[to] >= 0:
        before[head[to]] = job
    head[to] = job


@inner
def _leave_group(job: int, group: Ints, head: Ints, after: Ints, before: Ints) -> int:
    """Take *job* out of its group; return the new leader, or -1 if the leader stays or the group is empty."""
    previous = group[job]
    group[job] = -1
    if before[job] >= 0:
        after[before[job]] = after[job]
    else:
        head[previous] = after[job]
    if after[job] >= 0:
        before[after[job]] = before[job]
    if previous != job or head[job] < 0:
        return -1
    leader = member = head[job]
    while member >= 0:  # the smallest job number leads, as in the loop's state and in the simulator
        leader = min(leader, member)
        member = after[member]
    head[leader] = head[job]
    head[job] = -1
    return int(leader)


@inner
def _change_group(
    table: Floats, used: int, first_row: Ints, rows: Ints, job: int, to: int, at_s: float
) -> tuple[Floats, int]:
    """End the open rows of *job* and continue with the same GPUs in group *to*."""
    first = first_row[job]
    first_row[job] = used
    for r in range(first, first + rows[job]):
        table[_END_S, r] = at_s
        table = _reserve_column(table, used)
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
    """Return the columns of `LeaseIntervals`. In a round, events come before actions."""
    group = np.full(jobs, -1, dtype=np.int64)  # -1 = no lease
    head = np.full(jobs, -1, dtype=np.int64)  # first member of each group, a doubly linked list
    after = np.full(jobs, -1, dtype=np.int64)
    before = np.full(jobs, -1, dtype=np.int64)
    first_row = np.zeros(jobs, dtype=np.int64)  # first of the open rows of a job
    rows = np.zeros(jobs, dtype=np.int64)  # number of open rows of a job
    table = np.empty((_COLUMNS, max(16, len(actions))))
    used = e = a = 0
    while e < len(end_job) or a < len(actions):
        is_event = e < len(end_job) and (a == len(actions) or end_round[e] <= action_round[a])
        job = end_job[e] if is_event else actions[a, ACTION_JOB]
        at_s = end_s[e] if is_event else action_s[a]
        if not is_event and actions[a, ACTION_VERB] == START:
            is_further_node = group[job] >= 0
            if not is_further_node:
                _join_group(job, actions[a, ACTION_GROUP], group, head, after, before)
                first_row[job] = used
                rows[job] = 0
            table = _reserve_column(table, used)
            table[_JOB, used] = job
            table[_GROUP : _GPUS + 1, used] = actions[a, ACTION_GROUP : ACTION_GPUS + 1]
            table[_START_S, used] = at_s
            table[_END_S, used] = last_s
            table[_FIRST_NODE, used] = not is_further_node
            rows[job] += 1
            used += 1
        elif group[job] >= 0:  # else a stop action ended the lease before the job's end was seen
            table[_END_S, first_row[job] : first_row[job] + rows[job]] = at_s
            leader = _leave_group(job, group, head, after, before)
            member = head[leader] if leader >= 0 else -1
            while member >= 0:
                group[member] = leader
                table, used = _change_group(table, used, first_row, rows, member, leader, at_s)
                member = after[member]
        e += is_event
        a += not is_event
    return table[:, :used].copy()
