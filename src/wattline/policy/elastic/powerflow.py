"""PowerFlow: numbers of GPUs and power caps within energy budgets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wattline.core.energy_knob import EnergyKnob
from wattline.core.jobs import PREEMPTIBLE_NEVER
from wattline.core.nodes import Nodes
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_ACCEPTED_KINDS
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.energy.budgets import Budget
from wattline.errors import ConfigError
from wattline.jit import I1, I2, kernel
from wattline.policy.budget_limits import (
    CAP_WATTS,
    NO_LIMITS,
    BudgetLimits,
    compute_idle_w,
    compute_least_idle_w,
    compute_limits,
)
from wattline.policy.elastic.afs import allocate_by_length, serve_all
from wattline.policy.elastic.budget_allocation import (
    BudgetRows,
    ClusterRoom,
    LimitArrays,
    PowerTable,
    allocate_within_limits,
)
from wattline.policy.elastic.capacity import Capacity, build_capacity
from wattline.policy.elastic.power_draw import compute_watts_factor, fill_default_caps, find_boot_costs
from wattline.policy.elastic.restart_costs import compute_speeds, compute_work_s, discount_restarts

_HELD, _NO_ROOM, _OUTRANKED, _TOO_BIG, _OVER_BUDGET, _NEVER = (
    REASONS.index(reason)
    for reason in (
        Reason.HELD,
        Reason.NO_ROOM,
        Reason.OUTRANKED,
        Reason.TOO_BIG,
        Reason.OVER_BUDGET,
        Reason.NEVER_IN_BUDGET,
    )
)


@dataclass(frozen=True)
class PowerFlow:
    """Early finish on average within a budget (after Gu et al., arXiv 2304.06381, "PowerFlow").

    Where no budget limits them all jobs run at full power, on the GPUs that `Afs` would give them. Else the
    job with the least work left (seconds times GPUs) is admitted first, on its fewest GPUs and at its
    cheapest cap, or, within a budget of joules, on the GPUs that need least of these. Then, one after the
    other, the best of all steps (to the next number of GPUs, or to the next cap) is taken that no budget
    forbids, where best means

        (ΔT / T) / (ΔE / E + Δn / N) / T^¼,    ΔT the time saved of T, ΔE the energy added to E,
                                               Δn the GPUs added, of N in the cluster.

    *eta* is the part of the way from the cheapest (0) to the fastest plan (1); *budgets* are kept besides,
    by measured watts where there are any. Meters of real GPUs are late, so where *overshoot* is finite the
    power caps of all running GPUs and the draw of the others are in sum at most *overshoot* times a budget
    of watts, too, and every running GPU has a cap. Another number of GPUs costs *rescale_s*, which must pay
    within *horizon_s* or the rest of the job. Decides again every *interval_s* while a budget is in force.
    *Deviates:* the paper's models and allocator are known from its abstract and one port only; see
    docs/papers.md. The GPUs in the denominator and the fourth root are ours.
    """

    ENERGY_KNOB: ClassVar[EnergyKnob] = EnergyKnob("eta", fastest=1.0, cheapest=0.0)

    eta: float = 1.0
    budgets: tuple[Budget, ...] = ()
    rescale_s: float = 30.0
    horizon_s: float = 3600.0
    interval_s: float = 300.0
    overshoot: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1:
            raise ConfigError(f"eta must be from 0 to 1, got {self.eta}")
        if not 0 <= self.rescale_s < math.inf:
            raise ConfigError(f"rescale_s must be at least 0 and finite, got {self.rescale_s}")
        for name in ("horizon_s", "interval_s", "overshoot"):
            if not getattr(self, name) >= 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`.

        Of an earlier *plan* only the choice of jobs and their precedence count.
        """
        work_s = compute_work_s(snapshot)
        requested = snapshot.queue.requested_gpus
        capacity = build_capacity(
            snapshot, models, plan, batches=True, by_precedence=True, first=work_s * requested
        )
        limits = compute_limits(self.budgets, snapshot, self.interval_s, self.overshoot)
        size, cap, reason = self._allocate(snapshot, capacity, limits, work_s, plan)
        if len(reason) and capacity.pool.min() < 0:
            reason = np.where(capacity.pool < 0, _find_reasons_without_pool(snapshot, capacity, plan), reason)
        configs = capacity.configs
        runs, gpus = _order_running(size, capacity.job_class, capacity.pool, capacity.held, configs.gpus)
        job_class = capacity.job_class[runs]
        is_idle = not len(runs) and not len(snapshot.leases)
        next_s = limits.next_idle_decision_s if is_idle else limits.next_decision_s
        caps_w = configs.cap_w
        if (limits.unit == CAP_WATTS).any():  # a cap that is not set could not be held
            caps_w = fill_default_caps(configs, snapshot.nodes)
        return Plan(
            row=runs,
            gpus=gpus,
            group=runs,
            next_decision_s=min(next_s, math.inf if plan is None else plan.next_decision_s),
            cap_w=np.ascontiguousarray(caps_w[job_class, size[runs], cap[runs]]),
            batch=np.ascontiguousarray(configs.batch[job_class, size[runs], cap[runs]]),
            reason=reason,
            needs_meter=len(limits.amount) > 0,
        )

    def _allocate(
        self,
        snapshot: Snapshot,
        capacity: Capacity,
        limits: BudgetLimits,
        work_s: Floats,
        plan: Plan | None,
    ) -> tuple[Ints, Ints, Ints]:
        """Return for every row of the queue the numbers of its size and cap, and why it has none."""
        configs, job_class = capacity.configs, capacity.job_class
        speed = compute_speeds(snapshot, capacity, work_s, self.rescale_s, self.horizon_s, as_requested=True)
        size = allocate_by_length(capacity, speed, work_s)
        precedence = _spread_precedence(plan, len(size))
        if plan is not None and precedence.any():
            size = serve_all(capacity, speed, size)
        cap = np.full(len(size), configs.speed.shape[2] - 1, dtype=np.int64)
        reason = np.where(size >= 0, 0, _OUTRANKED)
        is_fastest = self.eta == 1.0 and all(eta == 1.0 for eta, _ in limits.eta)
        if is_fastest and not len(limits.amount):
            return size, cap, reason
        nodes, team = snapshot.nodes, snapshot.jobs.team.codes[snapshot.queue.job]
        left_s = work_s[:, None] / configs.speed[job_class, :, -1]
        discount = discount_restarts(snapshot, capacity, left_s, self.rescale_s, self.horizon_s)
        factor = compute_watts_factor(snapshot, capacity.configs)
        fastest_j = _compute_full_power_j(capacity, nodes, work_s, factor, size)
        rest_w, boots = compute_idle_w(snapshot), find_boot_costs(snapshot)
        cluster = ClusterRoom(capacity.room, *boots, rest_w, int(nodes.gpus.mean()))
        caps_w = (fill_default_caps(configs, nodes) * configs.gpus[..., None]).astype(np.float64)
        pinned, forced = _pin_protected(snapshot, capacity)
        keeps = bool((size == pinned)[pinned >= 0].all())
        if (
            is_fastest
            and keeps
            and _is_within(limits, capacity, cluster, team, factor, size, work_s, fastest_j, caps_w)
        ):
            return size, cap, reason
        least_work = work_s / speed[:, 0] * configs.gpus[job_class, 0]
        first = np.lexsort((least_work, precedence, pinned < 0))  # protected jobs go first
        rows = BudgetRows(job_class, work_s, factor, discount, capacity.pool, team, first, pinned, forced)
        table = PowerTable.of(configs, caps_w)
        if not is_fastest:
            none = LimitArrays(NO_LIMITS.amount, NO_LIMITS.unit, NO_LIMITS.team)
            cheapest, _, _, cheapest_j = allocate_within_limits(rows, cluster, table, none, True)
            extra_j = np.where((size >= 0) & (cheapest >= 0), np.maximum(0.0, fastest_j - cheapest_j), 0.0)
            for eta, of in (*limits.eta, (self.eta, -1)):
                if eta < 1.0:
                    counted = slice(None) if of < 0 else team == of
                    limits = limits.with_eta_joules(float((cheapest_j + eta * extra_j)[counted].sum()), of)
        arrays = LimitArrays(limits.amount, limits.unit, limits.team)
        size, cap, reason, _ = allocate_within_limits(rows, cluster, table, arrays, False)
        _mark_unaffordable(snapshot, capacity, limits, rows, caps_w, reason)
        return size, cap, reason


