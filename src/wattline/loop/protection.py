"""Protection of running jobs that would lose their work: the one place that all policies pass.

A protected job (`Snapshot.protected`) keeps its GPUs, its batch size and its group, whatever the policy and
the placer decide; its power cap may change. Jobs on the same GPUs are protected together. One exception: a
policy that leaves a job out because of an energy budget may stop it, unless it must never be preempted.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from wattline.core.jobs import PREEMPTIBLE_NEVER
from wattline.core.leases import (
    LEASE_BATCH,
    LEASE_CAP_W,
    LEASE_GPUS,
    LEASE_GROUP,
    LEASE_HOST,
    LEASE_JOB,
    LEASE_NODE,
    Leases,
)
from wattline.core.plan import Placement, Plan
from wattline.core.queue import QUEUE_PROTECTED_UNTIL_S
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Ints

_OF_BUDGETS = [REASONS.index(reason) for reason in (Reason.OVER_BUDGET, Reason.NEVER_IN_BUDGET)]
_OUTRANKED = REASONS.index(Reason.OUTRANKED)
_FIXED = [LEASE_JOB, LEASE_GROUP, LEASE_NODE, LEASE_GPUS, LEASE_BATCH]  # a change of these is a restart


def find_protected_rows(plan: Plan, snapshot: Snapshot) -> Bools | None:
    """Return a mask of the rows of the queue that keep their leases; None: there are none."""
    if not snapshot.queue.may_protect:
        return None
    until_s = snapshot.queue.block[QUEUE_PROTECTED_UNTIL_S]
    if not len(until_s) or until_s.max() <= snapshot.now_s:
        return None
    protected = snapshot.protected
    if plan.reason is not None:
        preemptible = snapshot.jobs.preemptible[snapshot.queue.job] != PREEMPTIBLE_NEVER
        left_out = np.isin(plan.reason, _OF_BUDGETS) & preemptible
        left_out[plan.row] = False
        protected &= ~left_out
    leader = _find_leaders(snapshot)
    kept = (leader >= 0) & np.isin(leader, leader[protected])
    return kept if kept.any() else None


def keep_leases(plan: Plan, snapshot: Snapshot, kept: Bools) -> Plan:
    """Return *plan* with the rows *kept* first, on the GPUs and in the groups that they have now."""
    queue, leases = snapshot.queue, snapshot.leases
    at = np.full(len(queue), len(plan), dtype=np.int64)
    at[plan.row] = np.arange(len(plan))
    rows = np.flatnonzero(kept)
    rows = rows[np.argsort(at[rows], kind="stable")]
    others = np.flatnonzero(~kept[plan.row])
    group = plan.group[others]
    group = np.where(kept[group], plan.row[others], group)  # no job joins one that is kept
    lease = np.searchsorted(leases.job, queue.job[rows])
    planned = at[rows] < len(plan)

    def merge(name: str, now: Ints, may_change: bool) -> Ints | None:
        """Return a column of the plan; kept rows have *now*, or what is planned if they *may_change*."""
        column = getattr(plan, name)
        if column is None:
            if may_change or not now.any():
                return None
            column = np.zeros(len(plan), dtype=np.int64)
        if may_change and len(plan):
            now = np.where(planned, column[np.minimum(at[rows], len(plan) - 1)], now)
        return np.concatenate((now, column[others]))

    changes: dict[str, Any] = {
        "cap_w": merge("cap_w", leases.cap_w[lease], True),
        "batch": merge("batch", leases.batch[lease], False),
    }
    if plan.kind is not None:
        changes["kind"] = merge("kind", snapshot.nodes.kind.codes[leases.node[lease]], False)
    if plan.node is not None:
        changes["node"] = merge("node", leases.node[lease], False)
    if plan.host is not None:
        host = np.concatenate((leases.host[:, lease], plan.host[:, others]), axis=1)
        changes["host"] = np.ascontiguousarray(host)
    if plan.move_cost is not None:
        changes["move_cost"] = np.concatenate((np.full(len(rows), math.inf), plan.move_cost[others]))
    until_s = queue.protected_until_s[snapshot.protected]
    return replace(
        plan,
        row=np.concatenate((rows, plan.row[others])),
        gpus=np.concatenate((queue.held_gpus[rows].astype(np.int64), plan.gpus[others])),
        group=np.concatenate((_find_leaders(snapshot)[rows], group)),
        next_decision_s=min(plan.next_decision_s, float(until_s.min(initial=math.inf))),
        **changes,
    )


def restore_leases(placement: Placement, plan: Plan, snapshot: Snapshot, kept: Bools) -> Placement:
    """Return *placement* with the leases of the rows *kept* as they are now.

    A placer may move running jobs to make room or to speed others up. Where it has moved a kept job, the
    others get the leases that it chose as far as these still fit, in the order of the plan, or else stay
    where they are.
    """
    queue, old, new = snapshot.queue, snapshot.leases, placement.leases
    if new is old:
        return placement
    old_row, new_row = (np.searchsorted(queue.job, leases.job) for leases in (old, new))
    if np.array_equal(old.block[_FIXED][:, kept[old_row]], new.block[_FIXED][:, kept[new_row]]):
        return placement
    room = _Room(snapshot)
    own = old.block[:, kept[old_row]].copy()
    if plan.cap_w is not None:
        cap_w = np.zeros(len(queue), dtype=np.int64)
        cap_w[plan.row] = plan.cap_w
        own[LEASE_CAP_W] = cap_w[old_row[kept[old_row]]]
    room.take(own)
    blocks = [own]
    reason = placement.reason.copy()
    reason[kept] = 0
    leaders = plan.row[(plan.group == plan.row) & ~kept[plan.row]]
    for job in queue.job[leaders].tolist():
        wanted, current = (leases.block[:, leases.group == job] for leases in (new, old))
        fits = next((block for block in (wanted, current) if block.shape[1] and room.fits(block)), None)
        if fits is not None:
            room.take(fits)
            blocks.append(fits)
            reason[np.searchsorted(queue.job, fits[LEASE_JOB])] = 0
        elif wanted.shape[1]:
            reason[np.searchsorted(queue.job, wanted[LEASE_JOB])] = _OUTRANKED
    block = np.concatenate(blocks, axis=1)
    block = np.ascontiguousarray(block[:, np.lexsort((block[LEASE_NODE], block[LEASE_JOB]))])
    powered_on = placement.powered_on
    if powered_on is not None:
        powered_on = powered_on.copy()
        powered_on[block[LEASE_NODE]] = True
    same = np.array_equal(block, old.block)
    return replace(
        placement,
        leases=old if same else Leases(block),
        reason=reason,
        waiting=int(np.count_nonzero(reason)),
        powered_on=powered_on,
    )


class _Room:
    """GPUs and host resources of the nodes that are up and not taken yet."""

    def __init__(self, snapshot: Snapshot) -> None:
        nodes = snapshot.nodes
        self._gpus = np.where(snapshot.up, nodes.gpus, 0)
        self._host = nodes.host.copy()
        self._share = nodes.host // nodes.gpus
        self._limited = nodes.host > 0

    def _need(self, block: Ints) -> tuple[Ints, Ints]:
        """Return the GPUs and the host resources that leases take, by node."""
        block = block[:, block[LEASE_JOB] == block[LEASE_GROUP]]
        node, gpus = block[LEASE_NODE], block[LEASE_GPUS]
        host = np.where(block[LEASE_HOST:] > 0, block[LEASE_HOST:], self._share[:, node]) * gpus
        count = len(self._gpus)
        return (
            np.bincount(node, gpus, count).astype(np.int64),
            np.stack([np.bincount(node, row, count).astype(np.int64) for row in host]),
        )

    def fits(self, block: Ints) -> bool:
        """Return whether there is room for leases."""
        gpus, host = self._need(block)
        lacks = self._limited & (host > self._host) & (gpus > 0)
        return bool((gpus <= self._gpus).all() and not lacks.any())

    def take(self, block: Ints) -> None:
        """Take the room of leases."""
        gpus, host = self._need(block)
        self._gpus = self._gpus - gpus
        self._host = self._host - host


def _find_leaders(snapshot: Snapshot) -> Ints:
    """Return by row of the queue the row that leads its group now; -1: it waits."""
    queue, leases = snapshot.queue, snapshot.leases
    leader = np.full(len(queue), -1, dtype=np.int64)
    leader[np.searchsorted(queue.job, leases.job)] = np.searchsorted(queue.job, leases.group)
    return leader
