"""Who runs, by number of GPUs alone: placers ask this first, and then look for the nodes."""

from __future__ import annotations

from typing import Literal, NamedTuple, NoReturn, get_args

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import ACCEPTS, HELD, JOB
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError, GrantedTwice, PlanError, UnknownJob, did_you_mean
from wattline.jit import B1, BOOL, F1, F2, I1, I2, INT, inner, kernel
from wattline.models.remaining import last_s

Backfill = Literal["none", "easy", "greedy"]
"""Who may overtake a job that does not fit."""

NO_ROOM, OUTRANKED = REASONS.index(Reason.NO_ROOM), REASONS.index(Reason.OUTRANKED)
TOO_BIG, NO_HOST = REASONS.index(Reason.TOO_BIG), REASONS.index(Reason.NO_HOST)
_HELD = REASONS.index(Reason.HELD)
_MODES: tuple[str, ...] = get_args(Backfill)
_NONE, _EASY, _GREEDY = range(3)
_NO_ENDS = np.empty(0)
_NOBODY = np.empty(0, dtype=np.int64)


FATE_ROWS = 4
LEADER, POOL, STAYS, REASON = range(FATE_ROWS)


class Chosen(NamedTuple):
    """Who runs. *fate* has one column per row of the queue, and its rows say:

    `LEADER` the row of the queue that leads its group, -1: the plan leaves it out; `POOL` the kind of
    GPU it runs on, -1: it waits; `STAYS` 1 if it leads a group that keeps its GPUs; `REASON` why it
    waits. It is one array because every array costs time on its way in and out of compiled code.
    """

    fate: Ints
    free: Ints  # GPUs per node that nobody holds who stays
    seeking: int  # how many leaders need a place
    waiting: int  # how many rows have a reason


def check_backfill(backfill: str) -> None:
    """Raise unless it is one of the modes of `choose`."""
    if backfill not in _MODES:
        raise ConfigError(
            f"backfill must be one of {', '.join(_MODES)}, got {backfill!r}",
            hint=did_you_mean(backfill, _MODES),
        )


def choose(
    plan: Plan, snapshot: Snapshot, models: Models, backfill: Backfill, barred: Ints = _NOBODY
) -> Chosen:
    """Walk through the plan and let those run for whom one kind has enough GPUs that are up.

    *backfill* says who may overtake a job that does not fit: `none` nobody; `greedy` everybody who
    fits; `easy` those who, by what the models say, do not delay the first job that does not fit
    (aggressive backfilling with one reservation; Lifka, JSSPP 1995). Under a plan that may stop
    running jobs nobody who overtakes can delay a job that goes first, so there `easy` reserves
    nothing. *barred* has, by row of the queue, a bit for each kind on which that job finds no place
    however many GPUs are free; empty: nobody is.
    """
    nodes = snapshot.nodes
    if plan.node is not None:
        raise PlanError("the plan names nodes, and this placer chooses them itself; pack does not")
    if plan.kind is not None:
        barred = _only(plan, plan.kind, barred, len(snapshot.queue))
    ends_s = _NO_ENDS
    while True:
        fate, free, seeking, waiting, needs_ends, bad = _choose(
            plan.row,
            plan.gpus,
            plan.group,
            _NOBODY if plan.reason is None else plan.reason,
            plan.keeps,
            snapshot.queue.block,
            snapshot.leases.block,
            snapshot.free,
            nodes.kind.codes,
            len(nodes.kind.names),
            nodes.gpus,
            snapshot.up,
            snapshot.wakes_s,
            _MODES.index(backfill),
            ends_s,
            barred,
        )
        if bad >= 0:
            _explain(plan, bad, snapshot)
        if not needs_ends:
            return Chosen(fate, free, seeking, waiting)
        ends_s = last_s(snapshot, models, plan)


def _only(plan: Plan, kind: Ints, barred: Ints, queued: int) -> Ints:
    """*barred*, and beside it all kinds but the one that the plan says."""
    others = np.zeros(queued, dtype=np.int64)
    good = (plan.row >= 0) & (plan.row < queued) & (kind >= 0)
    others[plan.row[good]] = ~(1 << kind[good])
    return others | barred if len(barred) else others


def check_entries(plan: Plan, snapshot: Snapshot) -> None:
    """Raise unless every entry of *plan* is of a job that waits or runs, with GPUs, and given once."""
    bad = _wrong(plan.row, plan.gpus, plan.group, len(snapshot.queue))
    if bad >= 0:
        _explain(plan, bad, snapshot)


def _explain(plan: Plan, at: int, snapshot: Snapshot) -> NoReturn:
    """Raise the error of a plan whose entry *at* cannot be."""
    row, group, queued = int(plan.row[at]), int(plan.group[at]), len(snapshot.queue)
    if not 0 <= row < queued:
        raise UnknownJob(f"a plan grants row {row} of a queue of {queued}")
    if plan.gpus[at] <= 0:
        raise PlanError(f"a plan grants {plan.gpus[at]} GPUs to row {row}")
    if np.count_nonzero(plan.row == row) > 1:
        raise GrantedTwice(f"a plan grants row {row} twice")
    raise PlanError(f"row {row} of a plan follows row {group}, which leads no group")


