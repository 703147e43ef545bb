"""ElasticFlow: guaranteed deadlines on as few GPUs as they take; the rest is shared."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_HELD_GPUS, QUEUE_STEPS_PER_S
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError
from wattline.policy.chain import plan_as_requested
from wattline.policy.elastic.admission import DeadlineRows, SizeTable, admit
from wattline.policy.elastic.capacity import (
    Capacity,
    allocate_greedily,
    build_capacity,
    plan_from_sizes,
)
from wattline.policy.elastic.restart_costs import discount_restarts

_HELD = REASONS.index(Reason.HELD)
_EXACT_S = 1e-3  # a deadline that is missed by less is met: sums of floats are no more exact
_LEAST_S = 1e-6  # work of a job that has none left: it needs GPUs for a moment all the same
_MUST = 1e15  # value of the share that an admitted job must have
_START = 1e6  # value of each of the first GPUs, before any job has more than it must


@dataclass(frozen=True)
class ElasticFlow:
    """Deadlines met on as few GPUs as that takes (Gu et al., ASPLOS 2023, "ElasticFlow").

    One after the other, jobs that have started and then those that wait, each by submission, are admitted
    if they and all admitted before them can be in time. To find out, jobs are scheduled in order of their
    deadlines: each gets its minimum satisfactory share, the smallest size with which it ends in time if it
    never has more GPUs and never more than earlier deadlines leave. Another size costs *restart_s*. Where
    shares leave a job late, running jobs are scheduled with their present size if that is larger, and then
    all with any size. GPUs that are free in the first slot go where their value is largest: all jobs
    without get their least size, admitted ones before the others, then each step goes where it adds most to
    the logarithm of the speed per GPU; of admitted jobs only to those that could shrink again in time. Jobs
    without a deadline, and those that cannot be admitted, share what is left; with *reject* 1 the latter
    are held back unless they have started. Decides again when a share should grow, but not before
    *quantum_s*.
    *Deviates:* sizes are powers of two or the requested one; a policy has no memory, so admission is
    derived anew every time: a job may be admitted late if another ends early, and now and then a job is not
    admitted any more, which the two larger schedules make rare; jobs that are not admitted run as best
    effort unless *reject* is 1; slots are as long as they need to be; free GPUs go by speed, not by GPU
    time saved; blocks of GPUs are left to the placer, see `wattline.placement.buddy.placer`; a running job
    stays on its kind.
    """

    restart_s: float = 30.0
    reject: int = 0
    quantum_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.restart_s < math.inf:
            raise ConfigError(f"restart_s must be at least 0 and finite, got {self.restart_s}")
        if self.reject not in (0, 1):
            raise ConfigError(f"reject must be 0 or 1, got {self.reject}")
        if not self.quantum_s >= 1:
            raise ConfigError(f"quantum_s must be at least 1, got {self.quantum_s}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`.

        Of an earlier *plan* only the choice of jobs counts.
        """
        capacity = build_capacity(snapshot, models, plan, batches=False)
        share, now, end_s, rise_s = self._compute_shares(snapshot, capacity)
        if self.reject:
            late = (
                np.isfinite(_get_deadlines_s(snapshot)) & (share < 0) & np.isnan(snapshot.queue.first_start_s)
            )
            plan = _hold_back(snapshot, plan, late)
            capacity = replace(capacity, pool=np.where(late, -1, capacity.pool))
        size = self._allocate(snapshot, capacity, share, now, end_s)
        short = (share >= 0) & (size < share) & (rise_s < math.inf)
        wait_s = max(self.quantum_s, float(rise_s.min(initial=math.inf, where=short)))
        chosen = plan_from_sizes(snapshot, capacity, size, plan, next_decision_s=snapshot.now_s + wait_s)
        return replace(chosen, kind=capacity.pool[chosen.row])

    def admits(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Bools:
        """Return which rows of the queue have a deadline and will meet it, if the models are right."""
        share, *_ = self._compute_shares(snapshot, build_capacity(snapshot, models, plan, batches=False))
        return np.asarray(share >= 0)

    def _compute_shares(self, snapshot: Snapshot, capacity: Capacity) -> tuple[Ints, Ints, Floats, Floats]:
        """Return for every row its share, its size now, when it ends and when its size rises; see `admit`."""
        queue, configs = snapshot.queue, capacity.configs
        due_s = _get_deadlines_s(snapshot) - snapshot.now_s
        has_deadline = np.isfinite(due_s) & (capacity.pool >= 0)
        started = ~np.isnan(queue.first_start_s)
        order = np.argsort(~started, kind="stable")
        by_deadline = np.argsort(due_s, kind="stable")
        rows = DeadlineRows(
            due_s + _EXACT_S,
            np.maximum(_compute_work_s(snapshot), _LEAST_S),
            _compute_starting_s(snapshot, self.restart_s),
            started.astype(np.int64),
            capacity.held,
            capacity.job_class,
            capacity.pool,
        )
        sizes = SizeTable(configs.size_count, configs.gpus, np.ascontiguousarray(configs.speed[:, :, -1]))
        return admit(
            np.ascontiguousarray(order[has_deadline[order]]),
            np.ascontiguousarray(by_deadline[has_deadline[by_deadline]]),
            capacity.room,
            rows,
            sizes,
            self.restart_s,
        )

    def _allocate(
        self, snapshot: Snapshot, capacity: Capacity, share: Ints, now: Ints, end_s: Floats
    ) -> Ints:
        """Return the size of every row (-1: none): what it must have *now*, and its part of the rest."""
        due_s = _get_deadlines_s(snapshot) - snapshot.now_s
        speed = capacity.configs.speed[capacity.job_class, :, -1]
        left_s = _compute_work_s(snapshot)[:, None] / speed
        value = np.log(speed * discount_restarts(snapshot, capacity, left_s, self.restart_s, math.inf))
        size = np.arange(value.shape[1])
        value[size < now[:, None]] = -_MUST
        grow_and_shrink_s = self.restart_s * np.where(np.isnan(snapshot.queue.first_start_s), 1, 2)
        tight = (now >= 0) & (end_s + grow_and_shrink_s > due_s + _EXACT_S) & (self.restart_s > 0)
        is_held = capacity.configs.gpus[capacity.job_class] == capacity.held[:, None]
        value[tight[:, None] & (size > now[:, None]) & ~is_held] = -_MUST
        first = np.lexsort((np.where(share >= 0, due_s, 0.0), share < 0))
        rank = np.empty(len(share))
        rank[first] = np.arange(len(share), 0, -1)
        least = capacity.configs.gpus[capacity.job_class, 0]
        return allocate_greedily(capacity, np.flatnonzero(now >= 0), value, -least * (_START + rank))


def _get_deadlines_s(snapshot: Snapshot) -> Floats:
    return np.asarray(snapshot.jobs.deadline_s[snapshot.queue.job])


def _compute_work_s(snapshot: Snapshot) -> Floats:
    """Return the remaining work of each row, in seconds on the GPUs that it requested."""
    return np.asarray(snapshot.steps_left * snapshot.jobs.step_s[snapshot.queue.job])


def _compute_starting_s(snapshot: Snapshot, restart_s: float) -> Floats:
    """Return for how long each row will still be restarting, if that takes *restart_s*."""
    queue = snapshot.queue
    starts = (queue.block[QUEUE_HELD_GPUS] > 0) & (queue.block[QUEUE_STEPS_PER_S] == 0) & (queue.restarts > 0)
    return np.where(starts, np.maximum(0.0, restart_s - (snapshot.now_s - queue.since_s)), 0.0)


def _hold_back(snapshot: Snapshot, plan: Plan | None, out: Bools) -> Plan:
    """Return *plan* without these rows, which are held back."""
    plan = plan_as_requested(snapshot) if plan is None else plan
    reason = np.full(len(out), _HELD, dtype=np.int64) if plan.reason is None else plan.reason.copy()
    reason[out] = _HELD
    row = plan.row[~out[plan.row]]
    cap_w = None if plan.cap_w is None else plan.cap_w[~out[plan.row]]
    return Plan(
        row,
        row,
        row,
        next_decision_s=plan.next_decision_s,
        cap_w=cap_w,
        reason=reason,
        needs_meter=plan.needs_meter,
    )
