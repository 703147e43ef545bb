"""Stage that trains similar jobs as one array, so that fewer wait."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_ACCEPTED_KINDS
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError
from wattline.models.array_speed import has_fusion_key, max_array_width
from wattline.models.job_classes import classify_jobs
from wattline.models.remaining import group_remaining_s
from wattline.policy.chain import plan_as_requested, predict_running, reorder
from wattline.policy.forecast import predict_starts_s
from wattline.policy.stages.shared_entries import add_array_members, add_guests, remove_lonely


@dataclass(frozen=True)
class Fuse:
    """Stage: train jobs with one fusion key that would wait as one array (Wang et al., MLSys 2021, "HFTA").

    Jobs that start now take in jobs that would wait, the narrowest array first, up to the width at which an
    array does most work, *limit*, or what fits into memory, by the models; and only if the sum of end times
    falls, by a forecast of the queue. With l the remaining work, v(B) the speed of B members, w the wait of
    the joining job, g of G GPUs, and n jobs that wait in front of it and m behind it:

        Σ l/v(B+1) − Σ l/v(B) − w − l/v(1) + g/G · (n · longer − m · (l/v(1) − longer)) < 0

    where *longer* is the additional time for which the array holds its GPUs. The column `always_fuse` of a
    job requests the array: jobs that would wait then join whatever the forecast. Members have the same GPUs,
    kinds, cap, batch and host. No running job is stopped for that: a running array only loses the members
    that end, and no job joins it, as an array of another width is another program. Stages that allocate
    GPUs or hold a budget count members as if each had its own; jobs that they leave out for want of GPUs or
    watts may join all the same, since they need no more of them.
    *Deviates:* the original fuses jobs that its tuner proposes together; here all waiting jobs may be fused.
    """

    limit: int = 8

    def __post_init__(self) -> None:
        if not self.limit >= 2:
            raise ConfigError(f"limit must be at least 2, got {self.limit}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`."""
        plan = plan_as_requested(snapshot) if plan is None else plan
        if not _has_key(snapshot, plan).any():
            return plan
        plan = add_array_members(snapshot, plan)
        plan = _lead_with_first(replace(plan, group=_keep_running_arrays(snapshot, plan)))
        reason = plan.reason
        plan, left_out = add_guests(snapshot, plan)
        plan = replace(plan, group=self._join(snapshot, models, plan, left_out))
        return _lead_with_first(remove_lonely(plan, left_out, reason))

    def _join(self, snapshot: Snapshot, models: Models, plan: Plan, left_out: Bools) -> Ints:
        """Return the group of every entry of the plan after waiting jobs have joined starting ones.

        Entries that the plan had *left_out* wait, even where GPUs are free: a budget may allow no more.
        """
        group = plan.group.copy()
        running = snapshot.queue.running[plan.row]
        alone = np.bincount(group, minlength=len(snapshot.queue))[group] == 1
        free = _has_key(snapshot, plan) & alone & ~running
        # Without preemption running jobs go first, whatever the order of the plan.
        turn = np.argsort(~running, kind="stable") if plan.non_preemptive else np.arange(len(plan))
        runs, waits = np.zeros_like(free), np.zeros_like(free)
        runs[turn], waits[turn], _ = predict_running(snapshot, reorder(plan, turn))
        runs, waits = runs & ~left_out, waits | left_out
        hosts, guests = runs & free, waits & free
        if not hosts.any() or not guests.any():
            return group
        similar = _number_similar(snapshot, plan)
        forecast = None
        for one in np.intersect1d(similar[hosts], similar[guests]).tolist():
            lead, follow = (np.flatnonzero(of & (similar == one)) for of in (hosts, guests))
            speed = self._find_speeds(snapshot, models, plan, int(lead[0]))
            if len(speed) > 1:
                forecast = _Forecast.from_plan(snapshot, models, plan, turn) if forecast is None else forecast
                wanted = bool(snapshot.jobs.always_fuse[snapshot.queue.job[plan.row[lead[0]]]])
                for leader, members in forecast.form_arrays(
                    lead, follow, speed, waits & (similar != one), wanted
                ):
                    group[members] = plan.row[leader]
        return group

    def _find_speeds(self, snapshot: Snapshot, models: Models, plan: Plan, entry: int) -> tuple[float, ...]:
        """Return the speed of each member by the width of an array, up to the best, on the worst kind."""
        jobs, nodes, row = snapshot.jobs, snapshot.nodes, int(plan.row[entry])
        accepts = int(snapshot.queue.block[QUEUE_ACCEPTED_KINDS, row])
        kinds = [k for k in range(len(nodes.kind.names)) if accepts >> k & 1]
        if plan.kind is not None and plan.kind[entry] >= 0:
            kinds = [int(plan.kind[entry])]
        job_class, example = classify_jobs(jobs)
        job = int(snapshot.queue.job[row])
        job = int(example[job_class[job]]) if getattr(models, "alike", False) else job
        batch = 0 if plan.batch is None else int(plan.batch[entry])
        known = (
            _compute_speeds(models, jobs, nodes, job, kind, int(plan.gpus[entry]), batch, self.limit)  # type: ignore[arg-type]  # models are frozen
            for kind in kinds
        )
        return min(known, key=len)


