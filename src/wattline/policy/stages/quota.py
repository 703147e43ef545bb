"""Stage that starts no job beyond the quotas of its user and team."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_ACCEPTED_KINDS
from wattline.core.quotas import WEEK_S, QuotaRule
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError
from wattline.jit import B1, I1, I2, inner, kernel
from wattline.policy.chain import decide_again, plan_as_requested

_HELD = REASONS.index(Reason.HELD)
_REASONS = {
    ("team", False): REASONS.index(Reason.TEAM_GPU_QUOTA),
    ("user", False): REASONS.index(Reason.USER_GPU_QUOTA),
    ("team", True): REASONS.index(Reason.TEAM_HOUR_QUOTA),
    ("user", True): REASONS.index(Reason.USER_HOUR_QUOTA),
}
_LEAST_S = 60.0  # between decisions that only wait for hours to leave the window
_UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Quota:
    """Stage: start no job with which its user or team would exceed a quota.

    Quotas are part of the snapshot (`--quota`, `wattline quota set`). Of GPUs held at once, those of running
    jobs count first, then entries in the order of the plan: an entry that would exceed the number waits, a
    job that was given more than its fewest GPUs starts on as many as are left, and a running job does not
    grow. Of GPU hours, those of the last seven days count: once they are used up nothing starts or grows
    until they leave that window. No running job is stopped, neither when a quota is reduced nor when its
    hours run out; so below its quota a user's job is not stopped for another job of that user either. Put it
    behind the policy that orders jobs or chooses the number of GPUs. Before the latter, *least* 1 leaves
    out jobs that could not run even on their fewest GPUs, so that others get these GPUs. A job that no kind
    of GPU is enough for takes no part of a quota, so that it keeps no other job waiting.
    """

    least: int = 0

    needs_usage: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.least not in (0, 1):
            raise ConfigError(f"least must be 0 or 1, got {self.least}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`."""
        plan = plan_as_requested(snapshot) if plan is None else plan
        rules = snapshot.quotas.limits
        if not rules or not len(snapshot.queue):
            return plan
        member = find_members(snapshot, rules)
        again_s = find_used_up(snapshot, rules)
        used_up = again_s > -math.inf
        limit = np.array([_UNLIMITED if rule.gpus is None else rule.gpus for rule in rules], dtype=np.int64)
        job = snapshot.queue.job
        least, possible = snapshot.jobs.min_gpus[job], _find_possible(snapshot)
        fewest = np.where(least > 0, least, snapshot.jobs.gpus[job])
        counted = np.full(len(job), _UNLIMITED, dtype=np.int64)
        if self.least:  # the policy may give a job fewer GPUs than it asks for, unless it sets its fewest
            counted = np.where(least > 0, least, np.minimum(fewest, possible))
        gpus, group, blocked = _allow(
            plan.row,
            plan.gpus,
            plan.group,
            _find_leaders(snapshot),
            snapshot.queue.held_gpus.astype(np.int64),
            fewest,
            possible,
            member,
            limit,
            used_up,
            counted,
        )
        applies = member == 1
        too_large = applies & (fewest > limit[:, None])
        never = too_large.any(axis=0)  # whatever the hours
        by_hours = (blocked >= 0) & used_up[blocked] & ~never
        out_of_hours = applies & used_up[:, None] & ~never & (fewest <= possible)
        next_s = float(again_s[out_of_hours.any(axis=1)].min(initial=math.inf))
        if not len(snapshot.leases) and (never | out_of_hours.any(axis=0) | (fewest > possible)).all():
            plan = replace(plan, next_decision_s=next_s)  # nothing else can change before
        else:
            plan = decide_again(plan, next_s)
        blocked = np.where((blocked >= 0) & never, np.argmax(too_large, axis=0), blocked)
        if not self.least:
            plan = replace(plan, group=group)
        return _apply(plan, snapshot, rules, gpus, blocked, by_hours, bool(self.least))


def find_members(snapshot: Snapshot, rules: tuple[QuotaRule, ...]) -> Ints:
    """Return by rule and row of the queue 1 where the rule applies to the job, else 0."""
    jobs, job = snapshot.jobs, snapshot.queue.job
    member = np.zeros((len(rules), len(job)), dtype=np.int64)
    for number, rule in enumerate(rules):
        labels = jobs.team if rule.owner == "team" else jobs.user
        if rule.name in labels.names:
            member[number] = labels.codes[job] == labels.names.index(rule.name)
    return member


