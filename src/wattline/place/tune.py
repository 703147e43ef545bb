"""Cores, memory and storage by what they are worth to whom (after Mohan et al., OSDI 2022, "Synergy")."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wattline.errors import ConfigError
from wattline.kernel import F1, FLOAT, I1, I2, inner, kernel
from wattline.model.needs import SPREADS, Needs, needs, of_job, saturating
from wattline.place.choose import LEADER, POOL, STAYS, Backfill, Chosen, check_backfill, choose
from wattline.place.write import write
from wattline.table import Bools, Floats, Ints
from wattline.types import JOB, Models, Placement, Plan, Snapshot

_CLEARLY = 1.05  # times as fast is worth being on more nodes
_MUCH = 100.0  # better than any other node is one that has all


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
    *backfill* says who may overtake a job that does not fit; see `wattline.place.choose.choose`.
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
    placement = write(plan, snapshot, chosen._replace(fate=fate), (seat_at, seats), given)
    return replace(placement, unsettled=unsettled)


def needs_of(plan: Plan, snapshot: Snapshot, models: Models) -> tuple[Needs, Ints, Ints]:
    """What is known of the jobs' needs, and the sets of each row of the queue: see `Needs`."""
    known = needs(models, snapshot.jobs, snapshot.nodes)
    job = snapshot.queue.job
    if (plan.gpus == snapshot.queue.gpus[plan.row]).all():
        return known, known.sets[job], known.spread[job]
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
def _lack(free: int, left: Ints, cap: Ints, share: Ints) -> float:
    """How much of a node's host the GPUs that are free there miss, if each of them will want its share."""
    lack = 0.0
    for h in range(len(cap)):
        if cap[h] > 0:
            lack += max(0.0, float(free * share[h] - left[h])) / cap[h]
    return lack


@inner
def _best_node(
    need: int,
    kind: int,
    wants: Ints,
    free: Ints,
    left: Ints,
    wakes_s: Floats,
    node_kind: Ints,
    node_host: Ints,
    share: Ints,
) -> int:
    """The node with *need* free GPUs and as much of the host as the job wants, and least more of it.

    Where nobody has that, the one on which others lack least, or profit most, if the job goes there. Of
    equals the one with fewest free GPUs, then the one that is up first; -1: none has as many.
    """
    best, best_more, after = -1, 0.0, np.empty(3, dtype=np.int64)
    for n in range(len(free)):
        if node_kind[n] != kind or free[n] < need:
            continue
        for h in range(3):
            after[h] = left[h, n] - need * wants[h]
        fits, over = True, 0.0
        for h in range(3):
            if node_host[h, n] > 0:
                fits = fits and after[h] >= 0
                over += after[h] / node_host[h, n]
        if fits:
            more = over - _MUCH
        else:
            more = _lack(free[n] - need, after, node_host[:, n], share[:, n])
            more -= _lack(free[n], left[:, n], node_host[:, n], share[:, n])
        if best >= 0:
            if more > best_more + 1e-9:
                continue
            same = more > best_more - 1e-9
            if same and (free[n] > free[best] or (free[n] == free[best] and wakes_s[n] >= wakes_s[best])):
                continue
        best, best_more = n, more
    return best


@inner
def _seat(
    i: int,
    need: int,
    kind: int,
    wants: Ints,
    free: Ints,
    left: Ints,
    wakes_s: Floats,
    node_kind: Ints,
    node_host: Ints,
    share: Ints,
    seats: Ints,
    at: int,
) -> int:
    """Seats for *need* GPUs: one node, or else the fewest; answers the entry after the last."""
    start = at
    while need > 0:
        n = _best_node(need, kind, wants, free, left, wakes_s, node_kind, node_host, share)
        if n < 0:  # it spans nodes: the one with most room first
            for m in range(len(free)):
                if node_kind[m] == kind and (n < 0 or free[m] > free[n]):
                    n = m
        take = min(need, free[n])
        free[n] -= take
        need -= take
        for h in range(3):
            left[h, n] -= take * wants[h]
        seats[0, at], seats[1, at] = n, take
        at += 1
    for a in range(start + 1, at):  # leases list nodes in ascending order
        b = a
        while b > start and seats[0, b - 1] > seats[0, b]:
            for c in range(2):
                seats[c, b - 1], seats[c, b] = seats[c, b], seats[c, b - 1]
            b -= 1
    return at