@kernel(I1, I1, I1, I1, I2)
def _order_running(size: Ints, job_class: Ints, pool: Ints, held: Ints, gpus: Ints) -> Ints:
    """Return the rows with GPUs in the order in which they are placed, and the GPUs of each.

    By kind, jobs that keep their size come first, then the largest: small jobs fill the gaps.
    """
    runs = np.flatnonzero(size >= 0)
    granted = np.empty(len(runs), dtype=np.int64)
    most = 0
    for p in range(len(runs)):
        granted[p] = gpus[job_class[runs[p]], size[runs[p]]]
        most = max(most, granted[p])
    key = np.empty(len(runs), dtype=np.int64)
    for p in range(len(runs)):
        changes = granted[p] != held[runs[p]]
        key[p] = (2 * pool[runs[p]] + changes) * (most + 1) + most - granted[p]
    order = np.argsort(key, kind="mergesort")
    ordered = np.empty((2, len(runs)), dtype=np.int64)
    for p in range(len(runs)):
        ordered[0, p], ordered[1, p] = runs[order[p]], granted[order[p]]
    return ordered


def _pin_protected(snapshot: Snapshot, capacity: Capacity) -> tuple[Ints, Bools]:
    """Return the size that each protected row keeps (-1: any), and which of them no budget may stop.

    A budget lowers the caps of a protected job first, and stops it only if the lowest is too much.
    """
    pinned = np.full(len(snapshot.queue), -1, dtype=np.int64)
    forced = np.zeros(len(pinned), dtype=np.bool_)
    for i in np.flatnonzero(snapshot.protected & (capacity.pool >= 0)).tolist():
        same = np.flatnonzero(capacity.configs.gpus[capacity.job_class[i]] == capacity.held[i])
        if len(same):
            pinned[i] = same[0]
            forced[i] = snapshot.jobs.preemptible[snapshot.queue.job[i]] == PREEMPTIBLE_NEVER
    return pinned, forced


