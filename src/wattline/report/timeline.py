"""What the cluster looked like at every moment: step functions of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.kernel import F1, I1, inner, kernel
from wattline.log import Log
from wattline.messages import NODE_BACK, NODE_LOST
from wattline.report.fates import Fates
from wattline.report.spans import Spans
from wattline.table import Floats, Ints, Table

_AT_S, _WAITING, _HELD, _FREE, _PARTLY, _POWER_W = range(6)


@dataclass(frozen=True, eq=False)
class Timeline(Table):
    """Each row holds from its *at_s* until the next row's; the last one is where the run ends."""

    at_s: Floats
    waiting: Floats  # jobs submitted, not over, and without GPUs
    held: Floats  # GPUs
    free: Floats  # GPUs of nodes that are up
    partly: Floats  # free GPUs of nodes that are used in part
    power_w: Floats  # by the watts of the nodes table


def timeline(log: Log, held: Spans, jobs: Fates) -> Timeline:
    """The step functions of *log*, whose jobs and leases are *jobs* and *held*."""
    leads, once = held.leads, held.first
    rows = np.flatnonzero(leads | once)  # others change no count
    gpus = np.where(leads, held.gpus, 0)[rows]
    runs = once[rows].astype(np.int64)
    verb = log.events[:, 0]
    turns = np.flatnonzero((verb == NODE_LOST) | (verb == NODE_BACK))
    turn = np.where(verb[turns] == NODE_BACK, 1, -1)
    ended_s = jobs.end_s[~np.isnan(jobs.end_s)]
    nothing = np.zeros(len(jobs) + len(ended_s), dtype=np.int64)
    at_s = np.concatenate(
        (held.start_s[rows], held.end_s[rows], log.events[turns, 2], jobs.submit_s, ended_s)
    )
    node = np.concatenate((held.node[rows], held.node[rows], log.events[turns, 1].astype(np.int64), nothing))
    taken = np.concatenate((gpus, -gpus, 0 * turn, nothing))
    came = np.ones(len(jobs), dtype=np.int64)
    waits = np.concatenate((-runs, runs, 0 * turn, came, -np.ones(len(ended_s), dtype=np.int64)))
    up = np.concatenate((0 * gpus, 0 * gpus, turn, nothing))
    order = np.argsort(at_s, kind="stable")
    nodes = log.nodes
    table = _sweep(
        at_s[order], node[order], taken[order], waits[order], up[order],
        nodes.gpus, nodes.base_w, nodes.idle_w, nodes.busy_w,
    )  # fmt: skip
    return Timeline(*table)


@inner
def _partly(up: int, held: int, gpus: int) -> int:
    return gpus - held if up == 1 and 0 < held < gpus else 0


@kernel(F1, I1, I1, I1, I1, I1, F1, F1, F1)
def _sweep(
    at_s: Floats,
    node: Ints,
    taken: Ints,
    waits: Ints,
    turned: Ints,
    gpus: Ints,
    base_w: Floats,
    idle_w: Floats,
    busy_w: Floats,
) -> Floats:
    """Rows of `Timeline` from changes in order of time; changes at one moment make one row."""
    up = np.ones(len(gpus), dtype=np.int64)
    held = np.zeros(len(gpus), dtype=np.int64)
    now = np.zeros(6)
    for n in range(len(gpus)):
        now[_FREE] += gpus[n]
        now[_POWER_W] += base_w[n] + gpus[n] * idle_w[n]
    table = np.empty((6, len(at_s)))
    used = 0
    for c in range(len(at_s)):
        n = node[c]
        now[_WAITING] += waits[c]
        if taken[c] != 0 or turned[c] != 0:
            now[_PARTLY] -= _partly(up[n], held[n], gpus[n])
            now[_FREE] -= up[n] * (gpus[n] - held[n])
            up[n] += turned[c]
            held[n] += taken[c]
            now[_PARTLY] += _partly(up[n], held[n], gpus[n])
            now[_FREE] += up[n] * (gpus[n] - held[n])
            now[_HELD] += taken[c]
            now[_POWER_W] += turned[c] * (base_w[n] + gpus[n] * idle_w[n]) + taken[c] * (
                busy_w[n] - idle_w[n]
            )
        if c + 1 == len(at_s) or at_s[c + 1] != at_s[c]:
            now[_AT_S] = at_s[c]
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
