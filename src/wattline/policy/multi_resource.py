"""Policies that order jobs by several resources at once: GPUs, cores and memory."""

from __future__ import annotations

from heapq import heapify, heapreplace

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.models.remaining import remaining_s
from wattline.policy.chain import plan_as_requested, rank_rows


def drf(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    """Serve the smallest dominant share first (Ghodsi et al., NSDI 2011, "Dominant Resource Fairness").

    The next job in order of submission is always taken from the team that has the smallest dominant
    share. Without teams users count, without users every job by itself. A job's share of the host is what
    a stage `demand` before this one has set, or else its proportional share.
    """
    plan = plan_as_requested(snapshot) if plan is None else plan
    takes, tenant = compute_cluster_shares(snapshot, plan), _find_tenants(snapshot, plan)
    names, tenant = np.unique(tenant, return_inverse=True)
    waiting: list[list[int]] = [[] for _ in names]
    for p in reversed(np.argsort(plan.row, kind="stable").tolist()):
        waiting[tenant[p]].append(p)
    has = np.zeros((len(names), len(takes)))
    heap = [(0.0, t) for t in range(len(names))]
    heapify(heap)
    key = np.zeros(len(snapshot.queue))
    for turn in range(len(plan)):
        t = heap[0][1]
        p = waiting[t].pop()
        key[plan.row[p]] = turn
        has[t] += takes[:, p]
        heapreplace(heap, (float(has[t].max()) if waiting[t] else np.inf, t))
    return rank_rows(snapshot, plan, key)


def tetris(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    """Serve the best fit into free resources with the least work left first (Grandl et al., SIGCOMM 2014).

    The score of Tetris is the dot product of a job's demand and the free resources of the cluster, less its
    remaining work, weighted so that both count the same on average. A job's demand of the host is what a
    stage `demand` before this one has set, or else its proportional share.
    """
    plan = plan_as_requested(snapshot) if plan is None else plan
    takes = compute_cluster_shares(snapshot, plan)
    work = remaining_s(snapshot, models, plan)[plan.row] * takes.sum(axis=0)
    left, order = np.ones(len(takes)), np.empty(len(plan), dtype=np.int64)
    is_left = np.ones(len(plan), dtype=np.bool_)
    placed = 0
    while placed < len(plan):
        fits = is_left & (takes <= left[:, None] + 1e-9).all(axis=0)
        among = np.flatnonzero(fits if fits.any() else is_left)
        aligned = left @ takes[:, among]
        score = aligned - work[among] * aligned.mean() / max(work[among].mean(), 1e-9)
        if not fits.any():  # the rest waits
            order[placed:] = among[np.argsort(-score, kind="stable")]
            break
        best = int(among[np.argmax(score)])
        order[placed], is_left[best] = best, False
        left = left - takes[:, best]
        placed += 1
    key = np.zeros(len(snapshot.queue))
    key[plan.row[order]] = np.arange(len(plan))
    return rank_rows(snapshot, plan, key)


def compute_cluster_shares(snapshot: Snapshot, plan: Plan) -> Floats:
    """Return each entry's share of the cluster's GPUs, cores and memory (axis 0)."""
    nodes = snapshot.nodes
    host = nodes.host_share[:2, :1] if plan.host is None else plan.host[:2]
    takes = np.concatenate((np.ones((1, len(plan))), np.broadcast_to(host, (2, len(plan))))) * plan.gpus
    return np.asarray(takes / np.array((nodes.gpus.sum(), *nodes.host[:2].sum(axis=1)))[:, None])


def _find_tenants(snapshot: Snapshot, plan: Plan) -> Ints:
    """Return the number of the team, user or job that each entry of the plan counts for."""
    jobs, job = snapshot.jobs, snapshot.queue.job[plan.row]
    for labels in (jobs.team, jobs.user):
        if len(labels.names) > 1:
            return np.asarray(labels.codes[job])
    return job


def scatter_to_queue(plan: Plan, snapshot: Snapshot, key: Floats) -> Floats:
    """Return *key*, which is by entry of the plan, by row of the queue."""
    rows = np.zeros(len(snapshot.queue))
    rows[plan.row] = key
    return rows