def _mark_unaffordable(
    snapshot: Snapshot,
    capacity: Capacity,
    limits: BudgetLimits,
    rows: BudgetRows,
    caps_w: Floats,
    reason: Ints,
) -> None:
    """Change the reason of rows that no budget will ever allow to run."""
    over = np.flatnonzero((reason == _OVER_BUDGET) & ~rows.forced)
    if not len(over):
        return
    configs, job_class = capacity.configs, rows.job_class[over]
    gpus = configs.gpus[job_class]
    never = limits.find_unaffordable(
        configs.watts[job_class] * rows.watts_factor[over, None, None],
        caps_w[job_class],
        (configs.idle_w[job_class, None] * gpus)[..., None],
        compute_least_idle_w(snapshot, capacity.pool[over], gpus)[..., None],
        rows.work_s[over, None, None] / (configs.speed[job_class] * rows.speed_factor[over, :, None]),
        rows.team[over],
    )
    reason[over[never]] = _NEVER


def _find_reasons_without_pool(snapshot: Snapshot, capacity: Capacity, plan: Plan | None) -> Ints:
    """Return why a row has no GPUs to be served from: nodes are down, or too few even when all are up."""
    nodes, configs, job = snapshot.nodes, capacity.configs, snapshot.queue.job
    accepts = snapshot.queue.block[QUEUE_ACCEPTED_KINDS].astype(np.int64)
    reason = np.full(len(job), _TOO_BIG, dtype=np.int64)
    for kind, total in enumerate(np.bincount(nodes.kind.codes, nodes.gpus, len(nodes.kind.names))):
        reason[((accepts >> kind) & 1 == 1) & (configs.gpus[configs.job_class[job, kind], 0] <= total)] = (
            _NO_ROOM
        )
    reason[capacity.outranked] = _OUTRANKED
    if plan is not None:
        out = np.setdiff1d(np.arange(len(job)), plan.row)
        reason[out] = _HELD if plan.reason is None else plan.reason[out]
    return reason


