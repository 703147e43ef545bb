"""Training alike jobs as one: arrays of those who would otherwise wait."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import ACCEPTS
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError
from wattline.models.array_speed import keyed, widest
from wattline.models.job_classes import sorts
from wattline.models.remaining import last_s
from wattline.policy.chain import asked, in_order, likely
from wattline.policy.forecast import starts_s


@dataclass(frozen=True)
class Fuse:
    """Stage: jobs with one fusion key that would wait are trained as one array (HFTA, MLSys 2021).

    Those who start now take in those who would wait, the narrowest array first, up to the width at which an
    array does most work, *limit*, or what fits into memory, as the models say; and only if jobs then end
    sooner in sum, by a forecast of the queue. With l the work that is left, v(B) the speed of B members,
    w the wait of who joins, g of G GPUs, and n jobs that wait in front of it and m behind it:

        Σ l/v(B+1) − Σ l/v(B) − w − l/v(1) + g/G · (n · longer − m · (l/v(1) − longer)) < 0

    where *longer* is for how much longer the array holds its GPUs. Where the key ends in `!` its owner wants
    the array, and who would wait joins whatever the forecast says. Members have the same GPUs, kinds, cap,
    batch and host. Nobody who runs is stopped for that: an array that runs stays as it is but for those who
    end, and nobody joins it, as an array of another width is another program. Stages that share GPUs out
    count members as if each had its own.
    *Deviates:* the original fuses what its tuner proposes together; here it is whoever waits.
    """

    limit: int = 8

    def __post_init__(self) -> None:
        if not self.limit >= 2:
            raise ConfigError(f"limit must be at least 2, got {self.limit}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """The plan; see `wattline.policy.chain.Stage`."""
        plan = asked(snapshot) if plan is None else plan
        if not _fusible(snapshot, plan).any():
            return plan
        plan = _led_by_the_first(replace(plan, group=_as_it_runs(snapshot, plan)))
        return _led_by_the_first(replace(plan, group=self._joined(snapshot, models, plan)))

    def _joined(self, snapshot: Snapshot, models: Models, plan: Plan) -> Ints:
        """Group of every entry of the plan when those who would wait join those who start."""
        group = plan.group.copy()
        running = snapshot.queue.running[plan.row]
        alone = np.bincount(group, minlength=len(snapshot.queue))[group] == 1
        free = _fusible(snapshot, plan) & alone & ~running
        # Who runs goes first where nobody is stopped, whatever the plan says.
        turn = np.argsort(~running, kind="stable") if plan.keeps else np.arange(len(plan))
        runs, waits = np.zeros_like(free), np.zeros_like(free)
        runs[turn], waits[turn], _ = likely(snapshot, in_order(plan, turn))
        hosts, guests = runs & free, waits & free
        if not hosts.any() or not guests.any():
            return group
        sort = _alike(snapshot, plan)
        queue = None
        for one in np.intersect1d(sort[hosts], sort[guests]).tolist():
            lead, follow = (np.flatnonzero(who & (sort == one)) for who in (hosts, guests))
            speed = self._speeds(snapshot, models, plan, int(lead[0]))
            if len(speed) > 1:
                queue = _Queue.of(snapshot, models, plan, turn) if queue is None else queue
                wanted = snapshot.jobs.fuse.word(int(snapshot.queue.job[plan.row[lead[0]]])).endswith("!")
                for leader, members in queue.arrays(lead, follow, speed, waits & (sort != one), wanted):
                    group[members] = plan.row[leader]
        return group

    def _speeds(self, snapshot: Snapshot, models: Models, plan: Plan, entry: int) -> tuple[float, ...]:
        """Speed of each member by the width of an array, as wide as it should be, on the worst kind."""
        jobs, nodes, row = snapshot.jobs, snapshot.nodes, int(plan.row[entry])
        accepts = int(snapshot.queue.block[ACCEPTS, row])
        kinds = [k for k in range(len(nodes.kind.names)) if accepts >> k & 1]
        if plan.kind is not None and plan.kind[entry] >= 0:
            kinds = [int(plan.kind[entry])]
        sort, example = sorts(jobs)
        job = int(snapshot.queue.job[row])
        job = int(example[sort[job]]) if getattr(models, "alike", False) else job
        batch = 0 if plan.batch is None else int(plan.batch[entry])
        known = (
            _by_width(models, jobs, nodes, job, kind, int(plan.gpus[entry]), batch, self.limit)  # type: ignore[arg-type]  # models are frozen
            for kind in kinds
        )
        return min(known, key=len)


@dataclass(frozen=True, eq=False)
class _Queue:
    """What is expected of the entries of a plan if nobody else is fused."""

    left_s: Floats  # what is left to do
    wait_s: Floats
    turn: Ints  # place of each in the line
    share: Floats  # of the GPUs of the cluster

    @classmethod
    def of(cls, snapshot: Snapshot, models: Models, plan: Plan, turn: Ints) -> _Queue:
        left_s = snapshot.steps_left * snapshot.jobs.step_s[snapshot.queue.job]
        place = np.empty_like(turn)
        place[turn] = np.arange(len(turn))
        wait_s = np.empty(len(turn))
        wait_s[turn] = starts_s(snapshot, in_order(plan, turn), last_s(snapshot, models, plan))
        total = int(snapshot.nodes.gpus[snapshot.usable].sum())
        return cls(left_s[plan.row], wait_s, place, plan.gpus / total)

    def arrays(
        self, lead: Ints, follow: Ints, speed: tuple[float, ...], others: Bools, wanted: bool
    ) -> list[tuple[int, list[int]]]:
        """Who joins whom: entries of leaders, and of the members that each takes in."""
        line = np.sort(self.turn[others])
        found: list[tuple[int, list[int]]] = [(leader, []) for leader in lead.tolist()]
        for guest in follow.tolist():
            leader, members = min(found, key=lambda array: len(array[1]))
            fits = 2 + len(members) <= len(speed)
            if fits and (wanted or self._gains([leader, *members], guest, speed, line)):
                members.append(guest)
        return found

    def _gains(self, array: list[int], guest: int, speed: tuple[float, ...], line: Ints) -> bool:
        """Whether jobs end sooner in sum if *guest* joins; *line* are the places of others who wait."""
        left_s, own_s = self.left_s[array], float(self.left_s[guest])
        now, then = speed[len(array) - 1], speed[len(array)]
        alone_s = own_s / speed[0]
        longer_s = max(float(left_s.max()), own_s) / then - float(left_s.max()) / now
        later_s = float(left_s.sum()) * (1 / then - 1 / now) + own_s / then
        before = int(np.searchsorted(line, self.turn[guest]))
        between = before - int(np.searchsorted(line, self.turn[array[0]]))
        others_s = between * longer_s - (len(line) - before) * (alone_s - longer_s)
        return bool(later_s + self.share[guest] * others_s < self.wait_s[guest] + alone_s)


def _fusible(snapshot: Snapshot, plan: Plan) -> Bools:
    """Which entries of the plan have a fusion key."""
    return np.asarray(keyed(snapshot.jobs)[snapshot.queue.job[plan.row]])


def _as_it_runs(snapshot: Snapshot, plan: Plan) -> Ints:
    """Group of every entry of the plan when arrays that run stay, if it gives them all the same GPUs."""
    leases, job, key = snapshot.leases, snapshot.queue.job, snapshot.jobs.fuse.codes
    at = np.full(len(job), -1, dtype=np.int64)  # row of the queue → entry of the plan
    at[plan.row] = np.arange(len(plan))
    shared = np.flatnonzero((leases.job != leases.group) & (key[leases.job] == key[leases.group]))
    follow, lead = (at[np.searchsorted(job, who[shared])] for who in (leases.job, leases.group))
    there = (follow >= 0) & (lead >= 0)
    follow, lead = follow[there], lead[there]
    stay = _fusible(snapshot, plan)[follow] & (plan.gpus[follow] == plan.gpus[lead])
    stay &= (plan.group[follow] == plan.row[follow]) & (plan.group[lead] == plan.row[lead])
    group = plan.group.copy()
    group[follow[stay]] = plan.row[lead[stay]]
    return group


def _led_by_the_first(plan: Plan) -> Plan:
    """*plan* with groups where the first of them was, and who leads in front: placers go by leaders."""
    if (plan.group == plan.row).all():
        return plan
    first = np.full(int(plan.group.max()) + 1, len(plan), dtype=np.int64)
    np.minimum.at(first, plan.group, np.arange(len(plan)))
    return in_order(plan, np.lexsort((plan.group != plan.row, first[plan.group])), keeps=plan.keeps)


def _alike(snapshot: Snapshot, plan: Plan) -> Ints:
    """A number for each entry, the same for those that may be one array."""
    job, accepts = snapshot.queue.job[plan.row], snapshot.queue.block[ACCEPTS, plan.row].astype(np.int64)
    columns = [snapshot.jobs.fuse.codes[job], plan.gpus, accepts]
    columns += [said for said in (plan.cap_w, plan.batch, plan.kind, plan.node) if said is not None]
    columns += [] if plan.host is None else list(plan.host)
    return np.unique(np.stack(columns), axis=1, return_inverse=True)[1].reshape(-1)


@lru_cache(maxsize=4096)
def _by_width(
    models: Models, jobs: Jobs, nodes: Nodes, job: int, kind: int, gpus: int, batch: int, limit: int
) -> tuple[float, ...]:
    """Speed of each member of arrays of 1, 2 … jobs, to the narrowest that does most work and has memory."""
    here = nodes.kind.codes == kind
    width = np.arange(1, limit + 1, dtype=np.int64)
    same = np.ones_like(width)
    grants = Grants.of(
        same * job,
        same * gpus,
        same * -(-gpus // int(nodes.gpus[here].max())),
        members=width,
        fused=width > 1,
        batch=same * batch,
        kind=nodes.kind.names[kind],
    )
    speed = models.speed(jobs, grants)
    fits = width <= np.maximum(widest(models, jobs, grants), 1)
    work = np.where(fits, width * speed, 0.0)
    return tuple(speed[: 1 + int(np.argmax(work >= (1 - 1e-9) * work.max()))].tolist())
