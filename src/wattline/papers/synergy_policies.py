"""Orderings as Synergy's published simulator implements them, for comparison (Mohan et al., OSDI 2022)."""

from __future__ import annotations

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.models.remaining import remaining_s
from wattline.policy.chain import plan_as_requested, rank_rows
from wattline.policy.multi_resource import compute_cluster_shares, scatter_to_queue


def drf_published(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    """Serve the job with the smallest dominant share first, whatever its team: DRF as in Synergy's code."""
    plan = plan_as_requested(snapshot) if plan is None else plan
    dominant = compute_cluster_shares(snapshot, plan).max(axis=0)
    return rank_rows(snapshot, plan, scatter_to_queue(plan, snapshot, dominant))


def tetris_published(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    """Serve the least remaining time times the sum of shares first: Tetris as in Synergy's code."""
    plan = plan_as_requested(snapshot) if plan is None else plan
    takes = scatter_to_queue(plan, snapshot, compute_cluster_shares(snapshot, plan).sum(axis=0))
    return rank_rows(snapshot, plan, takes * remaining_s(snapshot, models, plan))


def ftf_published(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    """Serve the smallest finish-time ratio first: as in Synergy's code, which sorts the wrong way round."""
    queue, jobs = snapshot.queue, snapshot.jobs
    in_system_s = snapshot.now_s - jobs.submit_s[queue.job]
    alone_s = np.maximum(jobs.duration_s[queue.job], 1.0)
    return rank_rows(snapshot, plan, (in_system_s + remaining_s(snapshot, models, plan)) / alone_s)