def _spread_precedence(plan: Plan | None, queued: int) -> Ints:
    """Return the precedence of each row of the queue; all are equal if the plan has none."""
    precedence = np.zeros(queued, dtype=np.int64)
    if plan is not None and plan.precedence is not None:
        precedence[plan.row] = plan.precedence
    return precedence


def _is_within(
    limits: BudgetLimits,
    capacity: Capacity,
    cluster: ClusterRoom,
    team: Ints,
    factor: Floats,
    size: Ints,
    work_s: Floats,
    left_j: Floats,
    caps_w: Floats,
) -> bool:
    """Return whether all jobs may run on GPUs of this *size* at full power."""
    configs, job_class, runs = capacity.configs, capacity.job_class, size >= 0
    at = np.maximum(size, 0)
    gpus = np.where(runs, configs.gpus[job_class, at], 0)
    own_w = configs.watts[job_class, at, -1] * factor
    run_s = work_s / configs.speed[job_class, at, -1]
    taken = np.bincount(capacity.pool[runs], gpus[runs], len(cluster.on_gpus)).astype(np.int64)
    boots = -(-np.maximum(taken - cluster.on_gpus, 0) // cluster.boot_gpus)
    booted_w = float((boots * cluster.boot_w).sum())
    idle_w = configs.idle_w[job_class] * gpus
    for amount, unit, of in zip(limits.amount, limits.unit, limits.team, strict=True):
        counted = team == of if of >= 0 else np.ones(len(team), dtype=np.bool_)
        if unit == CAP_WATTS:
            set_w = caps_w[job_class, at, -1]
            used = set_w[counted & runs].sum() if of >= 0 else (set_w - idle_w)[runs].sum() + booted_w
        elif of >= 0:
            used = (own_w * run_s)[counted].sum() if unit else own_w[counted & runs].sum()
        elif unit:
            used = ((own_w - idle_w) * run_s)[runs].sum() + left_j[~runs].sum()
            used += (cluster.rest_w + booted_w) * run_s.max(initial=0.0, where=runs)
        else:
            used = (own_w - idle_w)[runs].sum() + booted_w
        if used > amount:
            return False
    return True


def _compute_full_power_j(
    capacity: Capacity, nodes: Nodes, work_s: Floats, factor: Floats, size: Ints
) -> Floats:
    """Return the joules that each row still needs at full power, with its share of nodes and idle GPUs."""
    configs, job_class, at = capacity.configs, capacity.job_class, np.maximum(size, 0)
    gpus, node_gpus = configs.gpus[job_class, at], int(nodes.gpus.mean())
    taken = int(gpus[size >= 0].sum())
    slots = -(-taken // node_gpus) * node_gpus
    idle_w = configs.idle_w[job_class] * (slots - taken)
    static_w = (configs.static_w[job_class] * slots + idle_w) / max(1, taken)
    watts = configs.watts[job_class, at, -1] * factor + static_w * gpus
    return np.asarray(work_s * watts / configs.speed[job_class, at, -1])
