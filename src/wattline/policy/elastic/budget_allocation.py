"""Allocation of GPUs and power caps within budgets: the kernel of PowerFlow."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from wattline.core.reasons import REASONS, Reason
from wattline.core.table import Bools, Floats, Ints
from wattline.jit import B1, BOOL, F1, F2, F3, FLOAT, I1, I2, INT, inner, kernel, record
from wattline.models.configurations import Configurations
from wattline.policy.budget_limits import CAP_WATTS, ETA_JOULES, JOULES

_OUTRANKED, _OVER_BUDGET = (REASONS.index(reason) for reason in (Reason.OUTRANKED, Reason.OVER_BUDGET))
_SHORT_FIRST = 0.25  # steps of jobs with 16 times the work left count half as much
_SAME = 1e-9

# What a step adds, by the budgets that count it: a row's own watts, watts of the cluster, a row's own joules,
# joules of the cluster, joules with a share of the nodes, a row's own watts of caps, those of the cluster.
OWN_W, CLUSTER_W, OWN_J, CLUSTER_J, SHARED_J, OWN_CAP_W, CLUSTER_CAP_W = range(7)
AMOUNTS = 7

_SLOTS, _ADMITTED = range(2)  # of `_State.counts`
_LONGEST, _SECOND = range(2)  # of `_State.times_s`


class BudgetRows(NamedTuple):
    """Rows of the queue as the allocation needs them."""

    job_class: Ints
    work_s: Floats  # remaining, at speed 1
    watts_factor: Floats  # measured over predicted watts
    speed_factor: Floats  # by size, for restarts
    pool: Ints  # kind of GPU; -1: none
    team: Ints
    first: Ints  # rows in the order of admission
    pinned: Ints  # the only size of a protected row; -1: any
    forced: Bools  # rows that run whatever the budgets allow


class ClusterRoom(NamedTuple):
    """GPUs of each kind, and the power of the nodes that they are in."""

    room: Ints
    on_gpus: Ints  # of nodes that are up or boot
    boot_gpus: Ints  # of a node that is off
    boot_w: Floats  # that it draws more when on
    rest_w: float  # of all nodes without jobs
    node_gpus: int


class PowerTable(NamedTuple):
    """Configurations by job class, size and cap; see `wattline.models.configurations`."""

    sizes: Ints
    gpus: Ints
    speed: Floats
    watts: Floats
    caps_w: Floats  # sum of the caps of all GPUs of the job
    idle_w: Floats
    static_w: Floats

    @classmethod
    def of(cls, configs: Configurations, caps_w: Floats) -> PowerTable:
        """Return the table of *configs*; *caps_w* has the sum of the caps of each."""
        speed, watts, idle_w, static_w = configs.speed, configs.watts, configs.idle_w, configs.static_w
        return cls(configs.size_count, configs.gpus, speed, watts, caps_w, idle_w, static_w)


class LimitArrays(NamedTuple):
    """Entries of `wattline.policy.budget_limits.BudgetLimits`."""

    amount: Floats
    unit: Ints
    team: Ints


class _State(NamedTuple):
    """An allocation that is being built, by row of the queue unless noted."""

    size: Ints
    cap: Ints
    reason: Ints
    weight: Floats
    share_w: Floats  # share of the nodes and their idle GPUs
    left_j: Floats
    free: Ints  # GPUs by kind
    taken: Ints  # GPUs by kind
    used: Floats  # by limit
    counts: Ints  # idle GPUs of nodes that are on; GPUs of admitted jobs at their least size
    times_s: Floats  # until when any job runs, and until when all others do at most


@inner
def _kind_of_amount(unit: int, team: int) -> int:
    """Return which of the amounts of a step a limit counts."""
    if unit == CAP_WATTS:
        return OWN_CAP_W + (team < 0)
    return SHARED_J if unit == ETA_JOULES else 2 * unit + (team < 0)


@inner
def fits_limits(team: int, more: Floats, used: Floats, limits: LimitArrays, steps: bool) -> bool:
    """Return whether adding *more* breaks no budget; amounts that fall break none.

    Admission (no *steps* yet) is not limited by an eta.
    """
    for e in range(len(limits.amount)):
        if limits.team[e] < 0 or limits.team[e] == team:
            adds = more[_kind_of_amount(limits.unit[e], limits.team[e])]
            exceeds = adds > 0 and used[e] + adds > limits.amount[e] * (1 + _SAME)
            if exceeds and (limits.unit[e] != ETA_JOULES or steps):
                return False
    return True


@inner
def add_use(team: int, more: Floats, used: Floats, limits: LimitArrays) -> None:
    """Add *more* to the amounts used of all limits that count it."""
    for e in range(len(used)):
        if limits.team[e] < 0 or limits.team[e] == team:
            used[e] += more[_kind_of_amount(limits.unit[e], limits.team[e])]


@inner
def compute_boot_w(more_gpus: int, p: int, taken: Ints, cluster: ClusterRoom) -> float:
    """Return the draw of nodes that must be switched on for more GPUs of kind *p*."""
    on, node_gpus = cluster.on_gpus[p], cluster.boot_gpus[p]
    before = -(-max(0, taken[p] - on) // node_gpus)
    return float(cluster.boot_w[p] * (-(-max(0, taken[p] + more_gpus - on) // node_gpus) - before))


@inner
def _find_step(c: int, s: int, k: int, step: int, factor: Floats, table: PowerTable) -> tuple[int, int]:
    """Return size and cap of a step to more GPUs (0) or a higher cap (1), as far as it takes to be faster."""
    speed = table.speed
    if step == 0:
        for to in range(s + 1, table.sizes[c]):
            if speed[c, to, k] * factor[to] > speed[c, s, k] * factor[s] * (1 + _SAME):
                return to, k
    else:
        for to in range(k + 1, speed.shape[2]):
            if speed[c, s, to] > speed[c, s, k] * (1 + _SAME):
                return s, to
    return -1, -1


@inner
def _push_steps(
    heap: list[tuple[float, int, int, int]],
    i: int,
    total: float,
    rows: BudgetRows,
    table: PowerTable,
    state: _State,
) -> None:
    """Put the next steps of row *i* on the heap, the best of all first."""
    c, s, k, factor = rows.job_class[i], state.size[i], state.cap[i], rows.speed_factor[i]
    speed, watts, gpus = table.speed, table.watts, table.gpus
    now = speed[c, s, k] * factor[s]
    now_j = (watts[c, s, k] + state.share_w[i]) / now
    for step in range(1 if rows.pinned[i] >= 0 else 0, 2):
        to_s, to_k = _find_step(c, s, k, step, factor, table)
        if to_s < 0:
            continue
        then = speed[c, to_s, to_k] * factor[to_s]
        faster = 1.0 - now / then
        n = gpus[c, to_s] - gpus[c, s]
        then_w = state.share_w[i] + (0.0 if n <= state.counts[_SLOTS] else table.static_w[c] * n)
        then_j = (watts[c, to_s, to_k] + then_w) / then
        costs = max(0.0, then_j / now_j - 1.0) + n / total
        heappush(heap, (-state.weight[i] * faster / (costs + _SAME), i, step, s * speed.shape[2] + k))


@inner
def _choose_first_config(
    i: int,
    waits: bool,
    rows: BudgetRows,
    cluster: ClusterRoom,
    table: PowerTable,
    limits: LimitArrays,
    state: _State,
    best: Floats,
) -> None:
    """Set size and cap of row *i* to the cheapest within the limits, and *best* to what it adds.

    That is the fewest GPUs at the cheapest cap; where joules are scarce the cheapest of all sizes.
    """
    c, p = rows.job_class[i], rows.pool[i]
    gpus, idle_w, static_w = table.gpus, table.idle_w, table.static_w
    slots, admitted = state.counts[_SLOTS], state.counts[_ADMITTED]
    share_w = (static_w[c] * (admitted + slots) + idle_w[c] * slots) / max(1, admitted) * gpus[c, 0]
    scarce = of_all = False  # joules
    for e in range(len(limits.amount)):
        scarce = scarce or (
            limits.unit[e] == JOULES and (limits.team[e] < 0 or limits.team[e] == rows.team[i])
        )
        of_all = of_all or (limits.unit[e] == JOULES and limits.team[e] < 0)
    more = np.zeros(AMOUNTS)
    forced = np.zeros(AMOUNTS)
    best_j = np.inf
    pinned = rows.pinned[i]
    sizes = table.sizes[c] if scarce else 1
    for s in range(max(pinned, 0), pinned + 1 if pinned >= 0 else sizes):
        n = gpus[c, s]
        if n > state.free[p] and not waits:
            break
        extra = n - gpus[c, 0]
        with_w = share_w + (0.0 if extra <= slots else static_w[c] * extra)
        for k in range(table.speed.shape[2]):
            drawn_w = table.watts[c, s, k] * rows.watts_factor[i]
            run_s = rows.work_s[i] / (table.speed[c, s, k] * rows.speed_factor[i, s])
            more[OWN_J], more[SHARED_J] = run_s * drawn_w, run_s * (drawn_w + with_w)
            if waits:  # joules that it will use are reserved
                more[OWN_W], more[CLUSTER_W], more[CLUSTER_J] = 0.0, 0.0, more[SHARED_J]
                more[OWN_CAP_W] = more[CLUSTER_CAP_W] = 0.0
            else:
                booted_w = compute_boot_w(n, p, state.taken, cluster)
                more[OWN_W], more[OWN_CAP_W] = drawn_w, table.caps_w[c, s, k]
                more[CLUSTER_W] = drawn_w - idle_w[c] * n
                more[CLUSTER_W] += booted_w
                more[CLUSTER_CAP_W] = table.caps_w[c, s, k] - idle_w[c] * n + booted_w
                longer_s = max(0.0, run_s - state.times_s[_LONGEST])
                more[CLUSTER_J] = run_s * more[CLUSTER_W] + cluster.rest_w * longer_s
            needs_j = more[CLUSTER_J] if of_all else more[SHARED_J]
            cheaper = state.size[i] < 0 or needs_j < best_j * (1 - _SAME)
            if cheaper and fits_limits(rows.team[i], more, state.used, limits, False):
                best_j, state.size[i], state.cap[i] = needs_j, s, k
                state.left_j[i], state.share_w[i] = more[SHARED_J], with_w
                best[:] = more
            if rows.forced[i] and k == 0:  # the lowest cap, for the case that no budget allows any
                state.left_j[i], state.share_w[i] = more[SHARED_J], with_w
                forced[:] = more
    if rows.forced[i] and state.size[i] < 0 and not waits:
        state.size[i], state.cap[i], state.reason[i] = max(pinned, 0), 0, _OVER_BUDGET
        best[:] = forced


@inner
def _admit(
    heap: list[tuple[float, int, int, int]],
    total: float,
    rows: BudgetRows,
    cluster: ClusterRoom,
    table: PowerTable,
    limits: LimitArrays,
    state: _State,
) -> None:
    """Admit rows one after the other, as far as GPUs and budgets go, and put their next steps on the heap."""
    gpus, caps = table.gpus, table.speed.shape[2]
    best = np.zeros(AMOUNTS)
    for i in rows.first:
        c, p = rows.job_class[i], rows.pool[i]
        if p < 0:
            continue
        waits = state.free[p] < gpus[c, max(rows.pinned[i], 0)]
        _choose_first_config(i, waits, rows, cluster, table, limits, state, best)
        s, k = state.size[i], state.cap[i]
        if s >= 0:
            add_use(rows.team[i], best, state.used, limits)
        if s < 0 or waits:
            state.reason[i] = _OVER_BUDGET if s < 0 else _OUTRANKED
            state.size[i] = state.cap[i] = -1
            continue
        run_s = rows.work_s[i] / (table.speed[c, s, k] * rows.speed_factor[i, s])
        if run_s > state.times_s[_LONGEST]:
            state.times_s[_SECOND] = state.times_s[_LONGEST]
            state.times_s[_LONGEST] = run_s
        else:
            state.times_s[_SECOND] = max(state.times_s[_SECOND], run_s)
        state.free[p] -= gpus[c, s]
        state.taken[p] += gpus[c, s]
        if gpus[c, s] - gpus[c, 0] <= state.counts[_SLOTS]:
            state.counts[_SLOTS] -= gpus[c, s] - gpus[c, 0]
        state.weight[i] = max(1.0, rows.work_s[i] / table.speed[c, 0, caps - 1]) ** -_SHORT_FIRST
        _push_steps(heap, i, total, rows, table, state)


@inner
def _take_steps(
    heap: list[tuple[float, int, int, int]],
    total: float,
    thrifty: bool,
    rows: BudgetRows,
    cluster: ClusterRoom,
    table: PowerTable,
    limits: LimitArrays,
    state: _State,
) -> None:
    """Take the best step of all that no budget forbids, until none is left."""
    gpus, speed, watts = table.gpus, table.speed, table.watts
    idle_w, times_s = table.idle_w, state.times_s
    more = np.zeros(AMOUNTS)
    while len(heap) > 0:
        _, i, step, at = heappop(heap)
        c, s, k, p = rows.job_class[i], state.size[i], state.cap[i], rows.pool[i]
        if at != s * speed.shape[2] + k:
            continue  # the row has changed since
        to_s, to_k = _find_step(c, s, k, step, rows.speed_factor[i], table)
        n = gpus[c, to_s] - gpus[c, s]
        if n > state.free[p]:
            continue
        now_w, then_w = watts[c, s, k] * rows.watts_factor[i], watts[c, to_s, to_k] * rows.watts_factor[i]
        now_s = rows.work_s[i] / (speed[c, s, k] * rows.speed_factor[i, s])
        then_s = rows.work_s[i] / (speed[c, to_s, to_k] * rows.speed_factor[i, to_s])
        share_w = state.share_w[i] + (0.0 if n <= state.counts[_SLOTS] else table.static_w[c] * n)
        then_j = then_s * (then_w + share_w)
        if thrifty and then_j > state.left_j[i] * (1 + _SAME):
            continue
        booted_w = compute_boot_w(n, p, state.taken, cluster)
        ends_s = max(times_s[_SECOND], then_s) if now_s >= times_s[_LONGEST] else times_s[_LONGEST]
        more[OWN_W] = then_w - now_w
        more[CLUSTER_W] = then_w - now_w - idle_w[c] * n + booted_w
        more[OWN_CAP_W] = table.caps_w[c, to_s, to_k] - table.caps_w[c, s, k]
        more[CLUSTER_CAP_W] = more[OWN_CAP_W] - idle_w[c] * n + booted_w
        more[OWN_J] = then_s * then_w - now_s * now_w
        more[CLUSTER_J] = then_s * (then_w - idle_w[c] * gpus[c, to_s] + booted_w)
        more[CLUSTER_J] += cluster.rest_w * (ends_s - times_s[_LONGEST]) - now_s * (
            now_w - idle_w[c] * gpus[c, s]
        )
        more[SHARED_J] = then_j - state.left_j[i]
        if not fits_limits(rows.team[i], more, state.used, limits, True):
            continue
        add_use(rows.team[i], more, state.used, limits)
        times_s[_LONGEST] = ends_s
        state.size[i], state.cap[i] = to_s, to_k
        state.free[p] -= n
        state.taken[p] += n
        state.left_j[i], state.share_w[i] = then_j, share_w
        if n <= state.counts[_SLOTS]:
            state.counts[_SLOTS] -= n
        _push_steps(heap, i, total, rows, table, state)


@kernel(
    record(BudgetRows, I1, F1, F1, F2, I1, I1, I1, I1, B1),
    record(ClusterRoom, I1, I1, I1, F1, FLOAT, INT),
    record(PowerTable, I1, I2, F3, F3, F3, F1, F1),
    record(LimitArrays, F1, I1, I1),
    BOOL,
)
def allocate_within_limits(
    rows: BudgetRows, cluster: ClusterRoom, table: PowerTable, limits: LimitArrays, thrifty: bool
) -> tuple[Ints, Ints, Ints, Floats]:
    """Return for every row its size and cap (-1: none), why it has none, and the joules that it still needs.

    *thrifty*: only steps that need no more joules. The GPUs of a node that is on draw watts, used or not:
    these are shared by the jobs as they are admitted, and GPUs that were idle come without. Joules of the
    whole cluster count the draw of all nodes without jobs until the last running job has ended.
    """
    count = len(rows.job_class)
    admitted = 0
    free = cluster.room.copy()
    for i in rows.first:
        least = table.gpus[rows.job_class[i], max(rows.pinned[i], 0)]
        if rows.pool[i] >= 0 and least <= free[rows.pool[i]]:
            free[rows.pool[i]] -= least
            admitted += least
    slots = -(-admitted // cluster.node_gpus) * cluster.node_gpus - admitted
    state = _State(
        np.full(count, -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        np.ones(count),
        np.zeros(count),
        np.zeros(count),
        cluster.room.copy(),
        np.zeros(len(cluster.room), dtype=np.int64),
        np.zeros(len(limits.amount)),
        np.array([slots, admitted]),
        np.zeros(2),
    )
    total = float(max(1, cluster.room.sum()))
    heap = [(0.0, 0, 0, 0)]
    heap.pop()
    _admit(heap, total, rows, cluster, table, limits, state)
    _take_steps(heap, total, thrifty, rows, cluster, table, limits, state)
    return state.size, state.cap, state.reason, state.left_j
