"""What the cluster looked like at every moment: step functions of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.events import RAN
from wattline.core.table import Floats, Ints, Table
from wattline.jit import F1, I1, INT, inner, kernel
from wattline.loop.runlog import Log
from wattline.reports.data.job_outcomes import Fates
from wattline.reports.data.lease_intervals import Spans
from wattline.reports.data.node_states import BOOTING, OFF, UP, Turns

_AT_S, _WAITING, _HELD, _FREE, _PARTLY, _POWER_W = range(6)

# What changes: leases, what is known of their watts, nodes, jobs. Changes of one moment are taken in
# this order, so that a lease that goes on in another group never seems to have ended.
_STARTED, _ENDED, _TOLD, _TURNED, _CAME, _LEFT = range(6)


@dataclass(frozen=True, eq=False)
class Timeline(Table):
    """Each row holds from its *at_s* until the next row's; the last one is where the run ends."""

    at_s: Floats
    waiting: Floats  # jobs submitted, not over, and without GPUs
    held: Floats  # GPUs
    free: Floats  # GPUs of nodes that are up
    partly: Floats  # free GPUs of nodes that are used in part
    power_w: Floats  # of the whole cluster


def timeline(log: Log, held: Spans, jobs: Fates, turned: Turns) -> Timeline:
    """The step functions of *log*, whose leases, jobs and nodes are *held*, *jobs* and *turned*.

    GPUs that are held draw what the log says of their jobs; where it says nothing of a job, what the
    nodes table says.
    """
    held = held.take(held.leads | held.first)  # others change no count
    gpus, once = np.where(held.leads, held.gpus, 0), held.first.astype(np.int64)
    told, told_s, told_w = _told(log)
    known = np.zeros(len(log.jobs), dtype=np.bool_)
    known[told[told_w > 0]] = True
    draws_w = np.where(known[held.job], 0.0, gpus * log.nodes.busy_w[held.node])
    parts = (
        _changes(_STARTED, held.start_s, held.job, held.node, gpus, once, draws_w),
        _changes(_ENDED, held.end_s, held.job, held.node, gpus, once, draws_w),
        _changes(_TOLD, told_s, told, watts=told_w),
        _changes(_TURNED, turned.at_s, node=turned.node, count=turned.state),
        _changes(_CAME, jobs.submit_s),
        _changes(_LEFT, jobs.end_s[~np.isnan(jobs.end_s)]),
    )
    at_s, what, job, node, count, once, watts = (np.concatenate(p) for p in zip(*parts, strict=True))
    table = _sweep(
        np.argsort(at_s, kind="stable"), at_s, what, job, node, count, once, watts, len(log.jobs),
        log.nodes.gpus, log.nodes.base_w, log.nodes.idle_w, log.nodes.off_w, log.nodes.boot_w,
    )  # fmt: skip
    return Timeline(*table)


def _changes(
    what: int,
    at_s: Floats,
    job: Ints | None = None,
    node: Ints | None = None,
    count: Ints | None = None,
    once: Ints | None = None,
    watts: Floats | None = None,
) -> tuple[Floats, Ints, Ints, Ints, Ints, Ints, Floats]:
    """Changes of one sort; what does not matter of them is 0."""
    none = np.zeros(len(at_s), dtype=np.int64)
    job, node, count, once = (none if column is None else column for column in (job, node, count, once))
    return at_s, none + what, job, node, count, once, np.zeros(len(at_s)) if watts is None else watts


def _told(log: Log) -> tuple[Ints, Floats, Floats]:
    """Which job was said to draw which watts, and since when.

    A job that still starts up says when it will have started, but draws from the moment that made it
    say so: the last thing that happened before, or the decisions of the round before.
    """
    verb, at_s = log.events[:, 0], log.events[:, 2]
    ran = verb == RAN
    decided_s = np.concatenate(([-np.inf], log.now_s))[log.event_round]
    moved_s = np.maximum.accumulate(np.where(ran, decided_s, at_s))
    rows = np.flatnonzero(ran)
    return log.events[rows, 1].astype(np.int64), np.minimum(at_s, moved_s)[rows], log.events[rows, 5]


