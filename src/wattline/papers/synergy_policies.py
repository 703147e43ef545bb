"""Orders as Synergy's published simulator implements them, for comparison (Mohan et al., OSDI 2022)."""

from __future__ import annotations

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.models.remaining import remaining_s
from wattline.policy.chain import asked, ranked
from wattline.policy.multi_resource import by_queue_row, cluster_shares


def drf_published(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    """Smallest dominant share of one job first, whoever's it is: DRF as in Synergy's code."""
    plan = asked(snapshot) if plan is None else plan
    return ranked(snapshot, plan, by_queue_row(plan, snapshot, cluster_shares(snapshot, plan).max(axis=0)))


def tetris_published(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    """Least remaining time, times the sum of what it takes, first: Tetris as in Synergy's code."""
    plan = asked(snapshot) if plan is None else plan
    takes = by_queue_row(plan, snapshot, cluster_shares(snapshot, plan).sum(axis=0))
    return ranked(snapshot, plan, takes * remaining_s(snapshot, models, plan))


def ftf_published(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    """Who is treated best first: finish-time fairness as in Synergy's code, which sorts the wrong way."""
    queue, jobs = snapshot.queue, snapshot.jobs
    in_system_s = snapshot.now_s - jobs.submit_s[queue.job]
    alone_s = np.maximum(jobs.duration_s[queue.job], 1.0)
    return ranked(snapshot, plan, (in_system_s + remaining_s(snapshot, models, plan)) / alone_s)