@inner
def _fastest(
    gpus_on: Ints, on: Ints, count: int, s: int, left: Ints, cap: Ints, first: Ints, host: Ints, speed: Floats
) -> int:
    """The fastest point of set *s* for which the first *count* nodes *on* have enough left; -1: none."""
    best = -1
    for p in range(first[s], first[s + 1]):
        fits = best < 0 or speed[p] > speed[best]
        for a in range(count):
            for h in range(3):
                fits = fits and (cap[h, on[a]] == 0 or gpus_on[a] * host[h, p] <= left[h, on[a]])
        if fits:
            best = p
    return best


@inner
def _spread_seats(
    need: int,
    kind: int,
    sets: Ints,
    spread: Ints,
    free: Ints,
    left: Ints,
    node_kind: Ints,
    node_gpus: Ints,
    node_host: Ints,
    shape: Ints,
    first: Ints,
    host: Ints,
    speed: Floats,
    seats: Ints,
    at: int,
) -> int:
    """Seats on more nodes than a job needs, if with more of their hosts it is clearly faster there.

    Answers the entry after the last; -1: it is better off on one node, or cannot be on one.
    """
    on, gpus_on = np.empty(SPREADS + 1, dtype=np.int64), np.empty(SPREADS + 1, dtype=np.int64)
    alone = best_p = -1
    for n in range(len(free)):
        if node_kind[n] == kind and free[n] >= need:
            on[0], gpus_on[0] = n, need
            p = _fastest(gpus_on, on, 1, sets[shape[n]], left, node_host, first, host, speed)
            alone = max(alone, 0)
            if p >= 0 and (best_p < 0 or speed[p] > speed[best_p]):
                best_p = p
    if alone < 0 or (best_p >= 0 and best_p == first[sets[shape[on[0]]] + 1] - 1):
        return -1
    target = _CLEARLY * (speed[best_p] if best_p >= 0 else 1.0)
    best_more, found = 0, -1
    for more in range(1, min(SPREADS, need - 1) + 1):
        count = 0
        while count <= more:  # the nodes with most cores left, all of one shape
            next_n = -1
            for n in range(len(free)):
                taken = node_kind[n] != kind or free[n] == 0 or (count > 0 and shape[n] != shape[on[0]])
                for a in range(count):
                    taken = taken or on[a] == n
                if not taken and (next_n < 0 or left[0, n] > left[0, next_n]):
                    next_n = n
            if next_n < 0:
                break
            on[count] = next_n
            count += 1
        rest = need
        for a in range(count):
            gpus_on[a] = min(free[on[a]], -(-rest // (count - a)))
            rest -= gpus_on[a]
        if count <= more or rest > 0:
            continue
        p = _fastest(
            gpus_on, on, count, spread[SPREADS * shape[on[0]] + more - 1], left, node_host, first, host, speed
        )
        if p >= 0 and speed[p] > target:
            target, best_more, found = speed[p], more, p
            for a in range(count):
                seats[0, at + a], seats[1, at + a] = on[a], gpus_on[a]
    if found < 0:
        return -1
    end = at + best_more + 1
    for a in range(at, end):
        free[seats[0, a]] -= seats[1, a]
        for h in range(3):
            left[h, seats[0, a]] -= seats[1, a] * host[h, found]
    for a in range(at + 1, end):  # leases list nodes in ascending order
        b = a
        while b > at and seats[0, b - 1] > seats[0, b]:
            for c in range(2):
                seats[c, b - 1], seats[c, b] = seats[c, b], seats[c, b - 1]
            b -= 1
    return end


@inner
def _set_of(seat_at: Ints, seats: Ints, node_gpus: Ints, shape: Ints, sets: Ints, spread: Ints) -> int:
    """The set of a job where it is; -1: on nodes of several shapes, or on too many, nothing is known."""
    n, gpus = seats[0, seat_at[0]], 0
    for a in range(seat_at[0], seat_at[1]):
        gpus += seats[1, a]
        if shape[seats[0, a]] != shape[n]:
            return -1
    more = (seat_at[1] - seat_at[0]) - -(-gpus // node_gpus[n])
    if more > SPREADS:
        return -1
    return int(sets[shape[n]] if more == 0 else spread[SPREADS * shape[n] + more - 1])


@inner
def _divide(
    tenants: Ints,
    gpus_on: Ints,
    count: int,
    node_sets: Ints,
    left: Ints,
    cap: Ints,
    first: Ints,
    host: Ints,
    speed: Floats,
    point: Ints,
) -> float:
    """Share what is *left* of one node out to its first *count* tenants; answers the sum of their speeds.

    First everybody gets the least that makes it as fast as its share, then who gains most for what it
    takes is given the step that does so, as long as there is one. Writes the *point* of each.
    """
    for a in range(count):
        point[a] = first[node_sets[tenants[a]]]
        for h in range(3):
            left[h] -= gpus_on[a] * host[h, point[a]]
    while True:
        best, best_point, best_worth = -1, -1, 0.0  # the first to gain anything is better than nobody
        for a in range(count):
            for p in range(point[a] + 1, first[node_sets[tenants[a]] + 1]):
                gain = speed[p] - speed[point[a]]
                if gain <= 1e-9:
                    continue
                cost, fits = 0.0, True
                for h in range(3):
                    more = gpus_on[a] * (host[h, p] - host[h, point[a]])
                    if cap[h] > 0 and more > 0:
                        fits = fits and more <= left[h]
                        cost = max(cost, more / max(1, left[h]))
                worth = gain / max(cost, 1e-9)
                if not fits or worth < best_worth * (1 - 1e-9):
                    continue
                if worth <= best_worth * (1 + 1e-9) and speed[point[a]] >= speed[point[best]]:
                    continue  # of equals the slowest
                best, best_point, best_worth = a, p, worth
        if best < 0:
            break
        for h in range(3):
            left[h] -= gpus_on[best] * (host[h, best_point] - host[h, point[best]])
        point[best] = best_point
    total = 0.0
    for a in range(count):
        total += speed[point[a]]
    return total


@inner
def _has_twin(a: int, start: int, tenants: Ints, runs: Bools, node_sets: Ints) -> bool:
    """Whether one of the tenants before *a* on its node is like it, so that trying both is vain."""
    twin = False
    for c in range(start, a):
        twin = twin or (node_sets[tenants[c]] == node_sets[tenants[a]] and runs[c] == runs[a])
    return twin


@inner
def _may_gain(
    a: int,
    b: int,
    gpus: int,
    sets_a: int,
    left_b: Ints,
    cap_b: Ints,
    point: Ints,
    first: Ints,
    host: Ints,
    speed: Floats,
) -> bool:
    """Whether tenant *a* could be faster in the place of *b*: the rest may still be in the way."""
    for p in range(point[a] + 1, first[sets_a + 1]):
        fits = speed[p] > speed[point[a]] + 1e-9
        for h in range(3):
            fits = fits and (cap_b[h] == 0 or gpus * host[h, p] <= left_b[h] + gpus * host[h, point[b]])
        if fits:
            return True
    return False


@inner
def _swap(
    on: Ints,
    tenants: Ints,
    gpus_on: Ints,
    point: Ints,
    worth: Floats,
    runs: Bools,
    move: float,
    spare: Ints,
    left: Ints,
    node_kind: Ints,
    node_host: Ints,
    shape: Ints,
    sets: Ints,
    first: Ints,
    host: Ints,
    speed: Floats,
) -> bool:
    """Let two tenants of different nodes change places where that helps most; answers whether one pair did.

    All together must gain *move* in speed for each of the two that runs already, because it has to restart.
    """
    widest = 0
    for n in range(len(worth)):
        widest = max(widest, on[n + 1] - on[n])
    points = np.empty((2, widest), dtype=np.int64)
    lefts = np.empty((2, 3), dtype=np.int64)
    best, best_a, best_b = 0.0, -1, -1
    for n in range(len(worth)):
        for a in range(on[n], on[n + 1]):
            i, set_a = tenants[a], sets[tenants[a], shape[n]]
            if speed[point[a]] >= speed[first[set_a + 1] - 1] - 1e-9:
                continue  # it has all that it wants
            if _has_twin(a, on[n], tenants, runs, sets[:, shape[n]]):
                continue
            for m in range(len(worth)):
                if m == n or node_kind[m] != node_kind[n]:
                    continue
                for b in range(on[m], on[m + 1]):
                    j = tenants[b]
                    if gpus_on[b] != gpus_on[a] or sets[j, shape[m]] == sets[i, shape[m]]:
                        continue
                    if _has_twin(b, on[m], tenants, runs, sets[:, shape[m]]) or not _may_gain(
                        a,
                        b,
                        gpus_on[a],
                        sets[i, shape[m]],
                        left[:, m],
                        node_host[:, m],
                        point,
                        first,
                        host,
                        speed,
                    ):
                        continue
                    tenants[a], tenants[b] = j, i
                    after = 0.0
                    for k in range(2):
                        here = n if k == 0 else m
                        for h in range(3):
                            lefts[k, h] = spare[h, here]
                        after += _divide(
                            tenants[on[here] :],
                            gpus_on[on[here] :],
                            on[here + 1] - on[here],
                            sets[:, shape[here]],
                            lefts[k],
                            node_host[:, here],
                            first,
                            host,
                            speed,
                            points[k],
                        )
                    tenants[a], tenants[b] = i, j
                    gain = after - worth[n] - worth[m] - move * (int(runs[a]) + int(runs[b]))
                    if gain > best + 1e-6:
                        best, best_a, best_b = gain, a, b
    if best_a < 0:
        return False
    tenants[best_a], tenants[best_b] = tenants[best_b], tenants[best_a]
    runs[best_a] = runs[best_b] = False
    return True


@inner
def _spread(
    least: int, end: int, seat_at: Ints, seats: Ints, left: Ints, node_host: Ints, host: Ints, speed: Floats
) -> int:
    """The fastest point for which all nodes of a job that spans them have enough left beyond the *least*."""
    best = least
    for p in range(least + 1, end):
        fits = speed[p] > speed[best]
        for a in range(seat_at[0], seat_at[1]):
            for h in range(3):
                more = seats[1, a] * (host[h, p] - host[h, least])
                fits = fits and (more <= 0 or node_host[h, seats[0, a]] == 0 or more <= left[h, seats[0, a]])
        if fits:
            best = p
    for a in range(seat_at[0], seat_at[1]):
        for h in range(3):
            left[h, seats[0, a]] -= seats[1, a] * (host[h, best] - host[h, least])
    return best


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
    queued, count = len(queue_job), len(node_kind)
    fate = chosen_fate.copy()
    free, left = free_gpus.copy(), node_host.copy()
    leader, pool, stays = fate[LEADER], fate[POOL], fate[STAYS]
    alone = np.ones(queued, dtype=np.bool_)  # by leader: nobody is on its GPUs with it
    most = 0
    for p in range(len(plan_row)):
        if plan_group[p] != plan_row[p]:
            alone[plan_group[p]] = False
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
            end = _spread_seats(
                plan_gpus[p], pool[i], sets[i], spread[i], free, left, node_kind, node_gpus, node_host, shape,
                first, host, speed, seats, at,
            )  # fmt: skip
        if end >= 0:
            at = seat_at[1, i] = end
            continue
        at = _seat(
            i,
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

    own = np.full(queued, -1, dtype=np.int64)  # the set of a leader where it is; -1: it has its share
    for i in range(queued):
        if leader[i] == i and pool[i] >= 0 and alone[i]:
            own[i] = _set_of(seat_at[:, i], seats, node_gpus, shape, sets[i], spread[i])
    given = np.zeros((3, queued), dtype=np.int64)
    left[:] = node_host
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
            best = _spread(
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
            worth[n] = _divide(
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
        if not _swap(
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
    return seat_at, seats, given, fate, unsettled