@inner
def _first_wrong(plan_row: Ints, plan_gpus: Ints, plan_group: Ints, queued: int) -> int:
    """The first entry of a plan that cannot be; -1: none."""
    leads = np.zeros(queued, dtype=np.int64)  # 0 not in the plan, 1 follows, 2 leads
    for p in range(len(plan_row)):
        i = plan_row[p]
        if i < 0 or i >= queued or plan_gpus[p] <= 0 or leads[i] != 0:
            return p
        leads[i] = 2 if plan_group[p] == i else 1
    for p in range(len(plan_row)):
        leader = plan_group[p]
        if leader != plan_row[p] and (leader < 0 or leader >= queued or leads[leader] != 2):
            return p
    return -1


@kernel(I1, I1, I1, INT)
def _wrong(plan_row: Ints, plan_gpus: Ints, plan_group: Ints, queued: int) -> int:
    return _first_wrong(plan_row, plan_gpus, plan_group, queued)


@inner
def _pool_of_rows(block: Floats, leases: Ints, node_kind: Ints) -> Ints:
    """For every row of the queue the kind of GPU it holds; -1: none."""
    pool = np.full(block.shape[1], -1, dtype=np.int64)
    i = 0
    for r in range(leases.shape[1]):
        while block[JOB, i] < leases[0, r]:
            i += 1
        pool[i] = node_kind[leases[2, r]]
    return pool


@inner
def _reservation(
    need: int, accepts: int, pool: Ints, granted: Ints, room: Ints, asleep: Ints, ends_s: Floats
) -> tuple[int, float, int]:
    """Where and in how many seconds *need* GPUs will be free, and how many more will be free then.

    Nodes that are switched off count as free: they will be switched on for who is next in line.
    """
    best, best_s, best_extra = -1, np.inf, 0
    chosen = np.flatnonzero(pool >= 0)
    for k in range(len(room)):
        if not (accepts >> k) & 1:
            continue
        free, when_s = room[k] + asleep[k], -np.inf
        while free < need:  # the next to end, one after the other: few are needed
            next_s = np.inf
            for i in chosen:
                if pool[i] == k and when_s < ends_s[i] < next_s:
                    next_s = ends_s[i]
            if next_s == np.inf:
                break
            for i in chosen:
                if pool[i] == k and ends_s[i] == next_s:
                    free += granted[i]
            when_s = next_s
        if free >= need and when_s < best_s:
            best, best_s, best_extra = k, when_s, free - need
    return best, best_s, best_extra


@inner
def _anybody_fits(start: int, plan_row: Ints, plan_gpus: Ints, block: Floats, room: Ints) -> bool:
    """Whether somebody from entry *start* of the plan on could run in what is left."""
    for p in range(start, len(plan_row)):
        for k in range(len(room)):
            if room[k] >= plan_gpus[p] and (int(block[ACCEPTS, plan_row[p]]) >> k) & 1:
                return True
    return False


