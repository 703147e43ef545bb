"""Which GPUs: best fit, on the fewest nodes, and nobody who stays is moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn

import numpy as np

from wattline.errors import ConfigError, GrantedTwice, PlanError, UnknownJob
from wattline.kernel import B1, BOOL, F1, F2, I1, I2, INT, inner, kernel
from wattline.model.remaining import remaining_s
from wattline.table import Bools, Floats, Ints
from wattline.types import (
    ACCEPTS,
    HELD,
    JOB,
    LEASE_ROWS,
    REASONS,
    Leases,
    Models,
    Placement,
    Plan,
    Reason,
    Snapshot,
)

_BACKFILL = ("none", "easy", "greedy")
_NO_ROOM, _OUTRANKED, _TOO_BIG, _HELD = (
    REASONS.index(reason) for reason in (Reason.NO_ROOM, Reason.OUTRANKED, Reason.TOO_BIG, Reason.HELD)
)
_NONE, _EASY, _GREEDY = range(3)
_NO_ENDS = np.empty(0)
_NOBODY = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Pack:
    """All GPUs of a job or none, on one GPU kind; the node with the least room that is enough.

    A job that fits on no single node takes the fewest nodes that hold it. A job that keeps running
    keeps its GPUs. *backfill* says who may overtake a job that does not fit: `none` nobody;
    `greedy` everybody who fits; `easy` those who, by what the models say, do not delay the first
    job that does not fit (aggressive backfilling with one reservation; Lifka, JSSPP 1995). Under a
    plan that may stop running jobs nobody who overtakes can delay a job that goes first, so there
    `easy` reserves nothing.
    """

    backfill: Literal["none", "easy", "greedy"] = "easy"

    def __post_init__(self) -> None:
        if self.backfill not in _BACKFILL:
            raise ConfigError(f"backfill must be one of {', '.join(_BACKFILL)}, got {self.backfill!r}")

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        """Leases for the plan, and a reason for everybody without."""
        nodes, leases = snapshot.nodes, snapshot.leases
        ends_s = _NO_ENDS
        while True:
            placed, changed, reason, waiting, needs_ends, bad = _pack(
                plan.row,
                plan.gpus,
                plan.group,
                _NOBODY if plan.cap_w is None else plan.cap_w,
                _NOBODY if plan.batch is None else plan.batch,
                _NOBODY if plan.reason is None else plan.reason,
                plan.keeps,
                snapshot.queue.block,
                leases.block,
                snapshot.free,
                nodes.kind.codes,
                len(nodes.kind.names),
                nodes.gpus,
                snapshot.up,
                _BACKFILL.index(self.backfill),
                ends_s,
            )
            if bad >= 0:
                _explain(plan, bad, snapshot)
            if not needs_ends:
                return Placement(Leases(placed) if changed else leases, reason, waiting)
            ends_s = remaining_s(snapshot, models)


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
        if plan_group[p] != plan_row[p]:
            if plan_group[p] < 0 or plan_group[p] >= queued or leads[plan_group[p]] != 2:
                return p
    return -1


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
    need: int, accepts: int, pool: Ints, granted: Ints, room: Ints, ends_s: Floats
) -> tuple[int, float, int]:
    """Where and in how many seconds *need* GPUs will be free, and how many more will be free then."""
    best, best_s, best_extra = -1, np.inf, 0
    chosen = np.flatnonzero(pool >= 0)
    for k in range(len(room)):
        if not (accepts >> k) & 1:
            continue
        free, when_s = room[k], -np.inf
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
def _choose(
    plan_row: Ints,
    plan_gpus: Ints,
    plan_group: Ints,
    keeps: bool,
    block: Floats,
    held_in: Ints,
    up_gpus: Ints,
    all_gpus: Ints,
    mode: int,
    ends_s: Floats,
    held_for: Ints,
) -> tuple[Ints, Ints, bool]:
    """By number of GPUs alone: for every row of the queue the kind it runs on or -1, and the reason.

    Also whether an `easy` reservation is called for; the call is then repeated with *ends_s*.
    """
    queued = block.shape[1]
    pool = np.full(queued, -1, dtype=np.int64)
    reason = np.full(queued, _HELD, dtype=np.int64) if len(held_for) == 0 else held_for.copy()
    granted = np.zeros(queued, dtype=np.int64)
    room = up_gpus.copy()
    accepts = np.empty(queued, dtype=np.int64)  # by a leader: what all of its group accept
    for i in range(queued):
        accepts[i] = int(block[ACCEPTS, i])
    for p in range(len(plan_row)):
        accepts[plan_group[p]] &= accepts[plan_row[p]]
    reserves = mode == _EASY and keeps
    head = -1  # first row of the plan that does not fit
    head_pool = -1
    shadow_s, extra = np.inf, 0  # when the head can start; GPUs it leaves over then
    for turn in range(2 if keeps else 1):
        for p in range(len(plan_row)):
            i = plan_row[p]
            if plan_group[p] != i:
                continue  # goes where its leader goes
            stays = held_in[i] >= 0 and block[HELD, i] == plan_gpus[p]
            if keeps and stays != (turn == 0):
                continue
            need = plan_gpus[p]
            if head >= 0 and mode == _NONE:
                reason[i] = _OUTRANKED
                continue
            where = -1
            if stays and room[held_in[i]] >= need:
                where = held_in[i]
            if where < 0:  # also who has to leave its kind
                for k in range(len(room)):
                    if where < 0 and room[k] >= need and (accepts[i] >> k) & 1:
                        if head >= 0 and reserves and k == head_pool:
                            if ends_s[i] > shadow_s and need > extra:
                                continue
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
                reason[i] = _TOO_BIG
            elif head >= 0:
                reason[i] = _OUTRANKED
            else:
                reason[i] = _NO_ROOM
                head = i
                if reserves and _anybody_fits(p + 1, plan_row, plan_gpus, block, room):
                    if len(ends_s) == 0:
                        return pool, reason, True
                    head_pool, shadow_s, extra = _reservation(need, accepts[i], pool, granted, room, ends_s)
    for p in range(len(plan_row)):
        leader = plan_group[p]
        if leader != plan_row[p]:
            pool[plan_row[p]] = pool[leader]
            reason[plan_row[p]] = reason[leader]
    return pool, reason, False


@inner
def _seat(
    left: int, kind: int, free: Ints, node_kind: Ints, span_node: Ints, span_gpus: Ints, at: int
) -> int:
    """Take *left* GPUs from *free*, note them from entry *at* on; answers the entry after the last."""
    start = at
    while left > 0:
        # The tightest node that holds all that is left, else the one with most room.
        tight, wide = -1, -1
        for n in range(len(free)):
            if node_kind[n] == kind and free[n] > 0:
                if free[n] >= left and (tight < 0 or free[n] < free[tight]):
                    tight = n
                if wide < 0 or free[n] > free[wide]:
                    wide = n
        n = tight if tight >= 0 else wide
        take = min(left, free[n])
        free[n] -= take
        left -= take
        span_node[at] = n
        span_gpus[at] = take
        at += 1
    for a in range(start + 1, at):  # leases list nodes in ascending order
        b = a
        while b > start and span_node[b - 1] > span_node[b]:
            span_node[b - 1], span_node[b] = span_node[b], span_node[b - 1]
            span_gpus[b - 1], span_gpus[b] = span_gpus[b], span_gpus[b - 1]
            b -= 1
    return at


@inner
def _realise(
    plan_row: Ints,
    plan_gpus: Ints,
    plan_group: Ints,
    plan_cap_w: Ints,
    plan_batch: Ints,
    pool: Ints,
    block: Floats,
    held_in: Ints,
    leases: Ints,
    free_gpus: Ints,
    node_kind: Ints,
) -> tuple[Ints, bool]:
    """Nodes for everybody who was chosen."""
    queued = block.shape[1]
    leader = np.full(queued, -1, dtype=np.int64)
    need = np.zeros(queued, dtype=np.int64)
    cap_w = np.zeros(queued, dtype=np.int64)
    batch = np.zeros(queued, dtype=np.int64)
    for p in range(len(plan_row)):
        leader[plan_row[p]] = plan_group[p]
        need[plan_row[p]] = plan_gpus[p]
        if len(plan_cap_w) > 0:
            cap_w[plan_row[p]] = plan_cap_w[p]
        if len(plan_batch) > 0:
            batch[plan_row[p]] = plan_batch[p]

    # Old leases by row of the queue; a leader that keeps kind and size keeps its GPUs.
    first = np.zeros(queued + 1, dtype=np.int64)
    r = 0
    for i in range(queued):
        first[i] = r
        while r < leases.shape[1] and leases[0, r] == block[JOB, i]:
            r += 1
    first[queued] = r
    free = free_gpus.copy()
    stays = np.zeros(queued, dtype=np.bool_)
    for i in range(queued):
        if first[i] == first[i + 1]:
            continue
        led = leases[1, first[i]] == leases[0, first[i]]
        stays[i] = led and leader[i] == i and pool[i] == held_in[i] and need[i] == block[HELD, i]
        if led and not stays[i]:
            for r in range(first[i], first[i + 1]):
                free[leases[2, r]] += leases[3, r]

    # New places, in the order of the plan.
    new_at = np.zeros(queued, dtype=np.int64)
    new_len = np.zeros(queued, dtype=np.int64)
    spans = 0  # at most one node per GPU, and each node at most once per job
    for i in range(queued):
        if leader[i] == i and pool[i] >= 0 and not stays[i]:
            spans += min(need[i], len(free))
    new_node = np.empty(spans, dtype=np.int64)
    new_gpus = np.empty(spans, dtype=np.int64)
    used = 0
    for p in range(len(plan_row)):
        i = plan_row[p]
        if leader[i] != i or pool[i] < 0 or stays[i]:
            continue
        new_at[i] = used
        used = _seat(need[i], pool[i], free, node_kind, new_node, new_gpus, used)
        new_len[i] = used - new_at[i]

    rows = 0
    for i in range(queued):
        if pool[i] >= 0:
            lead = leader[i]
            rows += first[lead + 1] - first[lead] if stays[lead] else new_len[lead]
    placed = np.empty((LEASE_ROWS, rows), dtype=np.int64)
    at = 0
    for i in range(queued):
        if pool[i] < 0:
            continue
        lead = leader[i]
        length = first[lead + 1] - first[lead] if stays[lead] else new_len[lead]
        for s in range(length):
            placed[0, at] = int(block[JOB, i])
            placed[1, at] = int(block[JOB, lead])
            if stays[lead]:
                placed[2, at] = leases[2, first[lead] + s]
                placed[3, at] = leases[3, first[lead] + s]
            else:
                placed[2, at] = new_node[new_at[lead] + s]
                placed[3, at] = new_gpus[new_at[lead] + s]
            placed[4, at] = cap_w[lead]
            placed[5, at] = batch[lead]
            at += 1
    changed = rows != leases.shape[1]
    for r in range(rows):
        if changed:
            break
        for c in range(LEASE_ROWS):
            changed = changed or placed[c, r] != leases[c, r]
    return placed, changed


@kernel(I1, I1, I1, I1, I1, I1, BOOL, F2, I2, I1, I1, INT, I1, B1, INT, F1)
def _pack(
    plan_row: Ints,
    plan_gpus: Ints,
    plan_group: Ints,
    plan_cap_w: Ints,
    plan_batch: Ints,
    held_for: Ints,
    keeps: bool,
    block: Floats,
    leases: Ints,
    free: Ints,
    node_kind: Ints,
    kinds: int,
    node_gpus: Ints,
    up: Bools,
    mode: int,
    ends_s: Floats,
) -> tuple[Ints, bool, Ints, int, bool, int]:
    bad = _first_wrong(plan_row, plan_gpus, plan_group, block.shape[1])
    if bad >= 0:
        return leases.copy(), False, np.zeros(0, dtype=np.int64), 0, False, bad
    up_gpus = np.zeros(kinds, dtype=np.int64)
    all_gpus = np.zeros(kinds, dtype=np.int64)
    for n in range(len(node_gpus)):
        all_gpus[node_kind[n]] += node_gpus[n]
        if up[n]:
            up_gpus[node_kind[n]] += node_gpus[n]
    held_in = _pool_of_rows(block, leases, node_kind)
    pool, reason, needs_ends = _choose(
        plan_row, plan_gpus, plan_group, keeps, block, held_in, up_gpus, all_gpus, mode, ends_s, held_for
    )
    if needs_ends:
        return leases.copy(), False, reason, 0, needs_ends, bad
    placed, changed = _realise(
        plan_row,
        plan_gpus,
        plan_group,
        plan_cap_w,
        plan_batch,
        pool,
        block,
        held_in,
        leases,
        free,
        node_kind,
    )
    waiting = 0
    for i in range(len(reason)):
        waiting += reason[i] != 0
    return placed, changed, reason, waiting, needs_ends, bad
