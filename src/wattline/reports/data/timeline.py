"""Step functions of time: waiting jobs, leased and free GPUs, power."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.events import EVENT_AT_S, EVENT_ENERGY_J, EVENT_JOB, EVENT_VERB, RAN
from wattline.core.table import Floats, Ints, Table
from wattline.jit import F1, I1, INT, inner, kernel
from wattline.loop.runlog import Log
from wattline.reports.data.job_outcomes import JobOutcomes
from wattline.reports.data.lease_intervals import LeaseIntervals
from wattline.reports.data.node_states import BOOTING, OFF, UP, NodeStateChanges

_AT_S, _WAITING, _HELD, _FREE, _PARTLY_FREE, _POWER_W, _PARTLY_USED = range(7)

# Kinds of changes. Those of one moment are applied in this order, so that a lease that continues in
# another group never seems to have ended.
_LEASE_STARTED, _LEASE_ENDED, _POWER_REPORTED, _NODE_CHANGED, _JOB_SUBMITTED, _JOB_ENDED = range(6)


@dataclass(frozen=True, eq=False)
class Timeline(Table):
    """Each row holds from its *at_s* until the next row's; the last one is where the run ends."""

    at_s: Floats
    waiting: Floats  # jobs submitted, not ended, and without GPUs
    held: Floats  # leased GPUs
    free: Floats  # free GPUs of nodes that are up
    partly_free: Floats  # free GPUs of nodes that are used in part
    power_w: Floats  # of the whole cluster
    partly_used: Floats  # nodes that are used in part


def build_timeline(
    log: Log, intervals: LeaseIntervals, outcomes: JobOutcomes, node_changes: NodeStateChanges
) -> Timeline:
    """Return the step functions of *log* from its leases, jobs and nodes.

    Leased GPUs draw the power that the log reports of their jobs; where it reports none of a job, the
    `busy_w` of the nodes table.
    """
    leases = intervals.take(intervals.is_leader | intervals.is_first_node)  # other rows change no count
    gpus, once = np.where(leases.is_leader, leases.gpus, 0), leases.is_first_node.astype(np.int64)
    reported, reported_s, reported_w = _list_power_reports(log)
    known = np.zeros(len(log.jobs), dtype=np.bool_)
    known[reported[reported_w > 0]] = True
    draws_w = np.where(known[leases.job], 0.0, gpus * log.nodes.busy_w[leases.node])
    parts = (
        _fill_columns(_LEASE_STARTED, leases.start_s, leases.job, leases.node, gpus, once, draws_w),
        _fill_columns(_LEASE_ENDED, leases.end_s, leases.job, leases.node, gpus, once, draws_w),
        _fill_columns(_POWER_REPORTED, reported_s, reported, watts=reported_w),
        _fill_columns(_NODE_CHANGED, node_changes.at_s, node=node_changes.node, count=node_changes.state),
        _fill_columns(_JOB_SUBMITTED, outcomes.submit_s),
        _fill_columns(_JOB_ENDED, outcomes.end_s[~np.isnan(outcomes.end_s)]),
    )
    at_s, kind, job, node, count, once, watts = (np.concatenate(p) for p in zip(*parts, strict=True))
    table = _apply_changes(
        np.argsort(at_s, kind="stable"), at_s, kind, job, node, count, once, watts, len(log.jobs),
        log.nodes.gpus, log.nodes.base_w, log.nodes.idle_w, log.nodes.off_w, log.nodes.boot_w,
    )  # fmt: skip
    return Timeline(*table)


def _fill_columns(
    kind: int,
    at_s: Floats,
    job: Ints | None = None,
    node: Ints | None = None,
    count: Ints | None = None,
    once: Ints | None = None,
    watts: Floats | None = None,
) -> tuple[Floats, Ints, Ints, Ints, Ints, Ints, Floats]:
    """Return changes of one *kind* as columns; a column that is not given is 0."""
    none = np.zeros(len(at_s), dtype=np.int64)
    job, node, count, once = (none if column is None else column for column in (job, node, count, once))
    return at_s, none + kind, job, node, count, once, np.zeros(len(at_s)) if watts is None else watts


def _list_power_reports(log: Log) -> tuple[Ints, Floats, Floats]:
    """Return job, time and watts of every report of a job's power.

    A job that still starts up reports the time at which it will have started, but draws power from the
    moment that caused the report: the last event before it, or the decisions of the round before.
    """
    verb, at_s = log.events[:, EVENT_VERB], log.events[:, EVENT_AT_S]
    ran = verb == RAN
    decided_s = np.concatenate(([-np.inf], log.now_s))[log.event_round]
    moved_s = np.maximum.accumulate(np.where(ran, decided_s, at_s))
    rows = np.flatnonzero(ran)
    job = log.events[rows, EVENT_JOB].astype(np.int64)
    return job, np.minimum(at_s, moved_s)[rows], log.events[rows, EVENT_ENERGY_J]


@inner
def _count_partly_free(state: int, held: int, gpus: int) -> int:
    return gpus - held if state == UP and 0 < held < gpus else 0