@inner
def _partly(state: int, held: int, gpus: int) -> int:
    return gpus - held if state == UP and 0 < held < gpus else 0


@inner
def _free(state: int, held: int, gpus: int) -> int:
    return gpus - held if state == UP else 0


@inner
def _rests_w(state: int, idle: int, base_w: float, idle_w: float, off_w: float, boot_w: float) -> float:
    """What a node draws besides its leases."""
    if state == UP:
        return base_w + idle * idle_w
    if state == OFF:
        return off_w
    return boot_w if state == BOOTING else 0.0


@inner
def _add(total: float, rest: float, change: float) -> tuple[float, float]:
    """A sum and what rounding took from it: watts that came and went leave nothing behind."""
    after = total + change
    part = after - total
    return after, rest + ((total - (after - part)) + (change - part))


@kernel(I1, F1, I1, I1, I1, I1, I1, F1, INT, I1, F1, F1, F1, F1)
def _sweep(
    order: Ints,
    at_s: Floats,
    what: Ints,
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
    """Rows of `Timeline` from changes and their *order* in time; changes at one moment make one row."""
    state = np.full(len(gpus), UP, dtype=np.int64)
    held = np.zeros(len(gpus), dtype=np.int64)
    open_rows = np.zeros(jobs, dtype=np.int64)  # leases of each job; two where one goes on as another
    draws_w = np.zeros(jobs)
    total_w, rest_w = 0.0, 0.0
    now = np.zeros(6)
    for n in range(len(gpus)):
        now[_FREE] += gpus[n]
        total_w, rest_w = _add(total_w, rest_w, base_w[n] + gpus[n] * idle_w[n])
    table = np.empty((6, len(at_s)))
    used = 0
    for k in range(len(order)):
        c = order[k]
        if what[c] == _CAME:
            now[_WAITING] += 1
        elif what[c] == _LEFT:
            now[_WAITING] -= 1
        elif what[c] == _TOLD:
            if open_rows[job[c]] > 0:  # else a late word on a lease that has ended
                total_w, rest_w = _add(total_w, rest_w, watts[c])
                total_w, rest_w = _add(total_w, rest_w, -draws_w[job[c]])
                draws_w[job[c]] = watts[c]
        else:
            n = node[c]
            now[_PARTLY] -= _partly(state[n], held[n], gpus[n])
            now[_FREE] -= _free(state[n], held[n], gpus[n])
            before_w = _rests_w(state[n], gpus[n] - held[n], base_w[n], idle_w[n], off_w[n], boot_w[n])
            if what[c] == _TURNED:
                state[n] = count[c]
            else:
                sign = 1 if what[c] == _STARTED else -1
                held[n] += sign * count[c]
                now[_HELD] += sign * count[c]
                now[_WAITING] -= sign * once[c]
                open_rows[job[c]] += sign * once[c]
                total_w, rest_w = _add(total_w, rest_w, sign * watts[c])
                if open_rows[job[c]] == 0:
                    total_w, rest_w = _add(total_w, rest_w, -draws_w[job[c]])
                    draws_w[job[c]] = 0.0
            after_w = _rests_w(state[n], gpus[n] - held[n], base_w[n], idle_w[n], off_w[n], boot_w[n])
            total_w, rest_w = _add(total_w, rest_w, after_w)
            total_w, rest_w = _add(total_w, rest_w, -before_w)
            now[_PARTLY] += _partly(state[n], held[n], gpus[n])
            now[_FREE] += _free(state[n], held[n], gpus[n])
        if k + 1 == len(order) or at_s[order[k + 1]] != at_s[c]:
            now[_AT_S] = at_s[c]
            now[_POWER_W] = total_w + rest_w
            table[:, used] = now
            used += 1
    return table[:, :used].copy()


def fragmentation(course: Timeline) -> float:
    """Mean share of the free GPUs that sit on nodes used in part, while GPUs are free and jobs wait."""
    lasts_s = np.diff(course.at_s)
    free, partly = course.free[:-1], course.partly[:-1]
    counts = (free > 0) & (course.waiting[:-1] > 0)
    total_s = float(lasts_s[counts].sum())
    return float((partly[counts] / free[counts]) @ lasts_s[counts]) / total_s if total_s > 0 else 0.0
