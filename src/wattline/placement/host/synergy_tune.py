"""Cores, memory and storage by what they are worth to whom (after Mohan et al., OSDI 2022, "Synergy")."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models
from wattline.core.queue import ASKED, JOB
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError
from wattline.jit import F1, FLOAT, I1, I2, inner, kernel
from wattline.models.sensitivity import SPREADS, Needs, needs, of_job, saturating
from wattline.placement.host.host_split import divide, spread_out, swap
from wattline.placement.host.node_selection import find_seats, set_of, spread_seats
from wattline.placement.lease_builder import write
from wattline.placement.selection import LEADER, POOL, STAYS, Backfill, Chosen, check_backfill, choose


@dataclass(frozen=True)
class Tune:
    """GPUs as `Pack` gives them, and of each node's host to everybody what helps most there.

    A job goes where what it wants of the host is left over, or where it leaves over what others lack. Who
    runs stays, unless two jobs that change places make all together faster by *move* for each of them that
    has to restart; 1 is a job at its usual speed. On each node everybody first gets the least that makes it
    as fast as its proportional share; what is left goes in steps to whom it speeds up most for what the
    step takes. So nobody is ever slower than with its share, however many others are there. Jobs that share
    GPUs, or are spread over more nodes than they need, have their share. *keep* of its best speed is all
    that a job is taken to want when it is placed.
    *backfill* says who may overtake a job that does not fit; see `wattline.placement.selection.choose`.
    """

    backfill: Backfill = "easy"
    keep: float = 0.98
    move: float = 0.1

    def __post_init__(self) -> None:
        check_backfill(self.backfill)
        if not 0 < self.keep <= 1:
            raise ConfigError(f"keep must be above 0 and at most 1, got {self.keep}")
        if not self.move >= 0:
            raise ConfigError(f"move must be at least 0, got {self.move}")

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        """Leases for the plan, and a reason for everybody without."""
        chosen = choose(plan, snapshot, models, self.backfill)
        anywhere = np.full(len(snapshot.queue), -1, dtype=np.int64)
        return tuned(plan, snapshot, models, chosen, anywhere, self.keep, self.move)


def tuned(
    plan: Plan,
    snapshot: Snapshot,
    models: Models,
    chosen: Chosen,
    goes_to: Ints,
    keep: float,
    move: float,
) -> Placement:
    """The placement of those who were chosen; *goes_to* has a node for some rows of the queue, or -1."""
    nodes = snapshot.nodes
    known, sets, spread = needs_of(plan, snapshot, models)
    seat_at, seats, given, fate, unsettled = _tune(
        plan.row,
        plan.gpus,
        plan.group,
        chosen.fate,
        chosen.free,
        goes_to,
        move,
        snapshot.queue.block[JOB].astype(np.int64),
        snapshot.leases.block,
        snapshot.wakes_s,
        nodes.kind.codes,
        nodes.gpus,
        nodes.host,
        nodes.share,
        known.shape,
        sets,
        spread,
        known.first,
        saturating(known, keep),
        known.host,
        known.speed,
    )
    return write(plan, snapshot, chosen._replace(fate=fate), (seat_at, seats), given, unsettled)


def needs_of(plan: Plan, snapshot: Snapshot, models: Models) -> tuple[Needs, Ints, Ints]:
    """What is known of the jobs' needs, and the sets of each row of the queue: see `Needs`."""
    known, block = needs(models, snapshot.jobs, snapshot.nodes), snapshot.queue.block
    if (plan.gpus == block[ASKED, plan.row]).all():
        job = block[JOB].astype(np.int64)
        return known, known.sets.take(job, axis=0), known.spread.take(job, axis=0)
    return _resized(known, plan, snapshot, models)


def _resized(known: Needs, plan: Plan, snapshot: Snapshot, models: Models) -> tuple[Needs, Ints, Ints]:
    """Likewise where jobs have other GPUs than they asked for."""
    jobs, nodes, queue = snapshot.jobs, snapshot.nodes, snapshot.queue
    sets, spread = known.sets[queue.job].copy(), known.spread[queue.job].copy()
    alike: dict[tuple[int, int], Ints] = {}
    hosts, speeds, lengths = [known.host], [known.speed], np.diff(known.first).tolist()
    for row, gpus in zip(plan.row.tolist(), plan.gpus.tolist(), strict=True):
        job = int(queue.job[row])
        if gpus == jobs.gpus[job]:
            continue
        key = (int(known.sets[job, 0]), gpus)
        if key not in alike:
            parts = of_job(models, jobs, nodes, job, gpus)
            number = np.arange(len(lengths), len(lengths) + len(parts), dtype=np.int64)
            alike[key] = number.reshape(-1, SPREADS + 1)
            hosts += [host for host, _ in parts]
            speeds += [speed for _, speed in parts]
            lengths += [len(speed) for _, speed in parts]
        sets[row], spread[row] = alike[key][:, 0], alike[key][:, 1:].reshape(-1)
    more = replace(
        known,
        first=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
        host=np.ascontiguousarray(np.concatenate(hosts, axis=1)),
        speed=np.concatenate(speeds),
    )
    return more, sets, spread


