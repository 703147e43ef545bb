"""Cores and memory as Synergy's published code shares them out, for comparison (Mohan et al., OSDI 2022).

Everybody is placed anew every *round_s*, server by server in their order, and may span servers. Storage is
not counted: in the published code it never binds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models
from wattline.core.queue import ACCEPTS, JOB
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError
from wattline.jit import B1, BOOL, F2, I1, I2, inner, kernel
from wattline.placement.lease_builder import write
from wattline.placement.selection import (
    LEADER,
    NO_HOST,
    POOL,
    REASON,
    STAYS,
    TOO_BIG,
    Backfill,
    check_backfill,
    choose,
)
from wattline.policy.stages.demand import demanded


@dataclass(frozen=True)
class Greedy:
    """All that a job demands of GPUs, cores and memory, on the first servers that have it, or nothing.

    GPUs stay idle where cores or memory have run out. What a job demands is what the plan says (the stage
    `demand`), or else the least that saturates it. Under a plan that keeps who runs, they stay where they
    are.
    """

    backfill: Backfill = "greedy"
    round_s: float = 300.0

    def __post_init__(self) -> None:
        check_backfill(self.backfill)
        if not self.round_s >= 1:
            raise ConfigError(f"round_s must be at least 1, got {self.round_s}")

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        """Leases for the plan, and a reason for everybody without."""
        placement = _placed(plan, snapshot, models, self.backfill, gives_way=False)
        return replace(placement, tick_s=snapshot.now_s + self.round_s)


@dataclass(frozen=True)
class TunePublished:
    """All that a job demands, else its proportional share, for which richer jobs fall back to theirs.

    Nobody has anything between the two, what becomes free is not given to others, and a job that falls
    back does so with all it has: see `Tune` for better. With *by_gpus* 1 large jobs are placed first.
    """

    backfill: Backfill = "greedy"
    round_s: float = 300.0
    by_gpus: int = 0

    def __post_init__(self) -> None:
        check_backfill(self.backfill)
        if not self.round_s >= 1:
            raise ConfigError(f"round_s must be at least 1, got {self.round_s}")

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        """Leases for the plan, and a reason for everybody without."""
        placement = _placed(plan, snapshot, models, self.backfill, gives_way=True, by_gpus=self.by_gpus > 0)
        return replace(placement, tick_s=snapshot.now_s + self.round_s)


def _placed(
    plan: Plan,
    snapshot: Snapshot,
    models: Models,
    backfill: Backfill,
    *,
    gives_way: bool,
    by_gpus: bool = False,
) -> Placement:
    nodes = snapshot.nodes
    chosen = choose(plan, snapshot, models, backfill)
    host = plan.host if plan.host is not None else demanded(plan, snapshot, models, 1.0)
    order = np.argsort(-plan.gpus, kind="stable") if by_gpus else np.arange(len(plan))
    seat_at, seats, fate, given = _settle(
        plan.row[order],
        plan.gpus[order],
        np.ascontiguousarray(host[:, order]),
        plan.keeps,
        gives_way,
        chosen.fate,
        snapshot.queue.block,
        snapshot.leases.block,
        snapshot.free,
        snapshot.up,
        nodes.kind.codes,
        nodes.host,
        nodes.share,
    )
    waiting = int(np.count_nonzero(fate[REASON]))
    return write(plan, snapshot, chosen._replace(fate=fate, waiting=waiting), (seat_at, seats), given)


@inner
def _fit(
    need: int,
    host: Ints,
    kind: int,
    free: Ints,
    left: Ints,
    node_kind: Ints,
    seats: Ints,
    at: int,
) -> int:
    """Seats from entry *at* on for *need* GPUs with *host* each, first node first; answers the entry after
    the last, or -1: they do not fit."""
    end = at
    for n in range(len(free)):
        if need == 0:
            break
        if node_kind[n] != kind or free[n] == 0:
            continue
        take = min(need, free[n])
        for h in range(2):
            if host[h] > 0:
                take = min(take, left[h, n] // host[h])
        if take > 0:
            seats[0, end], seats[1, end] = n, take
            end += 1
            need -= take
    if need > 0:
        return -1
    for s in range(at, end):
        free[seats[0, s]] -= seats[1, s]
        for h in range(2):
            left[h, seats[0, s]] -= seats[1, s] * host[h]
    return end


@inner
def _fall_back(
    n: int,
    wanted: Ints,
    rows: Ints,
    seat_at: Ints,
    seats: Ints,
    given: Ints,
    left: Ints,
    share: Ints,
) -> None:
    """Let those on node *n* fall back to their share, one by one, until *wanted* is left there.

    Who has fewest seats goes first, then who has most cores, then most memory.
    """
    short = np.zeros(2, dtype=np.int64)
    for h in range(2):
        short[h] = max(0, wanted[h] - left[h, n])
    asked = np.zeros(len(rows), dtype=np.bool_)
    while short[0] > 0 or short[1] > 0:
        best, best_at, best_gpus = -1, -1, 0
        for a in range(len(rows)):
            j = rows[a]
            gpus = 0
            for s in range(seat_at[0, j], seat_at[1, j] if not asked[a] else 0):
                if seats[0, s] == n:
                    gpus = seats[1, s]
            if gpus == 0:
                continue
            if best >= 0:
                more = (seat_at[1, best] - seat_at[0, best]) - (seat_at[1, j] - seat_at[0, j])
                for h in range(2):
                    if more == 0:
                        more = given[h, j] - given[h, best]
                if more <= 0:
                    continue
            best, best_at, best_gpus = j, a, gpus
        if best < 0:
            return
        asked[best_at] = True
        for h in range(2):
            back = given[h, best] - share[h, n]
            fits = True  # who had less than its share gets it, too, if it is there
            for s in range(seat_at[0, best], seat_at[1, best]):
                fits = fits and left[h, seats[0, s]] + seats[1, s] * back >= 0
            if not fits:
                continue
            short[h] = max(0, short[h] - best_gpus * back)
            for s in range(seat_at[0, best], seat_at[1, best]):
                left[h, seats[0, s]] += seats[1, s] * back
            given[h, best] = share[h, n]


@kernel(I1, I1, I2, BOOL, BOOL, I2, F2, I2, I1, B1, I1, I2, I2)
def _settle(
    rows: Ints,
    gpus: Ints,
    host: Ints,
    keeps: bool,
    gives_way: bool,
    chosen_fate: Ints,
    block: Floats,
    leases: Ints,
    free_gpus: Ints,
    up: Bools,
    node_kind: Ints,
    node_host: Ints,
    share: Ints,
) -> tuple[Ints, Ints, Ints, Ints]:
    queued = block.shape[1]
    fate = chosen_fate.copy()
    given = np.zeros((3, queued), dtype=np.int64)
    seat_at = np.zeros((2, queued), dtype=np.int64)
    most = 0
    for p in range(len(rows)):
        most += min(gpus[p], len(free_gpus))
    seats = np.empty((2, most + len(free_gpus)), dtype=np.int64)
    free, left = free_gpus.copy(), node_host.copy()
    for r in range(leases.shape[1]):
        if leases[0, r] == leases[1, r] and up[leases[2, r]]:
            free[leases[2, r]] += leases[3, r]
    at = 0
    if keeps and not gives_way:  # who runs stays as it is
        i = 0
        for r in range(leases.shape[1]):
            while block[JOB, i] < leases[0, r]:
                i += 1
            if leases[0, r] == leases[1, r] and fate[STAYS, i]:
                n = leases[2, r]
                free[n] -= leases[3, r]
                for h in range(3):
                    given[h, i] = leases[6 + h, r]
                    each = leases[6 + h, r] if leases[6 + h, r] > 0 else share[h, n]
                    left[h, n] -= leases[3, r] * each
    else:
        fate[STAYS] = 0
    for p in range(len(rows)):
        i = rows[p]
        if fate[LEADER, i] != i or fate[STAYS, i] or fate[REASON, i] == TOO_BIG:
            continue
        if gives_way and fate[POOL, i] < 0:
            continue
        seat_at[0, i] = at
        if not gives_way:  # whoever fits, however many go before it
            end = -1
            for kind in range(64):
                if end < 0 and (int(block[ACCEPTS, i]) >> kind) & 1:
                    end = _fit(gpus[p], host[:, p], kind, free, left, node_kind, seats, at)
                    fate[POOL, i] = kind
            if end < 0:
                fate[POOL, i] = -1
                fate[REASON, i] = NO_HOST if fate[REASON, i] == 0 else fate[REASON, i]
                continue
            fate[REASON, i] = 0
            seat_at[1, i] = at = end
            for h in range(2):
                given[h, i] = host[h, p]
            continue
        kind = fate[POOL, i]
        first = 0
        while node_kind[first] != kind:
            first += 1
        wanted = host[:, p].copy()
        end = _fit(gpus[p], wanted, kind, free, left, node_kind, seats, at)
        if end < 0:
            if wanted[0] > share[0, first] or wanted[1] > share[1, first]:
                wanted = share[:, first].copy()
                end = _fit(gpus[p], wanted, kind, free, left, node_kind, seats, at)
            if end < 0:
                need = gpus[p]
                whole = -1
                for n in range(len(free) - 1, -1, -1):
                    if gpus[p] > 1 and node_kind[n] == kind and free[n] >= gpus[p]:
                        whole = n
                for room in range(1, free.max() + 1):  # servers with the fewest free GPUs first
                    for n in range(len(free)):
                        is_next = n == whole or (whole < 0 and free[n] == room)
                        if need > 0 and node_kind[n] == kind and free[n] > 0 and is_next:
                            take = min(need, free[n])
                            _fall_back(n, take * wanted, rows[:p], seat_at, seats, given, left, share)
                            need -= take
                end = _fit(gpus[p], wanted, kind, free, left, node_kind, seats, at)
        if end < 0:
            fate[POOL, i], fate[REASON, i] = -1, NO_HOST
            seat_at[0, i] = seat_at[1, i] = at
            continue
        seat_at[1, i] = at = end
        for h in range(2):
            given[h, i] = wanted[h]
    for p in range(len(rows)):
        i = rows[p]
        if fate[LEADER, i] != i:
            fate[POOL, i], fate[REASON, i] = fate[POOL, fate[LEADER, i]], fate[REASON, fate[LEADER, i]]
    return seat_at, seats, fate, given
