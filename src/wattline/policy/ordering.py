"""Policies that order jobs; every job gets the GPUs that it requested."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from wattline.core.grants import Grants
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_HELD_GPUS, QUEUE_SERVICE_GPU_S, QUEUE_SINCE_S
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError, did_you_mean
from wattline.jit import B1, F1, F2, FLOAT, I1, kernel
from wattline.models.remaining import remaining_s
from wattline.policy.chain import (
    RUNS,
    WAITS,
    can_all_run,
    classify_entries,
    decide_again,
    plan_as_requested,
    predict_running,
    rank_rows,
    reorder,
)
from wattline.policy.queue_places import rank_places
from wattline.policy.starvation import check_queues, find_starved

_WITHIN = ("running", "submission")


def fifo(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    """Serve jobs in order of submission, without preemption (first in, first out)."""
    if plan is not None:
        return rank_rows(
            snapshot, plan, np.arange(len(snapshot.queue), dtype=np.float64), non_preemptive=True
        )
    rows = np.arange(len(snapshot.queue), dtype=np.int64)
    return Plan(rows, snapshot.queue.requested_gpus, rows, non_preemptive=True, stable=True)


def sjf(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    """Serve the shortest job first, by its whole duration, without preemption."""
    return rank_rows(snapshot, plan, _predict_durations_s(snapshot, models), non_preemptive=True)


def srtf(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    """Serve the job with the shortest remaining time first.

    A job that runs only gets closer to its end, so no decision is needed between events. Work that a stop
    would lose counts as done twice: a job is stopped only if that gains more than it loses.
    """
    if plan is None and can_all_run(snapshot):
        return plan_as_requested(snapshot)
    return rank_rows(snapshot, plan, remaining_s(snapshot, models, plan) - snapshot.lost_work_s)


def srsf(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    """Serve the shortest remaining service (seconds times GPUs) first.

    This is the reference of Tiresias with known durations. Work that a stop would lose counts as in `srtf`.
    """
    if plan is None and can_all_run(snapshot):
        return plan_as_requested(snapshot)
    left_s = remaining_s(snapshot, models, plan) - snapshot.lost_work_s
    return rank_rows(snapshot, plan, left_s * snapshot.queue.requested_gpus)


def edf(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    """Serve the earliest deadline first; jobs without one come last, in order of submission."""
    return rank_rows(snapshot, plan, snapshot.jobs.deadline_s[snapshot.queue.job])


def priority(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    """Serve the highest priority first, then in order of submission.

    Before a policy that chooses the number of GPUs (afs, pollux, powerflow, market) it decides which jobs
    share the GPUs when not all can run: running jobs, then the highest priority.
    """
    value = snapshot.jobs.priority[snapshot.queue.job]
    plan = rank_rows(snapshot, plan, -value)
    if not len(plan) or (value[plan.row] == value[plan.row[0]]).all():
        return plan
    waits = ~snapshot.queue.running[plan.row]
    classes = np.unique(np.stack((waits, -value[plan.row])), axis=1, return_inverse=True)[1]
    return replace(plan, precedence=classes.reshape(-1).astype(np.int64))


def keep(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    """Stage: let no job be stopped for another (no preemption)."""
    plan = plan_as_requested(snapshot) if plan is None else plan
    if plan.node is not None:
        raise ConfigError(
            "keep follows a policy that chooses nodes itself, expected it behind one that does not: "
            "leave keep out"
        )
    return replace(plan, non_preemptive=True)


def preempt(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
    """Stage: let jobs take the GPUs of jobs behind them in the order (preemption)."""
    plan = plan_as_requested(snapshot) if plan is None else plan
    return replace(plan, non_preemptive=False)


@dataclass(frozen=True)
class Las:
    """Least attained service (GPU-seconds) first.

    Decides again when the service of a running job would pass that of a waiting one, but not before
    *quantum_s*: two jobs with equal service would otherwise swap without end. Service that a stop would lose
    does not count.
    """

    quantum_s: float = 300.0

    def __post_init__(self) -> None:
        _check_at_least_1s("quantum_s", self.quantum_s)

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`."""
        if plan is None and can_all_run(snapshot):
            return plan_as_requested(snapshot)
        plan = plan_as_requested(snapshot) if plan is None else plan
        nodes = snapshot.nodes
        order, wait_s = _order_by_service(
            plan.row,
            plan.gpus,
            plan.group,
            snapshot.queue.block,
            snapshot.lost_work_s,
            snapshot.now_s,
            self.quantum_s,
            nodes.kind.codes,
            nodes.gpus,
            snapshot.usable,
        )
        return reorder(plan, order, next_decision_s=snapshot.now_s + wait_s)


