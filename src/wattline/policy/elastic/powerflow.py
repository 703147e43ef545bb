"""How many GPUs and how much power for whom, within an energy budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from wattline.core.nodes import Nodes
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import ACCEPTS, LAST_CAP, LAST_GPUS, LAST_NODE
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.energy.budgets import Budget
from wattline.errors import ConfigError
from wattline.jit import BOOL, F1, F2, F3, FLOAT, I1, I2, INT, inner, kernel
from wattline.policy.budget_limits import NO_LIMITS, Limits, lasting_w, limits, resting_w
from wattline.policy.elastic.afs import by_length
from wattline.policy.elastic.capacity import Offer, offer, pace

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
_SHORT_FIRST = 0.25  # steps of jobs with 16 times the work left count half as much
_SAME = 1e-9


@dataclass(frozen=True)
class PowerFlow:
    """Early finish on average within a budget (after Gu et al., arXiv 2304.06381, "PowerFlow").

    Where no budget is in the way everybody runs at full power, on the GPUs that `Afs` would give it. Else
    the job with the least work left (seconds times GPUs) is admitted first, on its fewest GPUs and at its
    cheapest cap, or, within a budget of joules, on the GPUs that need least of these. Then, one after the
    other, the best of all steps (to the next number of GPUs, or to the next cap) is taken that no budget
    forbids, where best means

        (ΔT / T) / (ΔE / E + Δn / N) / T^¼,    ΔT the time saved of T, ΔE the energy added to E,
                                               Δn the GPUs added, of N in the cluster.

    *eta* says how much of the way from the cheapest to the fastest plan is gone; *budgets* are held besides,
    by what was measured where something was. Another number of GPUs costs *rescale_s*, which must pay within
    *horizon_s* or the rest of the job. Asked again every *interval_s* while a budget is in force.
    *Deviates:* the paper's models and allocator are known from its abstract and one port only; see
    docs/papers.md. The GPUs in the denominator and the fourth root are ours.
    """

    eta: float = 1.0
    budgets: tuple[Budget, ...] = ()
    rescale_s: float = 30.0
    horizon_s: float = 3600.0
    interval_s: float = 300.0

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1:
            raise ConfigError(f"eta must be from 0 to 1, got {self.eta}")
        if not 0 <= self.rescale_s < math.inf:
            raise ConfigError(f"rescale_s must be at least 0 and finite, got {self.rescale_s}")
        for name in ("horizon_s", "interval_s"):
            if not getattr(self, name) >= 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """The plan; see `wattline.policy.chain.Stage`. Of an earlier *plan* only who is in it counts."""
        offers = offer(snapshot, models, plan, batches=True)
        held = limits(self.budgets, snapshot, self.interval_s)
        size, cap, reason = self._shares(snapshot, offers, held)
        reason = np.where(offers.pool < 0, _without_gpus(snapshot, offers, plan), reason)
        runs = np.flatnonzero(size >= 0)
        tick_s = held.tick_s if len(runs) or len(snapshot.leases) else held.idle_tick_s
        ways, sort = offers.menu, offers.sort[runs]
        gpus = ways.gpus[sort, size[runs]]
        # Who keeps its size is seated first, then the largest: small jobs fill the gaps.
        turn = np.lexsort((-gpus, gpus != offers.held[runs], offers.pool[runs]))
        runs, sort, gpus = runs[turn], sort[turn], gpus[turn]
        return Plan(
            row=runs,
            gpus=gpus,
            group=runs,
            tick_s=min(tick_s, math.inf if plan is None else plan.tick_s),
            cap_w=np.ascontiguousarray(ways.cap_w[sort, size[runs], cap[runs]]),
            batch=np.ascontiguousarray(ways.batch[sort, size[runs], cap[runs]]),
            reason=reason,
            meters=len(held.most) > 0,
        )

    def _shares(self, snapshot: Snapshot, offers: Offer, held: Limits) -> tuple[Ints, Ints, Ints]:
        """For every row of the queue its size and cap, by their places in the menu, and why it has none."""
        jobs, nodes, job = snapshot.jobs, snapshot.nodes, snapshot.queue.job
        ways, sort, team = offers.menu, offers.sort, jobs.team.codes[job]
        work_s = snapshot.steps_left * jobs.step_s[job]
        full = ways.speed[sort, :, -1]
        kept = pace(snapshot, offers, work_s[:, None] / full, self.rescale_s, self.horizon_s)
        size = by_length(full * kept, work_s, sort, offers.pool, offers.room, ways.sizes, ways.gpus)
        cap = np.full(len(size), ways.speed.shape[2] - 1, dtype=np.int64)
        reason = np.where(size >= 0, 0, _OUTRANKED)
        free = self.eta == 1.0 and all(eta == 1.0 for eta, _ in held.eta)
        if free and not len(held.most):
            return size, cap, reason
        factor = _misjudged(snapshot, offers)
        fastest_j = _full_j(offers, nodes, work_s, factor, size)
        rest_w, boots = resting_w(snapshot), _boots(snapshot)
        if free and _within(held, offers, team, factor, size, work_s, fastest_j, rest_w, boots):
            return size, cap, reason
        first = np.argsort(work_s / (full * kept)[:, 0] * ways.gpus[sort, 0], kind="stable")
        node_gpus = int(nodes.gpus.mean())

        def share(held: Limits, thrifty: bool) -> tuple[Ints, Ints, Ints, Floats]:
            return _share(
                sort, work_s, factor, kept, offers.pool, first, team, offers.room, *boots, rest_w, node_gpus,
                ways.sizes, ways.gpus, ways.speed, ways.watts, ways.idle_w, ways.static_w,
                held.most, held.joules, held.team, thrifty,
            )  # fmt: skip

        if not free:
            cheapest, _, _, cheapest_j = share(NO_LIMITS, True)
            extra_j = np.where((size >= 0) & (cheapest >= 0), np.maximum(0.0, fastest_j - cheapest_j), 0.0)
            for eta, of in (*held.eta, (self.eta, -1)):
                if eta < 1.0:
                    mine = slice(None) if of < 0 else team == of
                    held = held.with_joules(float((cheapest_j + eta * extra_j)[mine].sum()), of)
        size, cap, reason, _ = share(held, False)
        late = np.flatnonzero(reason == _OVER_BUDGET)
        if len(late):
            rows, gpus = sort[late], ways.gpus[sort[late]]
            never = held.never(
                ways.watts[rows] * factor[late, None, None],
                (ways.idle_w[rows, None] * gpus)[..., None],
                lasting_w(snapshot, offers.pool[late], gpus)[..., None],
                work_s[late, None, None] / (ways.speed[rows] * kept[late, :, None]),
                team[late],
            )
            reason[late[never]] = _NEVER
        return size, cap, reason


def _without_gpus(snapshot: Snapshot, offers: Offer, plan: Plan | None) -> Ints:
    """Why a row has no GPUs to be served from: nodes are down, or they are too few even when all are up."""
    nodes, ways, job = snapshot.nodes, offers.menu, snapshot.queue.job
    accepts = snapshot.queue.block[ACCEPTS].astype(np.int64)
    reason = np.full(len(job), _TOO_BIG, dtype=np.int64)
    for kind, total in enumerate(np.bincount(nodes.kind.codes, nodes.gpus, len(nodes.kind.names))):
        reason[((accepts >> kind) & 1 == 1) & (ways.gpus[ways.sort[job, kind], 0] <= total)] = _NO_ROOM
    if plan is not None:
        reason[np.setdiff1d(np.arange(len(job)), plan.row)] = _HELD
    return reason


def _boots(snapshot: Snapshot) -> tuple[Ints, Ints, Floats]:
    """By kind: GPUs of nodes that are up or boot, GPUs of one that is off, and what it draws more when on.

    Where nodes that are off differ, they have as few GPUs and as many watts as any of them.
    """
    nodes, kinds, off = snapshot.nodes, len(snapshot.nodes.kind.names), snapshot.wakes_s == math.inf
    on = np.bincount(nodes.kind.codes, nodes.gpus * (snapshot.usable & ~off), kinds).astype(np.int64)
    gpus, watts = np.full(kinds, nodes.gpus.max(), dtype=np.int64), np.zeros(kinds)
    np.minimum.at(gpus, nodes.kind.codes[off], nodes.gpus[off])
    np.maximum.at(watts, nodes.kind.codes[off], (np.maximum(nodes.boot_w, nodes.rest_w) - nodes.off_w)[off])
    return on, gpus, watts


def _within(
    held: Limits,
    offers: Offer,
    team: Ints,
    factor: Floats,
    size: Ints,
    work_s: Floats,
    left_j: Floats,
    rest_w: float,
    boots: tuple[Ints, Ints, Floats],
) -> bool:
    """Whether everybody may run on these GPUs at full power."""
    ways, sort, runs = offers.menu, offers.sort, size >= 0
    at, (on, node_gpus, node_w) = np.maximum(size, 0), boots
    gpus = np.where(runs, ways.gpus[sort, at], 0)
    own_w = ways.watts[sort, at, -1] * factor
    run_s = work_s / ways.speed[sort, at, -1]
    taken = np.bincount(offers.pool[runs], gpus[runs], len(on)).astype(np.int64)
    booted_w = float((-(-np.maximum(taken - on, 0) // node_gpus) * node_w).sum())
    idle_w = ways.idle_w[sort] * gpus
    for most, joules, of in zip(held.most, held.joules, held.team, strict=True):
        mine = team == of if of >= 0 else np.ones(len(team), dtype=np.bool_)
        if of >= 0:
            used = (own_w * run_s)[mine].sum() if joules else own_w[mine & runs].sum()
        elif joules:
            used = ((own_w - idle_w) * run_s)[runs].sum() + left_j[~runs].sum()
            used += (rest_w + booted_w) * run_s.max(initial=0.0, where=runs)
        else:
            used = (own_w - idle_w)[runs].sum() + booted_w
        if used > most:
            return False
    return True


def _misjudged(snapshot: Snapshot, offers: Offer) -> Floats:
    """Watts measured of each row, over watts believed of what it had then; 1 for who was never measured."""
    queue, ways = snapshot.queue, offers.menu
    factor = np.ones(len(queue))
    seen = np.flatnonzero(queue.watts > 0)
    if not len(seen):
        return factor
    gpus, cap_w, node = queue.block[[LAST_GPUS, LAST_CAP, LAST_NODE]][:, seen].astype(np.int64)
    sort = ways.sort[queue.job[seen], snapshot.nodes.kind.codes[node]]
    size = ways.gpus[sort] == gpus[:, None]
    cap = ways.cap_w[sort, 0] == cap_w[:, None]
    known = size.any(axis=1) & cap.any(axis=1)
    believed_w = ways.watts[sort, np.argmax(size, axis=1), np.argmax(cap, axis=1)]
    factor[seen] = np.where(known, np.clip(queue.watts[seen] / believed_w, 0.05, 20.0), 1.0)
    return factor


def _full_j(offers: Offer, nodes: Nodes, work_s: Floats, factor: Floats, size: Ints) -> Floats:
    """What each row still needs at full power on GPUs of this size, with its share of nodes and idle GPUs."""
    ways, sort, at = offers.menu, offers.sort, np.maximum(size, 0)
    gpus, node_gpus = ways.gpus[sort, at], int(nodes.gpus.mean())
    taken = int(gpus[size >= 0].sum())
    slots = -(-taken // node_gpus) * node_gpus
    static_w = (ways.static_w[sort] * slots + ways.idle_w[sort] * (slots - taken)) / max(1, taken)
    watts = ways.watts[sort, at, -1] * factor + static_w * gpus
    return np.asarray(work_s * watts / ways.speed[sort, at, -1])


@inner
def _fits(
    team: int, more: Floats, used: Floats, most: Floats, joules: Ints, of_team: Ints, steps: bool
) -> bool:
    """Whether what a step uses *more* of (see `_which`) breaks no budget; what uses less breaks nothing.

    Who is admitted (no *steps* yet) may run whatever eta.
    """
    for c in range(len(most)):
        if of_team[c] < 0 or of_team[c] == team:
            adds = more[_which(joules[c], of_team[c])]
            if adds > 0 and used[c] + adds > most[c] * (1 + _SAME) and (joules[c] < 2 or steps):
                return False
    return True


@inner
def _which(joules: int, of_team: int) -> int:
    """What an entry counts: a row's own watts, watts of the cluster, own joules, those of the cluster, or
    joules with a share of the nodes.
    """
    return 4 if joules == 2 else 2 * joules + (of_team < 0)


@inner
def _use(team: int, more: Floats, used: Floats, joules: Ints, of_team: Ints) -> None:
    for c in range(len(used)):
        if of_team[c] < 0 or of_team[c] == team:
            used[c] += more[_which(joules[c], of_team[c])]


@inner
def _boot_w(more_gpus: int, taken: int, on: int, node_gpus: int, node_w: float) -> float:
    """What nodes draw that must be switched on for more GPUs of a kind, of which some are *taken*."""
    before = -(-max(0, taken - on) // node_gpus)
    return node_w * (-(-max(0, taken + more_gpus - on) // node_gpus) - before)


@inner
def _next(c: int, s: int, k: int, step: int, loss: Floats, sizes: Ints, speed: Floats) -> tuple[int, int]:
    """Where a step leads: to more GPUs (0) or a higher cap (1), as far as it takes to be faster."""
    if step == 0:
        for to in range(s + 1, sizes[c]):
            if speed[c, to, k] * loss[to] > speed[c, s, k] * loss[s] * (1 + _SAME):
                return to, k
    else:
        for to in range(k + 1, speed.shape[2]):
            if speed[c, s, to] > speed[c, s, k] * (1 + _SAME):
                return s, to
    return -1, -1


@inner
def _offer(
    heap: list[tuple[float, int, int, int]],
    i: int,
    c: int,
    s: int,
    k: int,
    weight: float,
    loss: Floats,
    sizes: Ints,
    gpus: Ints,
    speed: Floats,
    watts: Floats,
    anyway_w: float,
    slots: int,
    static_w: float,
    total: float,
) -> None:
    """Put a row's next steps on the heap, the best of all first."""
    now = speed[c, s, k] * loss[s]
    now_j = (watts[c, s, k] + anyway_w) / now
    for step in range(2):
        to_s, to_k = _next(c, s, k, step, loss, sizes, speed)
        if to_s < 0:
            continue
        then = speed[c, to_s, to_k] * loss[to_s]
        faster = 1.0 - now / then
        n = gpus[c, to_s] - gpus[c, s]
        then_w = anyway_w + (0.0 if n <= slots else static_w * n)
        then_j = (watts[c, to_s, to_k] + then_w) / then
        costs = max(0.0, then_j / now_j - 1.0) + n / total
        heappush(heap, (-weight * faster / (costs + _SAME), i, step, s * speed.shape[2] + k))