@inner
def _places(
    plan_row: Ints,
    plan_gpus: Ints,
    alone: Bools,
    fate: Ints,
    free_gpus: Ints,
    goes_to: Ints,
    queue_job: Ints,
    leases: Ints,
    wakes_s: Floats,
    node_kind: Ints,
    node_gpus: Ints,
    node_host: Ints,
    share: Ints,
    shape: Ints,
    sets: Ints,
    spread: Ints,
    first: Ints,
    full: Ints,
    host: Ints,
    speed: Floats,
) -> tuple[Ints, Ints]:
    """Seats of everybody who runs, those who stay included; see `wattline.placement.lease_builder.Seats`."""
    queued, count = len(queue_job), len(node_kind)
    leader, pool, stays = fate[LEADER], fate[POOL], fate[STAYS]
    free, left = free_gpus.copy(), node_host.copy()
    most = 0
    for p in range(len(plan_row)):
        most += min(plan_gpus[p], count)
    seat_at = np.zeros((2, queued), dtype=np.int64)
    seats = np.empty((2, most + leases.shape[1]), dtype=np.int64)
    at = 0
    # Who stays, as if it sought a place and found its own.
    i = 0
    for r in range(leases.shape[1]):
        while queue_job[i] < leases[0, r]:
            i += 1
        if not stays[i] or leases[0, r] != leases[1, r]:
            continue
        n = leases[2, r]
        if seat_at[1, i] == 0:
            seat_at[0, i] = at
        seats[0, at], seats[1, at] = n, leases[3, r]
        at += 1
        seat_at[1, i] = at
        for h in range(3):
            each = host[h, full[sets[i, shape[n]]]] if alone[i] else share[h, n]
            left[h, n] -= leases[3, r] * each
    for p in range(len(plan_row)):
        i = plan_row[p]
        if leader[i] != i or pool[i] < 0 or stays[i]:
            continue
        n = 0
        while node_kind[n] != pool[i]:
            n += 1
        wants = host[:, full[sets[i, shape[n]]]] if alone[i] else share[:, n]
        seat_at[0, i] = at
        n = goes_to[i]
        if n >= 0 and free[n] >= plan_gpus[p]:
            free[n] -= plan_gpus[p]
            for h in range(3):
                left[h, n] -= plan_gpus[p] * wants[h]
            seats[0, at], seats[1, at] = n, plan_gpus[p]
            at += 1
            seat_at[1, i] = at
            continue
        end = -1
        if alone[i] and plan_gpus[p] > 1:
            end = spread_seats(
                plan_gpus[p], pool[i], sets[i], spread[i], free, left, node_kind, node_gpus, node_host, shape,
                first, host, speed, seats, at,
            )  # fmt: skip
        if end >= 0:
            at = seat_at[1, i] = end
            continue
        at = find_seats(
            plan_gpus[p],
            pool[i],
            wants,
            free,
            left,
            wakes_s,
            node_kind,
            node_host,
            share,
            seats,
            at,
        )
        seat_at[1, i] = at
    return seat_at, seats