@dataclass(frozen=True, eq=False)
class _Forecast:
    """Forecast of the entries of a plan if no other jobs are fused."""

    left_s: Floats  # remaining work
    wait_s: Floats
    turn: Ints  # position in the order
    share: Floats  # of the cluster's GPUs

    @classmethod
    def from_plan(cls, snapshot: Snapshot, models: Models, plan: Plan, turn: Ints) -> _Forecast:
        left_s = snapshot.steps_left * snapshot.jobs.step_s[snapshot.queue.job]
        place = np.empty_like(turn)
        place[turn] = np.arange(len(turn))
        wait_s = np.empty(len(turn))
        wait_s[turn] = predict_starts_s(
            snapshot, reorder(plan, turn), group_remaining_s(snapshot, models, plan)
        )
        total = int(snapshot.nodes.gpus[snapshot.usable].sum())
        return cls(left_s[plan.row], wait_s, place, plan.gpus / total)

    def form_arrays(
        self, lead: Ints, follow: Ints, speed: tuple[float, ...], others: Bools, wanted: bool
    ) -> list[tuple[int, list[int]]]:
        """Return the leaders' entries, each with the entries of the members that join it."""
        line = np.sort(self.turn[others])
        found: list[tuple[int, list[int]]] = [(leader, []) for leader in lead.tolist()]
        for guest in follow.tolist():
            leader, members = min(found, key=lambda array: len(array[1]))
            fits = 2 + len(members) <= len(speed)
            if fits and (wanted or self._is_gain([leader, *members], guest, speed, line)):
                members.append(guest)
        return found

    def _is_gain(self, array: list[int], guest: int, speed: tuple[float, ...], line: Ints) -> bool:
        """Return whether the sum of end times falls if *guest* joins; *line*: positions of other jobs."""
        left_s, own_s = self.left_s[array], float(self.left_s[guest])
        now, then = speed[len(array) - 1], speed[len(array)]
        alone_s = own_s / speed[0]
        longer_s = max(float(left_s.max()), own_s) / then - float(left_s.max()) / now
        later_s = float(left_s.sum()) * (1 / then - 1 / now) + own_s / then
        before = int(np.searchsorted(line, self.turn[guest]))
        between = before - int(np.searchsorted(line, self.turn[array[0]]))
        others_s = between * longer_s - (len(line) - before) * (alone_s - longer_s)
        return bool(later_s + self.share[guest] * others_s < self.wait_s[guest] + alone_s)


def _has_key(snapshot: Snapshot, plan: Plan) -> Bools:
    """Return which entries of the plan have a fusion key."""
    return np.asarray(has_fusion_key(snapshot.jobs)[snapshot.queue.job[plan.row]])


def _keep_running_arrays(snapshot: Snapshot, plan: Plan) -> Ints:
    """Return the group of every entry so that running arrays stay, if all members have as many GPUs."""
    leases, job, key = snapshot.leases, snapshot.queue.job, snapshot.jobs.fuse.codes
    at = np.full(len(job), -1, dtype=np.int64)  # row of the queue → entry of the plan
    at[plan.row] = np.arange(len(plan))
    shared = np.flatnonzero((leases.job != leases.group) & (key[leases.job] == key[leases.group]))
    follow, lead = (at[np.searchsorted(job, column[shared])] for column in (leases.job, leases.group))
    there = (follow >= 0) & (lead >= 0)
    follow, lead = follow[there], lead[there]
    stay = _has_key(snapshot, plan)[follow] & (plan.gpus[follow] == plan.gpus[lead])
    stay &= (plan.group[follow] == plan.row[follow]) & (plan.group[lead] == plan.row[lead])
    group = plan.group.copy()
    group[follow[stay]] = plan.row[lead[stay]]
    return group


def _lead_with_first(plan: Plan) -> Plan:
    """Return *plan* with each group at the place of its first member, the leader in front.

    Placers go by leaders.
    """
    if (plan.group == plan.row).all():
        return plan
    first = np.full(int(plan.group.max()) + 1, len(plan), dtype=np.int64)
    np.minimum.at(first, plan.group, np.arange(len(plan)))
    return reorder(
        plan, np.lexsort((plan.group != plan.row, first[plan.group])), non_preemptive=plan.non_preemptive
    )


def _number_similar(snapshot: Snapshot, plan: Plan) -> Ints:
    """Return a number for each entry, the same for those that may be one array."""
    job, accepts = (
        snapshot.queue.job[plan.row],
        snapshot.queue.block[QUEUE_ACCEPTED_KINDS, plan.row].astype(np.int64),
    )
    columns = [snapshot.jobs.fuse.codes[job], plan.gpus, accepts]
    columns += [c for c in (plan.cap_w, plan.batch, plan.kind, plan.node) if c is not None]
    columns += [] if plan.host is None else list(plan.host)
    return np.unique(np.stack(columns), axis=1, return_inverse=True)[1].reshape(-1)


@lru_cache(maxsize=4096)
def _compute_speeds(
    models: Models, jobs: Jobs, nodes: Nodes, job: int, kind: int, gpus: int, batch: int, limit: int
) -> tuple[float, ...]:
    """Return the speed of each member of arrays of 1, 2 … jobs, up to the narrowest with most throughput.

    Arrays that do not fit into memory are left out.
    """
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
    fits = width <= np.maximum(max_array_width(models, jobs, grants), 1)
    work = np.where(fits, width * speed, 0.0)
    return tuple(speed[: 1 + int(np.argmax(work >= (1 - 1e-9) * work.max()))].tolist())
