"""Budgets: a price of energy at which they hold on the whole, then a check of every single job.

The price of a joule rises until the decision that follows from it draws no more than all limits allow, and
the jobs at hand need no more joules until they end. As jobs and GPUs are whole, the rest is settled one job
after the other: each lowers its cap, and then its number of GPUs, until no limit is broken, or waits. Watts
are those that were measured, where there are any.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from wattline.core.jobs import PREEMPTIBLE_NEVER
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.jit import B1, BOOL, F1, F3, FLOAT, I1, I2, INT, inner, kernel, record
from wattline.policy.budget_limits import BudgetLimits, compute_idle_w, compute_least_idle_w
from wattline.policy.elastic.budget_allocation import (
    AMOUNTS,
    CLUSTER_CAP_W,
    CLUSTER_J,
    CLUSTER_W,
    OWN_CAP_W,
    OWN_J,
    OWN_W,
    SHARED_J,
    ClusterRoom,
    LimitArrays,
    PowerTable,
    add_use,
    compute_boot_w,
    fits_limits,
)
from wattline.policy.elastic.power_draw import fill_default_caps, find_boot_costs
from wattline.policy.market.scene import Scene

_OVER_BUDGET, _NEVER = (REASONS.index(reason) for reason in (Reason.OVER_BUDGET, Reason.NEVER_IN_BUDGET))


class Wanted(NamedTuple):
    """Configuration that each row of the queue wants."""

    order: Ints  # rows, the first to be admitted first
    kind: Ints  # -1: none
    size: Ints
    cap: Ints
    job_class: Ints  # on its kind
    work_s: Floats
    speed_factor: Floats  # for a restart
    watts_factor: Floats
    team: Ints
    pinned: Ints  # 1: its size stays
    forced: Bools  # it runs whatever the budgets allow


_WANTED = record(Wanted, I1, I1, I1, I1, I1, F1, F1, F1, I1, I1, B1)


def build_power_table(scene: Scene, snapshot: Snapshot) -> tuple[PowerTable, ClusterRoom]:
    """Return the draw of configurations and of nodes, for `admit_within`."""
    configs, nodes = scene.configs, snapshot.nodes
    caps_w = (fill_default_caps(configs, nodes) * configs.gpus[..., None]).astype(np.float64)
    table = PowerTable.of(configs, caps_w)
    boots = find_boot_costs(snapshot)
    return table, ClusterRoom(scene.room, *boots, compute_idle_w(snapshot), int(nodes.gpus.mean()))


def find_forced(snapshot: Snapshot, scene: Scene) -> Bools:
    """Return the running jobs that no budget may stop."""
    return np.asarray(scene.protected & (snapshot.jobs.preemptible[snapshot.queue.job] == PREEMPTIBLE_NEVER))


def mark_unaffordable(
    snapshot: Snapshot, scene: Scene, limits: BudgetLimits, table: PowerTable, factor: Floats, reason: Ints
) -> None:
    """Change the reason of rows that no budget will ever allow to run."""
    over = np.flatnonzero((reason == _OVER_BUDGET) & ~find_forced(snapshot, scene))
    if not len(over):
        return
    team, configs = snapshot.jobs.team.codes[snapshot.queue.job[over]], scene.configs
    never = np.ones(len(over), dtype=np.bool_)
    for k in range(scene.kinds):
        of = scene.job_class[over] + k * scene.classes
        gpus, kind = configs.gpus[of], np.full(len(over), k, dtype=np.int64)
        found = limits.find_unaffordable(
            configs.watts[of] * factor[over, None, None],
            table.caps_w[of],
            (configs.idle_w[of, None] * gpus)[..., None],
            compute_least_idle_w(snapshot, kind, gpus)[..., None],
            scene.work_s[over, None, None] / configs.speed[of],
            team,
        )
        never &= found | ((scene.open_to[over] >> k) & 1 == 0)
    reason[over[never]] = _NEVER


@inner
def _sum_amounts(
    i: int,
    s: int,
    q: int,
    wanted: Wanted,
    cluster: ClusterRoom,
    table: PowerTable,
    taken: Ints,
    longest_s: float,
    more: Floats,
) -> float:
    """Write into *more* what row *i* adds in size *s* under cap *q*, and return for how long it runs."""
    c, k = wanted.job_class[i], wanted.kind[i]
    n = table.gpus[c, s]
    drawn_w = table.watts[c, s, q] * wanted.watts_factor[i]
    run_s = wanted.work_s[i] / (table.speed[c, s, q] * wanted.speed_factor[i])
    booted_w = compute_boot_w(n, k, taken, cluster)
    more[OWN_W], more[OWN_CAP_W] = drawn_w, table.caps_w[c, s, q]
    more[CLUSTER_W] = drawn_w - table.idle_w[c] * n + booted_w
    more[CLUSTER_CAP_W] = table.caps_w[c, s, q] - table.idle_w[c] * n + booted_w
    more[OWN_J], more[SHARED_J] = run_s * drawn_w, run_s * (drawn_w + table.static_w[c] * n)
    more[CLUSTER_J] = run_s * more[CLUSTER_W] + cluster.rest_w * max(0.0, run_s - longest_s)
    return float(run_s)


@kernel(
    _WANTED,
    record(ClusterRoom, I1, I1, I1, F1, FLOAT, INT),
    record(PowerTable, I1, I2, F3, F3, F3, F1, F1),
    record(LimitArrays, F1, I1, I1),
    BOOL,
)
def admit_within(
    wanted: Wanted, cluster: ClusterRoom, table: PowerTable, limits: LimitArrays, holds: bool
) -> tuple[Ints, Ints, Bools, Floats]:
    """Return size and cap of each row (-1: none), which of them break a limit, and what is used of each.

    Rows are admitted in their order. If it *holds* the limits, a row lowers its cap, then its size, until it
    breaks none (more GPUs may need fewer joules, so these are tried last), and joules are reserved until it
    ends; else all rows get what they want.
    """
    count = len(wanted.kind)
    size, cap = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    taken, used, more = (
        np.zeros(len(cluster.room), dtype=np.int64),
        np.zeros(len(limits.amount)),
        np.zeros(AMOUNTS),
    )
    breaks = np.zeros(count, dtype=np.bool_)
    longest_s = 0.0
    for i in wanted.order:
        k = wanted.kind[i]
        if k < 0:
            continue
        c, top = wanted.job_class[i], wanted.size[i]
        tries = table.sizes[c] if holds and wanted.pinned[i] == 0 else 1
        for step in range(tries):
            s = top - step if step <= top else step
            if taken[k] + table.gpus[c, s] > cluster.room[k]:
                continue
            highest = wanted.cap[i] if s <= top else table.speed.shape[2] - 1
            for q in range(highest, -1, -1):
                if not table.speed[c, s, q] > 0:
                    continue
                run_s = _sum_amounts(i, s, q, wanted, cluster, table, taken, longest_s, more)
                fits = not holds or fits_limits(wanted.team[i], more, used, limits, True)
                if fits or (q == 0 and wanted.forced[i]):
                    size[i], cap[i], breaks[i] = s, q, not fits
                    break
            if size[i] >= 0:
                add_use(wanted.team[i], more, used, limits)
                taken[k] += table.gpus[c, s]
                longest_s = max(longest_s, run_s)
                break
    return size, cap, breaks, used


@inner
def _push_cap(
    heap: list[tuple[float, int, int]],
    i: int,
    wanted: Wanted,
    table: PowerTable,
    size: Ints,
    cap: Ints,
    value: Floats,
    per_j: float,
) -> None:
    """Put the next faster cap of row *i* on the heap, the largest gain per watt first, if it pays."""
    c, s, now = wanted.job_class[i], size[i], cap[i]
    for q in range(now + 1, table.speed.shape[2]):
        faster = table.speed[c, s, q] - table.speed[c, s, now]
        if faster > 1e-9 * table.speed[c, s, now]:
            drawn_w = (table.watts[c, s, q] - table.watts[c, s, now]) * wanted.watts_factor[i]
            gain = value[i] * faster / max(drawn_w, 1e-9)
            if gain > per_j:
                heappush(heap, (-gain, i, q))
            break


@kernel(
    _WANTED,
    record(PowerTable, I1, I2, F3, F3, F3, F1, F1),
    record(LimitArrays, F1, I1, I1),
    I1,
    I1,
    F1,
    F1,
    FLOAT,
)
def raise_caps(
    wanted: Wanted,
    table: PowerTable,
    limits: LimitArrays,
    size: Ints,
    cap: Ints,
    used: Floats,
    value: Floats,
    per_j: float,
) -> Ints:
    """Return the caps after what is left of the limits went where a watt gains most.

    Rows of this *size* and *cap* (-1: none) have *used* so much of each limit. A second of a row's work has
    this *value*, and a joule costs *per_j* besides all limits. A higher cap needs no restart.
    """
    raised, taken, more = cap.copy(), used.copy(), np.zeros(AMOUNTS)
    heap = [(0.0, 0, 0)]
    heap.pop()
    for i in range(len(cap)):
        if cap[i] >= 0:
            _push_cap(heap, i, wanted, table, size, raised, value, per_j)
    while len(heap) > 0:
        _, i, q = heappop(heap)
        c, s, now = wanted.job_class[i], size[i], raised[i]
        drawn_w = (table.watts[c, s, q] - table.watts[c, s, now]) * wanted.watts_factor[i]
        more[OWN_W] = more[CLUSTER_W] = drawn_w
        more[OWN_CAP_W] = more[CLUSTER_CAP_W] = table.caps_w[c, s, q] - table.caps_w[c, s, now]
        if fits_limits(wanted.team[i], more, taken, limits, True):
            add_use(wanted.team[i], more, taken, limits)
            raised[i] = q
            _push_cap(heap, i, wanted, table, size, raised, value, per_j)
    return raised