@inner
def _shares(
    plan_row: Ints,
    alone: Bools,
    fate: Ints,
    seat_at: Ints,
    seats: Ints,
    move: float,
    node_kind: Ints,
    node_gpus: Ints,
    node_host: Ints,
    share: Ints,
    shape: Ints,
    sets: Ints,
    spread: Ints,
    first: Ints,
    host: Ints,
    speed: Floats,
) -> tuple[Ints, bool]:
    """What each GPU of a leader has of the host, and whether somebody could use more.

    Jobs may change places: then their seats are others, and they do not stay.
    """
    queued, count = fate.shape[1], len(node_kind)
    leader, pool, stays = fate[LEADER], fate[POOL], fate[STAYS]
    own = np.full(queued, -1, dtype=np.int64)  # the set of a leader where it is; -1: it has its share
    for i in range(queued):
        if leader[i] == i and pool[i] >= 0 and alone[i]:
            own[i] = set_of(seat_at[:, i], seats, node_gpus, shape, sets[i], spread[i])
    given = np.zeros((3, queued), dtype=np.int64)
    left = node_host.copy()
    on = np.zeros(count + 1, dtype=np.int64)  # tenants that are on one node only, node after node
    for i in range(queued):
        if leader[i] == i and pool[i] >= 0:
            for a in range(seat_at[0, i], seat_at[1, i]):
                n = seats[0, a]
                on[n + 1] += own[i] >= 0 and seat_at[1, i] == seat_at[0, i] + 1
                for h in range(3):
                    left[h, n] -= seats[1, a] * (host[h, first[own[i]]] if own[i] >= 0 else share[h, n])
    for n in range(count):
        on[n + 1] += on[n]
    unsettled = False
    for p in range(len(plan_row)):  # who spans nodes, because it needs something of all of them at once
        i = plan_row[p]
        if leader[i] == i and pool[i] >= 0 and own[i] >= 0 and seat_at[1, i] > seat_at[0, i] + 1:
            best = spread_out(
                first[own[i]], first[own[i] + 1], seat_at[:, i], seats, left, node_host, host, speed
            )
            unsettled = unsettled or speed[best] < speed[first[own[i] + 1] - 1]
            for h in range(3):
                given[h, i] = host[h, best]
    for i in range(queued):
        if leader[i] == i and pool[i] >= 0 and own[i] >= 0 and seat_at[1, i] == seat_at[0, i] + 1:
            for h in range(3):
                left[h, seats[0, seat_at[0, i]]] += seats[1, seat_at[0, i]] * host[h, first[own[i]]]
    spare = left.copy()  # for tenants
    filled = on.copy()
    tenants, gpus_on = np.empty(on[count], dtype=np.int64), np.empty(on[count], dtype=np.int64)
    point, runs = np.empty(on[count], dtype=np.int64), np.empty(on[count], dtype=np.bool_)
    for i in range(queued):
        if leader[i] == i and pool[i] >= 0 and own[i] >= 0 and seat_at[1, i] == seat_at[0, i] + 1:
            n = seats[0, seat_at[0, i]]
            tenants[filled[n]], gpus_on[filled[n]] = i, seats[1, seat_at[0, i]]
            runs[filled[n]] = stays[i]
            filled[n] += 1
    worth = np.empty(count)
    for _ in range(on[count] + 1):
        for n in range(count):
            left[:, n] = spare[:, n]
            worth[n] = divide(
                tenants[on[n] :],
                gpus_on[on[n] :],
                on[n + 1] - on[n],
                sets[:, shape[n]],
                left[:, n],
                node_host[:, n],
                first,
                host,
                speed,
                point[on[n] :],
            )
        if not swap(
            on,
            tenants,
            gpus_on,
            point,
            worth,
            runs,
            move,
            spare,
            left,
            node_kind,
            node_host,
            shape,
            sets,
            first,
            host,
            speed,
        ):
            break
    for n in range(count):
        for a in range(on[n], on[n + 1]):
            i = tenants[a]
            seat = seat_at[0, i]
            if seats[0, seat] != n:
                seats[0, seat], stays[i] = n, 0
            unsettled = unsettled or speed[point[a]] < speed[first[sets[i, shape[n]] + 1] - 1]
            for h in range(3):
                given[h, i] = host[h, point[a]]
    return given, unsettled


@kernel(I1, I1, I1, I2, I1, I1, FLOAT, I1, I2, F1, I1, I1, I2, I2, I1, I2, I2, I1, I1, I2, F1)
def _tune(
    plan_row: Ints,
    plan_gpus: Ints,
    plan_group: Ints,
    chosen_fate: Ints,
    free_gpus: Ints,
    goes_to: Ints,
    move: float,
    queue_job: Ints,
    leases: Ints,
    wakes_s: Floats,
    node_kind: Ints,
    node_gpus: Ints,
    node_host: Ints,
    share: Ints,
    shape: Ints,
    sets: Ints,
    spread: Ints,
    first: Ints,
    full: Ints,
    host: Ints,
    speed: Floats,
) -> tuple[Ints, Ints, Ints, Ints, bool]:
    fate = chosen_fate.copy()
    alone = np.ones(len(queue_job), dtype=np.bool_)  # by leader: nobody is on its GPUs with it
    for p in range(len(plan_row)):
        if plan_group[p] != plan_row[p]:
            alone[plan_group[p]] = False
    seat_at, seats = _places(
        plan_row, plan_gpus, alone, fate, free_gpus, goes_to, queue_job, leases, wakes_s,
        node_kind, node_gpus, node_host, share, shape, sets, spread, first, full, host, speed,
    )  # fmt: skip
    given, unsettled = _shares(
        plan_row, alone, fate, seat_at, seats, move,
        node_kind, node_gpus, node_host, share, shape, sets, spread, first, host, speed,
    )  # fmt: skip
    return seat_at, seats, given, fate, unsettled