@inner
def _walk(
    plan_row: Ints,
    plan_gpus: Ints,
    plan_group: Ints,
    keeps: bool,
    block: Floats,
    held_in: Ints,
    up_gpus: Ints,
    asleep_gpus: Ints,
    all_gpus: Ints,
    mode: int,
    ends_s: Floats,
    held_for: Ints,
    barred: Ints,
    fate: Ints,
) -> bool:
    """Write leader, pool and reason of everybody into *fate*.

    Answers whether an `easy` reservation is called for; the call is then repeated with *ends_s*.
    """
    queued = block.shape[1]
    pool, reason = fate[POOL], fate[REASON]
    fate[LEADER] = -1
    pool[:] = -1
    for i in range(queued):
        reason[i] = _HELD if len(held_for) == 0 else held_for[i]
    granted = np.zeros(queued, dtype=np.int64)
    room = up_gpus.copy()
    accepts = np.empty(queued, dtype=np.int64)  # by a leader: what all of its group accept
    for i in range(queued):
        accepts[i] = int(block[ACCEPTS, i])
    for p in range(len(plan_row)):
        accepts[plan_group[p]] &= accepts[plan_row[p]]
        fate[LEADER, plan_row[p]] = plan_group[p]
    reserves = mode == _EASY and keeps
    head = -1  # first row of the plan that does not fit
    head_pool = -1
    shadow_s, extra = np.inf, 0  # when the head can start; GPUs it leaves over then
    for turn in range(2 if keeps else 1):
        for p in range(len(plan_row)):
            i = plan_row[p]
            if plan_group[p] != i:
                continue  # goes where its leader goes
            may = accepts[i] if len(barred) == 0 else accepts[i] & ~barred[i]
            stays = held_in[i] >= 0 and block[HELD, i] == plan_gpus[p] and (may >> held_in[i]) & 1 == 1
            if keeps and stays != (turn == 0):
                continue
            need = plan_gpus[p]
            if head >= 0 and mode == _NONE:
                reason[i] = OUTRANKED
                continue
            where = -1
            if stays and room[held_in[i]] >= need:
                where = held_in[i]
            if where < 0:  # also who has to leave its kind
                for k in range(len(room)):
                    kept = reserves and k == head_pool and ends_s[i] > shadow_s and need > extra
                    if where < 0 and room[k] >= need and (may >> k) & 1 and not kept:
                        where = k
            if where >= 0:
                if head >= 0 and reserves and where == head_pool and not stays and ends_s[i] > shadow_s:
                    extra -= need
                room[where] -= need
                pool[i] = where
                granted[i] = need
                reason[i] = 0
                continue
            possible = False
            for k in range(len(room)):
                possible |= all_gpus[k] >= need and (accepts[i] >> k) & 1 == 1
            if not possible:
                reason[i] = TOO_BIG
            elif head >= 0:
                reason[i] = OUTRANKED
            else:
                reason[i] = NO_ROOM
                head = i
                if reserves and _anybody_fits(p + 1, plan_row, plan_gpus, block, room):
                    if len(ends_s) == 0:
                        return True
                    head_pool, shadow_s, extra = _reservation(
                        need, accepts[i], pool, granted, room, asleep_gpus, ends_s
                    )
    for p in range(len(plan_row)):
        leader = plan_group[p]
        if leader != plan_row[p]:
            pool[plan_row[p]] = pool[leader]
            reason[plan_row[p]] = reason[leader]
    return False


@inner
def _who_stays(
    plan_row: Ints,
    plan_gpus: Ints,
    block: Floats,
    held_in: Ints,
    leases: Ints,
    fate: Ints,
    free: Ints,
) -> int:
    """Leaders that keep kind and size keep their GPUs; the others give theirs back to *free*.

    Answers how many leaders need a place.
    """
    pool, stays = fate[POOL], fate[STAYS]
    stays[:] = 0
    seeking = 0
    for p in range(len(plan_row)):
        i = plan_row[p]
        if fate[LEADER, i] == i and pool[i] >= 0:
            stays[i] = pool[i] == held_in[i] and plan_gpus[p] == block[HELD, i]
            seeking += 1 - stays[i]
    i = 0
    for r in range(leases.shape[1]):
        while block[JOB, i] < leases[0, r]:
            i += 1
        if leases[0, r] != leases[1, r]:
            seeking += stays[i]
            stays[i] = 0  # it ran on the GPUs of somebody else
        elif stays[i] == 0:
            free[leases[2, r]] += leases[3, r]
    return seeking


@kernel(I1, I1, I1, I1, BOOL, F2, I2, I1, I1, INT, I1, B1, F1, INT, F1, I1)
def _choose(
    plan_row: Ints,
    plan_gpus: Ints,
    plan_group: Ints,
    held_for: Ints,
    keeps: bool,
    block: Floats,
    leases: Ints,
    free_gpus: Ints,
    node_kind: Ints,
    kinds: int,
    node_gpus: Ints,
    up: Bools,
    wakes_s: Floats,
    mode: int,
    ends_s: Floats,
    barred: Ints,
) -> tuple[Ints, Ints, int, int, bool, int]:
    free = free_gpus.copy()
    fate = np.empty((FATE_ROWS, block.shape[1]), dtype=np.int64)
    bad = _first_wrong(plan_row, plan_gpus, plan_group, block.shape[1])
    if bad >= 0:
        return fate, free, 0, 0, False, bad
    up_gpus = np.zeros(kinds, dtype=np.int64)
    asleep_gpus = np.zeros(kinds, dtype=np.int64)
    all_gpus = np.zeros(kinds, dtype=np.int64)
    for n in range(len(node_gpus)):
        all_gpus[node_kind[n]] += node_gpus[n]
        if up[n]:
            up_gpus[node_kind[n]] += node_gpus[n]
        elif wakes_s[n] > -np.inf:
            asleep_gpus[node_kind[n]] += node_gpus[n]
    held_in = _pool_of_rows(block, leases, node_kind)
    needs_ends = _walk(
        plan_row,
        plan_gpus,
        plan_group,
        keeps,
        block,
        held_in,
        up_gpus,
        asleep_gpus,
        all_gpus,
        mode,
        ends_s,
        held_for,
        barred,
        fate,
    )
    if needs_ends:
        return fate, free, 0, 0, needs_ends, bad
    seeking = _who_stays(plan_row, plan_gpus, block, held_in, leases, fate, free)
    waiting = 0
    for i in range(fate.shape[1]):
        waiting += fate[REASON, i] != 0
    return fate, free, seeking, waiting, needs_ends, bad
