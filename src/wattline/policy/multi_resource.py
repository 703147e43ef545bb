"""Who goes first, by what jobs take of several resources at once: GPUs, cores and memory."""

from __future__ import annotations

from heapq import heapify, heapreplace

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.models.remaining import remaining_s
from wattline.policy.chain import asked, ranked


def drf(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    """Whose team has the smallest dominant share goes first (Ghodsi et al., NSDI 2011).

    Teams get jobs in turn, each its next in order of submission, always the one that has least of what it
    has most of. Without teams users count, without users every job by itself. What a job takes of the host
    is what a stage `demand` before says, or else its proportional share.
    """
    plan = asked(snapshot) if plan is None else plan
    takes, tenant = cluster_shares(snapshot, plan), _tenants(snapshot, plan)
    names, tenant = np.unique(tenant, return_inverse=True)
    waiting: list[list[int]] = [[] for _ in names]
    for p in reversed(np.argsort(plan.row, kind="stable").tolist()):
        waiting[tenant[p]].append(p)
    has = np.zeros((len(names), len(takes)))
    line = [(0.0, who) for who in range(len(names))]
    heapify(line)
    key = np.zeros(len(snapshot.queue))
    for turn in range(len(plan)):
        who = line[0][1]
        p = waiting[who].pop()
        key[plan.row[p]] = turn
        has[who] += takes[:, p]
        heapreplace(line, (float(has[who].max()) if waiting[who] else np.inf, who))
    return ranked(snapshot, plan, key)


def tetris(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    """Who fits best into what is free, and has least work left, goes first (Grandl et al., SIGCOMM 2014).

    The score is the dot product of what a job takes and what is left of the cluster, less its remaining
    work, weighted so that both count the same on average. What a job takes of the host is what a stage
    `demand` before says, or else its proportional share.
    """
    plan = asked(snapshot) if plan is None else plan
    takes = cluster_shares(snapshot, plan)
    work = remaining_s(snapshot, models, plan)[plan.row] * takes.sum(axis=0)
    left, order = np.ones(len(takes)), np.empty(len(plan), dtype=np.int64)
    open_ = np.ones(len(plan), dtype=np.bool_)
    placed = 0
    while placed < len(plan):
        fits = open_ & (takes <= left[:, None] + 1e-9).all(axis=0)
        among = np.flatnonzero(fits if fits.any() else open_)
        aligned = left @ takes[:, among]
        score = aligned - work[among] * aligned.mean() / max(work[among].mean(), 1e-9)
        if not fits.any():  # the rest waits
            order[placed:] = among[np.argsort(-score, kind="stable")]
            break
        best = int(among[np.argmax(score)])
        order[placed], open_[best] = best, False
        left = left - takes[:, best]
        placed += 1
    key = np.zeros(len(snapshot.queue))
    key[plan.row[order]] = np.arange(len(plan))
    return ranked(snapshot, plan, key)


def cluster_shares(snapshot: Snapshot, plan: Plan) -> Floats:
    """What each entry of the plan takes of the cluster's GPUs, cores and memory."""
    nodes = snapshot.nodes
    host = nodes.share[:2, :1] if plan.host is None else plan.host[:2]
    takes = np.concatenate((np.ones((1, len(plan))), np.broadcast_to(host, (2, len(plan))))) * plan.gpus
    return np.asarray(takes / np.array((nodes.gpus.sum(), *nodes.host[:2].sum(axis=1)))[:, None])


def _tenants(snapshot: Snapshot, plan: Plan) -> Ints:
    """By entry of the plan, whose job it is."""
    jobs, job = snapshot.jobs, snapshot.queue.job[plan.row]
    for labels in (jobs.team, jobs.user):
        if len(labels.names) > 1:
            return np.asarray(labels.codes[job])
    return job


def by_queue_row(plan: Plan, snapshot: Snapshot, key: Floats) -> Floats:
    """*key*, which is by entry of the plan, by row of the queue."""
    rows = np.zeros(len(snapshot.queue))
    rows[plan.row] = key
    return rows
