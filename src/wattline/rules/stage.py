"""Stage that starts no job against the rules of its partition, QOS, reservation or dependencies."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Ints
from wattline.policy.chain import decide_again, plan_as_requested, reorder
from wattline.rules.dependencies import Dependencies
from wattline.rules.job_rules import UNLIMITED, JobRules
from wattline.rules.windows import ReservationWindows

_HELD = REASONS.index(Reason.HELD)


@dataclass(frozen=True, eq=False)
class OperatorRules:
    """Stage: leave out jobs that may not start, and order waiting ones by tier and priority.

    A job waits while its dependencies are not met and before its reservation begins; one outside the limits
    of its partition or QOS waits for ever. Running jobs are not stopped and keep their places. Limits of use
    and nodes are up to the placer, `RuledPack`. *before* is True in front of a policy that chooses the number
    of GPUs: the stage behind that limits it.
    """

    jobs: JobRules | None = None
    dependencies: Dependencies | None = None
    windows: ReservationWindows | None = None
    before: bool = False

    def __str__(self) -> str:
        return "rules"

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`."""
        plan = plan_as_requested(snapshot) if plan is None else plan
        if not len(plan):
            return plan
        reason, next_s = self._find_blocked(snapshot)
        waits = ~snapshot.queue.running
        if reason is not None:
            plan = _leave_out(plan, reason, (reason[plan.row] > 0) & waits[plan.row], len(snapshot.queue))
            if not len(plan) and not len(snapshot.leases):
                plan = replace(plan, next_decision_s=next_s)  # nothing else can change before
            plan = decide_again(plan, next_s)
        if self.jobs is None or not len(plan):
            return plan
        plan = _order_waiting(plan, self.jobs.rank[snapshot.queue.job], waits)
        return plan if self.before else self._limit_sizes(plan, snapshot)

    def _find_blocked(self, snapshot: Snapshot) -> tuple[Ints | None, float]:
        """Return the reason of each row that must not start, 0 for others, and when one is over."""
        reason, next_s = None, math.inf
        if self.jobs is not None:
            never = self.jobs.never[snapshot.queue.job]
            reason = never if never.any() else None
        for source in (self.dependencies, self.windows):
            found = None
            if isinstance(source, Dependencies):
                found = source.find_blocked(snapshot)
            elif source is not None:
                found = source.find_early(snapshot)
            if found is not None:
                reason = found[0] if reason is None else np.where(reason > 0, reason, found[0])
                next_s = min(next_s, found[1])
        return reason, next_s

    def _limit_sizes(self, plan: Plan, snapshot: Snapshot) -> Plan:
        """Return *plan* with no more GPUs for a job than a limit of use allows at most.

        A job is not cut below its request: that waits for the limit.
        """
        counters = None if self.jobs is None else self.jobs.counters
        if counters is None:
            return plan
        job = snapshot.queue.job[plan.row]
        of_entry = counters.of_job[:, job]
        most = np.where(of_entry >= 0, counters.most[1][np.maximum(of_entry, 0)], UNLIMITED)
        allowed = np.maximum(most.min(axis=0, initial=UNLIMITED), snapshot.jobs.gpus[job])
        if (plan.gpus <= allowed).all():
            return plan
        batch = None if plan.batch is None else np.where(plan.gpus > allowed, 0, plan.batch)
        return replace(plan, gpus=np.minimum(plan.gpus, allowed), batch=batch)


def _permute(plan: Plan, order: Ints) -> Plan:
    return reorder(plan, order, non_preemptive=plan.non_preemptive)


def _order_waiting(plan: Plan, rank: Ints, waits: Bools) -> Plan:
    """Return *plan* with its waiting entries by *rank* of their row; running ones keep their places."""
    at = np.flatnonzero(waits[plan.row])
    ranks = rank[plan.row[at]]
    if len(at) < 2 or (ranks[1:] >= ranks[:-1]).all():
        return plan
    order = np.arange(len(plan), dtype=np.int64)
    order[at] = at[np.argsort(ranks, kind="stable")]
    return _permute(plan, order)


def _leave_out(plan: Plan, reason: Ints, out: Bools, queued: int) -> Plan:
    """Return *plan* without the entries *out*, with the *reason* of their rows."""
    if not out.any():
        return plan
    stays = ~out
    all_reasons = np.full(queued, _HELD, dtype=np.int64) if plan.reason is None else plan.reason.copy()
    all_reasons[plan.row[out]] = reason[plan.row[out]]
    left = np.zeros(queued, dtype=np.bool_)
    left[plan.row[stays]] = True
    group = np.where(left[plan.group], plan.group, plan.row)  # without its leader a job runs alone
    return plan.take(np.flatnonzero(stays), group=group[stays], stable=False, reason=all_reasons)