@dataclass(frozen=True)
class Tiresias:
    """Two-dimensional LAS in discrete queues (Gu et al., NSDI 2019, "Tiresias").

    A job moves to the next queue when its attained service passes a threshold (GPU-seconds). *within* a
    queue, `running` jobs keep their place, as in the authors' simulator and as the paper's "start time"
    reads (`wattline.policy.queue_places`); or `submission` alone decides, so that every job that comes back
    to a queue stops later ones. The first is the default: it is what the authors measured, and stops less.
    A job that has waited *promote* times as long as it has run goes back to the first queue, and stays there
    until that ratio is halved (0: never).
    *Deviates:* the promotion counts all waiting and running time so far, because a policy has no
    memory; the original counts since the last change of queue.
    """

    thresholds_gpu_s: tuple[float, ...] = (3600.0, 36000.0)
    promote: float = 8.0
    quantum_s: float = 60.0
    within: Literal["running", "submission"] = "running"

    def __post_init__(self) -> None:
        _check_at_least_1s("quantum_s", self.quantum_s)
        if self.within not in _WITHIN:
            raise ConfigError(
                f"within must be one of {', '.join(_WITHIN)}, got {self.within!r}",
                did_you_mean(str(self.within), _WITHIN),
            )
        check_queues(self.thresholds_gpu_s, self.promote)

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`."""
        if plan is None and can_all_run(snapshot):
            return plan_as_requested(snapshot)
        limits = np.array((*self.thresholds_gpu_s, math.inf))
        # Service that a stop would lose does not count.
        served = snapshot.service_gpu_s - snapshot.queue.held_gpus * snapshot.lost_work_s
        level = np.searchsorted(limits, served, side="right")
        to_next_s = (limits[level] - served) / snapshot.queue.requested_gpus
        starved = find_starved(snapshot, self.promote)
        level = np.where(starved.now, 0, level)
        key = level.astype(np.float64)
        if self.within == "running":
            key = rank_places(snapshot, level, limits, starved.since_s, fresh_s=self.quantum_s)
        plan = rank_rows(snapshot, plan, key)
        runs, waits, certain = predict_running(snapshot, plan)
        if not waits.any():
            return plan
        may_run = plan.row[runs] if certain else plan.row
        wait_s = min(float(to_next_s[may_run].min()), starved.changes_in_s)
        return decide_again(plan, snapshot.now_s + max(self.quantum_s, wait_s))


@dataclass(frozen=True)
class Ftf:
    """Finish-time fairness: the worst-treated job first (Mahajan et al., NSDI 2020, "Themis").

    rho = (time waited + time run + remaining time) / duration alone; the largest goes first. Decides
    again when the rho of a waiting job would pass that of a running one.
    *Deviates:* "alone" means on the GPUs that the job requested, not on a 1/N share of the cluster; no
    auction, no leases.
    """

    quantum_s: float = 1200.0

    def __post_init__(self) -> None:
        _check_at_least_1s("quantum_s", self.quantum_s)

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`."""
        if plan is None and can_all_run(snapshot):
            return plan_as_requested(snapshot)
        alone_s = np.maximum(_predict_durations_s(snapshot, models), 1.0)
        in_system_s = snapshot.now_s - snapshot.jobs.submit_s[snapshot.queue.job]
        rho = (in_system_s + remaining_s(snapshot, models, plan)) / alone_s
        plan = rank_rows(snapshot, plan, -rho)
        runs, waits, certain = predict_running(snapshot, plan)
        if not waits.any():
            return plan
        wait_s = self.quantum_s
        if certain:
            gap = rho[plan.row[runs]].min() - rho[plan.row[waits]]
            wait_s = max(wait_s, float((gap * alone_s[plan.row[waits]]).min()))
        return decide_again(plan, snapshot.now_s + wait_s)


@kernel(I1, I1, I1, F2, F1, FLOAT, FLOAT, I1, I1, B1)
def _order_by_service(
    plan_row: Ints,
    plan_gpus: Ints,
    plan_group: Ints,
    block: Floats,
    lost_s: Floats,
    now_s: float,
    quantum_s: float,
    node_kind: Ints,
    node_gpus: Ints,
    up: Bools,
) -> tuple[Ints, float]:
    """Return the entries of the plan by attained service, and in how many seconds to decide again.

    That is when the service of a running job passes that of a waiting one, where it is certain which run;
    inf if no job waits.
    """
    served = block[QUEUE_SERVICE_GPU_S] + block[QUEUE_HELD_GPUS] * (now_s - block[QUEUE_SINCE_S] - lost_s)
    order = np.argsort(served[plan_row], kind="mergesort")
    row, gpus = plan_row[order], plan_gpus[order]
    outcome, filled = classify_entries(row, gpus, plan_group[order], block, node_kind, node_gpus, up)
    least_waits = np.inf
    runs = False
    for p in range(len(row)):
        if outcome[p] == WAITS:
            least_waits = min(least_waits, served[row[p]])
        runs = runs or outcome[p] == RUNS
    if least_waits == np.inf:
        return order, np.inf
    if not filled or not runs or node_kind.min() != node_kind.max():
        return order, quantum_s
    gap_s = np.inf
    for p in range(len(row)):
        if outcome[p] == RUNS:
            gap_s = min(gap_s, (least_waits - served[row[p]]) / gpus[p])
    return order, max(quantum_s, gap_s)


def _predict_durations_s(snapshot: Snapshot, models: Models) -> Floats:
    """Return the whole duration of each row of the queue on the GPUs that it requested."""
    queue, jobs = snapshot.queue, snapshot.jobs
    speed = models.speed(jobs, Grants.of(queue.job, queue.requested_gpus))
    return np.asarray(jobs.steps[queue.job] * jobs.step_s[queue.job] / speed)


def _check_at_least_1s(name: str, value_s: float) -> None:
    if not value_s >= 1:
        raise ConfigError(f"{name} must be at least 1, got {value_s}")