def find_used_up(snapshot: Snapshot, rules: tuple[QuotaRule, ...]) -> Floats:
    """Return by rule when it has GPU hours again, if they are used up; -inf: they are not."""
    again_s = np.full(len(rules), -math.inf)
    for number, rule in enumerate(rules):
        hours = rule.gpu_hours_per_week
        if hours is not None and used_gpu_s(snapshot, rule) >= hours * 3600.0:
            again_s[number] = max(find_free_s(snapshot, rule), snapshot.now_s + _LEAST_S)
    return again_s


def used_gpu_s(snapshot: Snapshot, rule: QuotaRule) -> float:
    """Return the GPU-seconds of the last seven days that count for *rule*."""
    usage = snapshot.usage
    return 0.0 if usage is None else float(usage.recent_gpu_s(WEEK_S)[_find_accounts(snapshot, rule)].sum())


def find_free_s(snapshot: Snapshot, rule: QuotaRule) -> float:
    """Return when GPU hours of *rule* are left again, if nothing more is used until then; inf: never."""
    usage, hours = snapshot.usage, rule.gpu_hours_per_week
    if usage is None or hours is None:
        return snapshot.now_s
    return usage.find_time_below(_find_accounts(snapshot, rule), hours * 3600.0, WEEK_S)


def _find_accounts(snapshot: Snapshot, rule: QuotaRule) -> Bools:
    assert snapshot.usage is not None
    part = 0 if rule.owner == "team" else 1
    return np.array([account[part] == rule.name for account in snapshot.usage.accounts], dtype=np.bool_)


def _find_possible(snapshot: Snapshot) -> Ints:
    """Return by row of the queue the most GPUs that a kind it accepts has."""
    nodes = snapshot.nodes
    total = np.bincount(nodes.kind.codes, nodes.gpus, len(nodes.kind.names)).astype(np.int64)
    accepts = snapshot.queue.block[QUEUE_ACCEPTED_KINDS].astype(np.int64)
    most = np.zeros(len(accepts), dtype=np.int64)
    for kind, gpus in enumerate(total.tolist()):
        most = np.where((accepts >> kind) & 1 == 1, np.maximum(most, gpus), most)
    return most


def _find_leaders(snapshot: Snapshot) -> Ints:
    """Return by row of the queue the row that the job shares GPUs with now; itself if it shares none."""
    job, leases = snapshot.queue.job, snapshot.leases
    leader = np.arange(len(job), dtype=np.int64)
    shared = leases.job != leases.group
    row, other = (np.searchsorted(job, ids[shared]) for ids in (leases.job, leases.group))
    is_queued = job[np.minimum(other, len(job) - 1)] == leases.group[shared]
    leader[row[is_queued]] = other[is_queued]
    return leader


def _apply(
    plan: Plan,
    snapshot: Snapshot,
    rules: tuple[QuotaRule, ...],
    gpus: Ints,
    blocked: Ints,
    by_hours: Bools,
    only_choose: bool,
) -> Plan:
    """Return *plan* with these GPUs, without entries that have none; *blocked*: the rule by row, or -1."""
    stays = gpus > 0
    changed = stays & (gpus != plan.gpus) & (not only_choose)
    if stays.all() and not changed.any():
        return plan
    queued = len(snapshot.queue)
    reason = np.full(queued, _HELD, dtype=np.int64) if plan.reason is None else plan.reason.copy()
    for row in plan.row[~stays].tolist():
        reason[row] = _REASONS[rules[int(blocked[row])].owner, bool(by_hours[row])]
    batch = plan.batch
    if batch is not None and changed.any():
        batch = np.where(changed, 0, batch)  # it was chosen for another number of GPUs
    left = np.zeros(queued, dtype=np.bool_)
    left[plan.row[stays]] = True
    group = np.where(left[plan.group], plan.group, plan.row)  # without its leader a job runs alone
    return plan.take(
        np.flatnonzero(stays),
        gpus=(plan.gpus if only_choose else gpus)[stays],
        group=group[stays],
        stable=plan.stable and bool(stays.all()),
        batch=None if batch is None else batch[stays],
        reason=reason,
    )