@kernel(
    I1, F1, F1, F2, I1, I1, I1, I1, I1, I1, F1, FLOAT, INT, I1, I2, F3, F3, F1, F1, F1, I1, I1, BOOL
)  # fmt: skip
def _share(
    sort: Ints,
    work_s: Floats,
    factor: Floats,
    loss: Floats,
    pool: Ints,
    first: Ints,
    team: Ints,
    room: Ints,
    on: Ints,
    boot_gpus: Ints,
    boot_w: Floats,
    rest_w: float,
    node_gpus: int,
    sizes: Ints,
    gpus: Ints,
    speed: Floats,
    watts: Floats,
    idle_w: Floats,
    static_w: Floats,
    most: Floats,
    joules: Ints,
    of_team: Ints,
    thrifty: bool,
) -> tuple[Ints, Ints, Ints, Floats]:
    """For every row its size and cap (-1: none), why it has none, and the joules it still needs.

    *thrifty*: only steps that need no more joules. The GPUs of a node that is on draw watts, used or not:
    these are shared by the jobs as they are admitted, and GPUs that were idle come without. Joules of the
    whole cluster count what all nodes draw at rest until the last who runs has ended.
    """
    count = len(sort)
    caps = speed.shape[2]
    size = np.full(count, -1, dtype=np.int64)
    cap = np.full(count, -1, dtype=np.int64)
    reason = np.zeros(count, dtype=np.int64)
    weight = np.ones(count)
    anyway_w = np.zeros(count)  # its share of nodes and idle GPUs
    left_j = np.zeros(count)
    free = room.copy()
    admitted = 0
    for i in first:
        if pool[i] >= 0 and gpus[sort[i], 0] <= free[pool[i]]:
            free[pool[i]] -= gpus[sort[i], 0]
            admitted += gpus[sort[i], 0]
    free = room.copy()
    slots = -(-admitted // node_gpus) * node_gpus - admitted  # idle GPUs of nodes that are on
    total = float(max(1, room.sum()))
    used = np.zeros(len(most))
    more, best = np.zeros(5), np.zeros(5)  # see `_which`
    taken = np.zeros(len(room), dtype=np.int64)
    longest_s = second_s = 0.0  # until when somebody runs, and all others do, at most
    heap = [(0.0, 0, 0, 0)]
    heap.pop()

    for i in first:
        c, p = sort[i], pool[i]
        if p < 0:
            continue
        waits = free[p] < gpus[c, 0]
        share_w = (static_w[c] * (admitted + slots) + idle_w[c] * slots) / max(1, admitted) * gpus[c, 0]
        scarce = of_all = False  # joules
        for e in range(len(most)):
            scarce = scarce or (joules[e] == 1 and (of_team[e] < 0 or of_team[e] == team[i]))
            of_all = of_all or (joules[e] == 1 and of_team[e] < 0)
        best_j = np.inf
        # The fewest GPUs and the cheapest cap; where joules are scarce the cheapest of all.
        for s in range(sizes[c] if scarce else 1):
            n = gpus[c, s]
            if n > free[p] and not waits:
                break
            extra = n - gpus[c, 0]
            with_w = share_w + (0.0 if extra <= slots else static_w[c] * extra)
            for k in range(caps):
                drawn_w = watts[c, s, k] * factor[i]
                run_s = work_s[i] / (speed[c, s, k] * loss[i, s])
                more[2], more[4] = run_s * drawn_w, run_s * (drawn_w + with_w)
                if waits:  # what it will use is not for others to use
                    more[0], more[1], more[3] = 0.0, 0.0, more[4]
                else:
                    more[0] = drawn_w
                    more[1] = drawn_w - idle_w[c] * n
                    more[1] += _boot_w(n, taken[p], on[p], boot_gpus[p], boot_w[p])
                    more[3] = run_s * more[1] + rest_w * max(0.0, run_s - longest_s)
                needs_j = more[3] if of_all else more[4]
                cheaper = size[i] < 0 or needs_j < best_j * (1 - _SAME)
                if cheaper and _fits(team[i], more, used, most, joules, of_team, False):
                    best_j, size[i], cap[i] = needs_j, s, k
                    left_j[i], anyway_w[i] = more[4], with_w
                    best[:] = more
        s, k = size[i], cap[i]
        if s >= 0:
            _use(team[i], best, used, joules, of_team)
        if s < 0 or waits:
            reason[i] = _OVER_BUDGET if s < 0 else _OUTRANKED
            size[i] = cap[i] = -1
            continue
        run_s = work_s[i] / (speed[c, s, k] * loss[i, s])
        if run_s > longest_s:
            longest_s, second_s = run_s, longest_s
        else:
            second_s = max(second_s, run_s)
        free[p] -= gpus[c, s]
        taken[p] += gpus[c, s]
        if gpus[c, s] - gpus[c, 0] <= slots:
            slots -= gpus[c, s] - gpus[c, 0]
        weight[i] = max(1.0, work_s[i] / speed[c, 0, caps - 1]) ** -_SHORT_FIRST
        _offer(
            heap, i, c, s, k, weight[i], loss[i], sizes, gpus, speed, watts, anyway_w[i], slots, static_w[c],
            total
        )  # fmt: skip

    while len(heap) > 0:
        _, i, step, at = heappop(heap)
        c, s, k, p = sort[i], size[i], cap[i], pool[i]
        if at != s * caps + k:
            continue  # it has moved since
        to_s, to_k = _next(c, s, k, step, loss[i], sizes, speed)
        n = gpus[c, to_s] - gpus[c, s]
        if n > free[p]:
            continue
        now_w, then_w = watts[c, s, k] * factor[i], watts[c, to_s, to_k] * factor[i]
        now_s = work_s[i] / (speed[c, s, k] * loss[i, s])
        then_s = work_s[i] / (speed[c, to_s, to_k] * loss[i, to_s])
        share_w = anyway_w[i] + (0.0 if n <= slots else static_w[c] * n)
        then_j = then_s * (then_w + share_w)
        if thrifty and then_j > left_j[i] * (1 + _SAME):
            continue
        booted_w = _boot_w(n, taken[p], on[p], boot_gpus[p], boot_w[p])
        ends_s = max(second_s, then_s) if now_s >= longest_s else longest_s
        more[0] = then_w - now_w
        more[1] = then_w - now_w - idle_w[c] * n + booted_w
        more[2] = then_s * then_w - now_s * now_w
        more[3] = then_s * (then_w - idle_w[c] * gpus[c, to_s] + booted_w)
        more[3] += rest_w * (ends_s - longest_s) - now_s * (now_w - idle_w[c] * gpus[c, s])
        more[4] = then_j - left_j[i]
        if not _fits(team[i], more, used, most, joules, of_team, True):
            continue
        _use(team[i], more, used, joules, of_team)
        longest_s = ends_s
        size[i], cap[i] = to_s, to_k
        free[p] -= n
        taken[p] += n
        left_j[i], anyway_w[i] = then_j, share_w
        if n <= slots:
            slots -= n
        _offer(
            heap, i, c, to_s, to_k, weight[i], loss[i], sizes, gpus, speed, watts, anyway_w[i], slots,
            static_w[c], total,
        )  # fmt: skip
    return size, cap, reason, left_j
