"""Stage that orders waiting jobs by the fair share of their users and teams."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.core.usage import find_columns, number_accounts
from wattline.errors import ConfigError
from wattline.policy.chain import plan_as_requested, reorder
from wattline.policy.fair_tree import compute_levels


@dataclass(frozen=True)
class FairShare:
    """Stage: let jobs of the teams and users that have used least of their share go first.

    Waiting jobs are ordered by priority, then by the Fair Tree of Slurm: the team with the least GPU time
    per share first, inside it the user with the least, and jobs of one user as an earlier stage has ordered
    them. GPU time counts half after *half_life_s*. A user that has had no GPU for *age_s*, counted in whole
    hours, while its first job waited gets that to the front of its priority: so no user starves.
    Running jobs keep their places, and with one user and one team nothing changes. Put it behind a policy
    that orders jobs. Before one that chooses the number of GPUs (afs, pollux, powerflow) it decides which
    jobs share the GPUs when not all can run: running jobs, then as above; how they share is left to that
    policy. It has no effect before andreas, elasticflow and firstprinciple, or before a stage that orders.
    """

    half_life_s: float = 604_800.0
    age_s: float = 86_400.0

    needs_usage: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("half_life_s", "age_s"):
            if not getattr(self, name) >= 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`."""
        plan = plan_as_requested(snapshot) if plan is None else plan
        pair, _ = number_accounts(snapshot.jobs)
        job = snapshot.queue.job[plan.row]
        account = pair[job]
        if not len(plan) or (account == account[0]).all():
            return plan
        levels = compute_levels(snapshot, self.half_life_s)
        running = snapshot.queue.running[plan.row]
        priority = snapshot.jobs.priority[job]
        aged = self._find_aged(snapshot, plan, account, priority, running)
        keys = (levels.user[account], levels.team[account], ~aged, -priority)
        waits = np.flatnonzero(~running)
        order = np.arange(len(plan), dtype=np.int64)
        order[waits] = waits[np.lexsort(tuple(key[waits] for key in keys))]
        plan = replace(plan, precedence=_number_classes((*keys, ~running)))
        return reorder(plan, order, non_preemptive=plan.non_preemptive)

    def _find_aged(
        self, snapshot: Snapshot, plan: Plan, account: Ints, priority: Floats, running: Bools
    ) -> Bools:
        """Return the entries that wait too long: the first of an account without GPUs for that long."""
        aged = np.zeros(len(plan), dtype=np.bool_)
        waited_s = snapshot.now_s - snapshot.queue.since_s[plan.row]
        if not (~running & (waited_s >= self.age_s)).any():
            return aged
        idle = np.ones(int(account.max()) + 1, dtype=np.bool_)
        idle[account[running]] = False
        rows = np.flatnonzero(~running & idle[account])
        rows = rows[np.argsort(-priority[rows], kind="stable")]
        first = rows[np.unique(account[rows], return_index=True)[1]]
        idle_s = snapshot.now_s - _find_last_use(snapshot)[account[first]]
        aged[first] = np.minimum(waited_s[first], idle_s) >= self.age_s
        return aged


def _find_last_use(snapshot: Snapshot) -> Floats:
    """Return when each account of the job table last held GPUs, by the hour; -inf: never."""
    _, names = number_accounts(snapshot.jobs)
    if snapshot.usage is None or not snapshot.usage.accounts:
        return np.full(len(names), -np.inf)
    column = find_columns(names, snapshot.usage.accounts)
    return np.where(column >= 0, snapshot.usage.last_used_s()[column], -np.inf)


def _number_classes(keys: tuple[Floats | Bools, ...]) -> Ints:
    """Return the number of each entry's class by *keys*, of which the last counts most."""
    order = np.lexsort(keys)
    rises = np.zeros(len(order), dtype=np.bool_)
    for key in keys:
        rises[1:] |= key[order][1:] != key[order][:-1]
    classes = np.empty(len(order), dtype=np.int64)
    classes[order] = np.cumsum(rises)
    return classes