@inner
def _count_new(q: int, i: int, leader: int, host: int, need: int, held: int, member: Ints) -> int:
    """Return how many of the *need* GPUs of row *i* rule *q* does not count yet.

    GPUs that it shares with a *leader* of the same user or team are counted for that one, and so are those
    that it *held* so far if it shared them with such a *host*.
    """
    if member[q, i] == 0 or (leader != i and member[q, leader] == 1):
        return 0
    return max(need - (0 if host != i and member[q, host] == 1 else held), 0)


@inner
def _find_limiting(
    i: int, leader: int, host: int, need: int, held: int, member: Ints, left: Ints, used_up: Bools
) -> int:
    """Return the rule by which row *i* may not hold *need* GPUs; -1: none."""
    limiting, least = -1, _UNLIMITED
    for q in range(len(left)):
        new = _count_new(q, i, leader, host, need, held, member)
        here = 0 if used_up[q] else max(left[q], 0)
        if new > here and here < least:
            limiting, least = q, here
    return limiting


@inner
def _take(i: int, leader: int, host: int, need: int, held: int, member: Ints, left: Ints) -> None:
    for q in range(len(left)):
        left[q] -= _count_new(q, i, leader, host, need, held, member)


@inner
def _round_down(size: int, fewest: int) -> int:
    """Return the largest power of two up to *size*; *size* itself if that is fewer than *fewest*."""
    power = 1
    while 2 * power <= size:
        power *= 2
    return power if power >= fewest else size


@kernel(I1, I1, I1, I1, I1, I1, I1, I2, I1, B1, I1)
def _allow(
    row: Ints,
    gpus: Ints,
    planned_group: Ints,
    leader_now: Ints,
    held: Ints,
    fewest: Ints,
    possible: Ints,
    member: Ints,
    limit: Ints,
    used_up: Bools,
    counted: Ints,
) -> tuple[Ints, Ints, Ints]:
    """Return the GPUs that each entry may have (0: it waits), its group, and by row its limiting rule.

    *leader_now*, *held*, *fewest*, *possible*, *counted* and the rule are by row of the queue. Of a job that
    waits at most *counted* GPUs count. A job that would leave GPUs that it shares takes new ones; it goes on
    sharing if it may not.
    """
    left, allowed_gpus, group = limit.copy(), gpus.copy(), planned_group.copy()
    blocked = np.full(len(held), -1, dtype=np.int64)
    leads = np.zeros(len(held), dtype=np.bool_)
    leads[row[row == group]] = True
    host = np.arange(len(held))  # by row: the leader that it would stop sharing GPUs with, else itself
    for p in range(len(row)):
        i, leader, now = row[p], group[p], leader_now[row[p]]
        if held[i] > 0:
            if now != leader and leads[now] and held[now] > 0:
                host[i], leader = now, now
            elif held[leader] == 0:
                leader = i  # without it this job may go on alone
            _take(i, leader, i, min(held[i], gpus[p]), 0, member, left)
    dropped = np.zeros(len(held), dtype=np.bool_)
    for turn in range(2):  # leaders, then the jobs that share their GPUs
        for p in range(len(row)):
            i, need = row[p], gpus[p]
            if (group[p] == i) != (turn == 0):
                continue
            leader = i if dropped[group[p]] else group[p]
            if held[i] == 0:
                need = min(need, counted[i])
            if need > possible[i]:
                continue
            limiting = _find_limiting(i, leader, host[i], need, held[i], member, left, used_up)
            if limiting < 0:
                _take(i, leader, host[i], need, held[i], member, left)
                continue
            blocked[i] = limiting
            if held[i] > 0:
                allowed_gpus[p] = held[i]
                if host[i] != i:
                    group[p] = host[i]
                    leads[i] = False
                continue
            size = need
            while size > fewest[i] and limiting >= 0 and leader == i:
                size -= 1
                limiting = _find_limiting(i, leader, i, size, 0, member, left, used_up)
            if limiting < 0:
                allowed_gpus[p] = _round_down(size, fewest[i])
                _take(i, leader, i, allowed_gpus[p], 0, member, left)
            else:
                allowed_gpus[p] = 0
                dropped[i] = True
    for p in range(len(row)):
        if not leads[group[p]] and not dropped[group[p]]:
            group[p] = leader_now[group[p]]  # of a leader that goes on sharing
    return allowed_gpus, group, blocked