@inner
def _count_free(state: int, held: int, gpus: int) -> int:
    return gpus - held if state == UP else 0


@inner
def _node_power_w(state: int, idle: int, base_w: float, idle_w: float, off_w: float, boot_w: float) -> float:
    """Return the power of a node without its leases."""
    if state == UP:
        return base_w + idle * idle_w
    if state == OFF:
        return off_w
    return boot_w if state == BOOTING else 0.0


@inner
def _add_compensated(total: float, rest: float, change: float) -> tuple[float, float]:
    """Return *total* + *change*, and *rest* plus the rounding error of that sum (compensated summation).

    Without it, watts that are added and later removed would leave a residue.
    """
    after = total + change
    part = after - total
    return after, rest + ((total - (after - part)) + (change - part))


@kernel(I1, F1, I1, I1, I1, I1, I1, F1, INT, I1, F1, F1, F1, F1)
def _apply_changes(
    order: Ints,
    at_s: Floats,
    kind: Ints,
    job: Ints,
    node: Ints,
    count: Ints,
    once: Ints,
    watts: Floats,
    jobs: int,
    gpus: Ints,
    base_w: Floats,
    idle_w: Floats,
    off_w: Floats,
    boot_w: Floats,
) -> Floats:
    """Return the columns of `Timeline` from changes in *order* of time; those of one moment make one row."""
    state = np.full(len(gpus), UP, dtype=np.int64)
    held = np.zeros(len(gpus), dtype=np.int64)
    open_rows = np.zeros(jobs, dtype=np.int64)  # open leases of each job; two while one continues as another
    draws_w = np.zeros(jobs)
    total_w, rest_w = 0.0, 0.0
    now = np.zeros(7)
    for n in range(len(gpus)):
        now[_FREE] += gpus[n]
        total_w, rest_w = _add_compensated(total_w, rest_w, base_w[n] + gpus[n] * idle_w[n])
    table = np.empty((7, len(at_s)))
    used = 0
    for k in range(len(order)):
        c = order[k]
        if kind[c] == _JOB_SUBMITTED:
            now[_WAITING] += 1
        elif kind[c] == _JOB_ENDED:
            now[_WAITING] -= 1
        elif kind[c] == _POWER_REPORTED:
            if open_rows[job[c]] > 0:  # else a late report on a lease that has ended
                total_w, rest_w = _add_compensated(total_w, rest_w, watts[c])
                total_w, rest_w = _add_compensated(total_w, rest_w, -draws_w[job[c]])
                draws_w[job[c]] = watts[c]
        else:
            n = node[c]
            now[_PARTLY_FREE] -= _count_partly_free(state[n], held[n], gpus[n])
            now[_PARTLY_USED] -= _count_partly_free(state[n], held[n], gpus[n]) > 0
            now[_FREE] -= _count_free(state[n], held[n], gpus[n])
            before_w = _node_power_w(state[n], gpus[n] - held[n], base_w[n], idle_w[n], off_w[n], boot_w[n])
            if kind[c] == _NODE_CHANGED:
                state[n] = count[c]
            else:
                sign = 1 if kind[c] == _LEASE_STARTED else -1
                held[n] += sign * count[c]
                now[_HELD] += sign * count[c]
                now[_WAITING] -= sign * once[c]
                open_rows[job[c]] += sign * once[c]
                total_w, rest_w = _add_compensated(total_w, rest_w, sign * watts[c])
                if open_rows[job[c]] == 0:
                    total_w, rest_w = _add_compensated(total_w, rest_w, -draws_w[job[c]])
                    draws_w[job[c]] = 0.0
            after_w = _node_power_w(state[n], gpus[n] - held[n], base_w[n], idle_w[n], off_w[n], boot_w[n])
            total_w, rest_w = _add_compensated(total_w, rest_w, after_w)
            total_w, rest_w = _add_compensated(total_w, rest_w, -before_w)
            now[_PARTLY_FREE] += _count_partly_free(state[n], held[n], gpus[n])
            now[_PARTLY_USED] += _count_partly_free(state[n], held[n], gpus[n]) > 0
            now[_FREE] += _count_free(state[n], held[n], gpus[n])
        if k + 1 == len(order) or at_s[order[k + 1]] != at_s[c]:
            now[_AT_S] = at_s[c]
            now[_POWER_W] = total_w + rest_w
            table[:, used] = now
            used += 1
    return table[:, :used].copy()


def compute_fragmentation(timeline: Timeline) -> float:
    """Return the mean share of free GPUs that are on partly used nodes, while GPUs are free and jobs wait.

    The free GPUs of one partly used node are together: only where there are several they count as scattered.
    """
    lasts_s = np.diff(timeline.at_s)
    free, partly_free = timeline.free[:-1], timeline.partly_free[:-1]
    counts = (free > 0) & (timeline.waiting[:-1] > 0)
    total_s = float(lasts_s[counts].sum())
    scattered = np.where(timeline.partly_used[:-1] > 1, partly_free, 0.0)
    return float((scattered[counts] / free[counts]) @ lasts_s[counts]) / total_s if total_s > 0 else 0.0
