"""Placers that allocate cores and memory as Synergy's published code does (Mohan et al., OSDI 2022).

All jobs are placed anew every *round_s*, server by server in their order, and may span servers. Storage is
not counted: in the published code it never binds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from wattline.core.leases import LEASE_GPUS, LEASE_GROUP, LEASE_HOST, LEASE_JOB, LEASE_NODE
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_ACCEPTED_KINDS, QUEUE_JOB
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError
from wattline.jit import B1, BOOL, F2, I1, I2, inner, kernel, record
from wattline.placement.lease_builder import build_placement
from wattline.placement.selection import (
    NO_HOST,
    OUTCOME_KIND,
    OUTCOME_LEADER,
    OUTCOME_REASON,
    OUTCOME_STAYS,
    TOO_BIG,
    Backfill,
    check_backfill,
    select_jobs,
)
from wattline.policy.stages.demand import compute_demand


@dataclass(frozen=True)
class Greedy:
    """The whole demand of GPUs, cores and memory on the first servers that have it, or nothing.

    GPUs stay idle where cores or memory have run out. The demand of a job is that of the plan (the stage
    `demand`), or else the least that saturates it. Under a non-preemptive plan running jobs stay where they
    are.
    """

    backfill: Backfill = "greedy"
    round_s: float = 300.0

    def __post_init__(self) -> None:
        check_backfill(self.backfill)
        if not self.round_s >= 1:
            raise ConfigError(f"round_s must be at least 1, got {self.round_s}")

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        """Return leases for the plan, and a reason for every job without."""
        placement = _place(plan, snapshot, models, self.backfill, falls_back=False)
        return replace(placement, next_decision_s=snapshot.now_s + self.round_s)


@dataclass(frozen=True)
class TunePublished:
    """The whole demand, else the proportional share, for which jobs with more fall back to their shares.

    No job has anything between the two, what becomes free is not granted to others, and a job that falls
    back does so with all its resources; `Tune` does better. With *by_gpus* 1 large jobs are placed first.
    """

    backfill: Backfill = "greedy"
    round_s: float = 300.0
    by_gpus: int = 0

    typed_name: ClassVar[str] = "tune-published"  # see `wattline.policy.chain.spell`

    def __post_init__(self) -> None:
        check_backfill(self.backfill)
        if not self.round_s >= 1:
            raise ConfigError(f"round_s must be at least 1, got {self.round_s}")

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        """Return leases for the plan, and a reason for every job without."""
        placement = _place(plan, snapshot, models, self.backfill, falls_back=True, by_gpus=self.by_gpus > 0)
        return replace(placement, next_decision_s=snapshot.now_s + self.round_s)


def _place(
    plan: Plan,
    snapshot: Snapshot,
    models: Models,
    backfill: Backfill,
    *,
    falls_back: bool,
    by_gpus: bool = False,
) -> Placement:
    """Return the placement; with *falls_back* jobs may fall back to their proportional shares."""
    nodes = snapshot.nodes
    selection = select_jobs(plan, snapshot, models, backfill)
    host = plan.host if plan.host is not None else compute_demand(plan, snapshot, models, 1.0)
    order = np.argsort(-plan.gpus, kind="stable") if by_gpus else np.arange(len(plan))
    entry_range, entries, outcome, granted = _assign(
        _Demands(plan.row[order], plan.gpus[order], np.ascontiguousarray(host[:, order])),
        _Servers(snapshot.free_gpus, snapshot.up, nodes.kind.codes, nodes.host, nodes.host_share),
        plan.non_preemptive,
        falls_back,
        selection.outcome,
        snapshot.queue.block,
        snapshot.leases.block,
    )
    waiting = int(np.count_nonzero(outcome[OUTCOME_REASON]))
    return build_placement(
        plan, snapshot, selection._replace(outcome=outcome, waiting=waiting), (entry_range, entries), granted
    )


class _Demands(NamedTuple):
    """Entries of the plan in the order of placement, with their demand per GPU."""

    row: Ints
    gpus: Ints
    host: Ints


class _Servers(NamedTuple):
    """Nodes, with what they have of the host and the proportional share of each GPU."""

    free_gpus: Ints
    up: Bools
    kind: Ints
    host: Ints
    share: Ints


@inner
def _take_first(
    need: int,
    host: Ints,
    kind: int,
    free: Ints,
    left: Ints,
    node_kind: Ints,
    entries: Ints,
    at: int,
) -> int:
    """Write pairs of node and GPUs from entry *at* on for *need* GPUs with *host* each, first node first.

    Return the entry after the last, or -1 if they do not fit.
    """
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
            entries[0, end], entries[1, end] = n, take
            end += 1
            need -= take
    if need > 0:
        return -1
    for s in range(at, end):
        free[entries[0, s]] -= entries[1, s]
        for h in range(2):
            left[h, entries[0, s]] -= entries[1, s] * host[h]
    return end


@inner
def _fall_back(
    n: int,
    wanted: Ints,
    rows: Ints,
    entry_range: Ints,
    entries: Ints,
    granted: Ints,
    left: Ints,
    share: Ints,
) -> None:
    """Let jobs on node *n* fall back to their shares, one by one, until *wanted* is left there.

    Jobs on the fewest nodes go first, then those with most cores, then those with most memory.
    """
    short = np.zeros(2, dtype=np.int64)
    for h in range(2):
        short[h] = max(0, wanted[h] - left[h, n])
    tried = np.zeros(len(rows), dtype=np.bool_)
    while short[0] > 0 or short[1] > 0:
        best, best_at, best_gpus = -1, -1, 0
        for a in range(len(rows)):
            j = rows[a]
            gpus = 0
            for s in range(entry_range[0, j], entry_range[1, j] if not tried[a] else 0):
                if entries[0, s] == n:
                    gpus = entries[1, s]
            if gpus == 0:
                continue
            if best >= 0:
                more = (entry_range[1, best] - entry_range[0, best]) - (entry_range[1, j] - entry_range[0, j])
                for h in range(2):
                    if more == 0:
                        more = granted[h, j] - granted[h, best]
                if more <= 0:
                    continue
            best, best_at, best_gpus = j, a, gpus
        if best < 0:
            return
        tried[best_at] = True
        for h in range(2):
            back = granted[h, best] - share[h, n]
            fits = True  # a job with less than its share gets the share, too, if there is enough
            for s in range(entry_range[0, best], entry_range[1, best]):
                fits = fits and left[h, entries[0, s]] + entries[1, s] * back >= 0
            if not fits:
                continue
            short[h] = max(0, short[h] - best_gpus * back)
            for s in range(entry_range[0, best], entry_range[1, best]):
                left[h, entries[0, s]] += entries[1, s] * back
            granted[h, best] = share[h, n]


@kernel(record(_Demands, I1, I1, I2), record(_Servers, I1, B1, I1, I2, I2), BOOL, BOOL, I2, F2, I2)
def _assign(
    demands: _Demands,
    servers: _Servers,
    non_preemptive: bool,
    falls_back: bool,
    selected: Ints,
    block: Floats,
    leases: Ints,
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return by row of the queue the range of its pairs of node and GPUs, these, its outcome and its host."""
    rows, gpus, host = demands
    free_gpus, up, node_kind, node_host, share = servers
    queued = block.shape[1]
    outcome = selected.copy()
    granted = np.zeros((3, queued), dtype=np.int64)
    entry_range = np.zeros((2, queued), dtype=np.int64)
    most = 0
    for p in range(len(rows)):
        most += min(gpus[p], len(free_gpus))
    entries = np.empty((2, most + len(free_gpus)), dtype=np.int64)
    free, left = free_gpus.copy(), node_host.copy()
    for r in range(leases.shape[1]):
        if leases[LEASE_JOB, r] == leases[LEASE_GROUP, r] and up[leases[LEASE_NODE, r]]:
            free[leases[LEASE_NODE, r]] += leases[LEASE_GPUS, r]
    at = 0
    if non_preemptive and not falls_back:  # running jobs stay as they are
        i = 0
        for r in range(leases.shape[1]):
            while block[QUEUE_JOB, i] < leases[LEASE_JOB, r]:
                i += 1
            if leases[LEASE_JOB, r] == leases[LEASE_GROUP, r] and outcome[OUTCOME_STAYS, i]:
                n = leases[LEASE_NODE, r]
                free[n] -= leases[LEASE_GPUS, r]
                for h in range(3):
                    granted[h, i] = leases[LEASE_HOST + h, r]
                    each = leases[LEASE_HOST + h, r] if leases[LEASE_HOST + h, r] > 0 else share[h, n]
                    left[h, n] -= leases[LEASE_GPUS, r] * each
    else:
        outcome[OUTCOME_STAYS] = 0
    for p in range(len(rows)):
        i = rows[p]
        if (
            outcome[OUTCOME_LEADER, i] != i
            or outcome[OUTCOME_STAYS, i]
            or outcome[OUTCOME_REASON, i] == TOO_BIG
        ):
            continue
        if falls_back and outcome[OUTCOME_KIND, i] < 0:
            continue
        entry_range[0, i] = at
        if not falls_back:  # every job that fits, even if others before it do not
            end = -1
            for kind in range(64):
                if end < 0 and (int(block[QUEUE_ACCEPTED_KINDS, i]) >> kind) & 1:
                    end = _take_first(gpus[p], host[:, p], kind, free, left, node_kind, entries, at)
                    outcome[OUTCOME_KIND, i] = kind
            if end < 0:
                outcome[OUTCOME_KIND, i] = -1
                outcome[OUTCOME_REASON, i] = (
                    NO_HOST if outcome[OUTCOME_REASON, i] == 0 else outcome[OUTCOME_REASON, i]
                )
                continue
            outcome[OUTCOME_REASON, i] = 0
            entry_range[1, i] = at = end
            for h in range(2):
                granted[h, i] = host[h, p]
            continue
        kind = outcome[OUTCOME_KIND, i]
        first = 0
        while node_kind[first] != kind:
            first += 1
        wanted = host[:, p].copy()
        end = _take_first(gpus[p], wanted, kind, free, left, node_kind, entries, at)
        if end < 0:
            if wanted[0] > share[0, first] or wanted[1] > share[1, first]:
                wanted = share[:, first].copy()
                end = _take_first(gpus[p], wanted, kind, free, left, node_kind, entries, at)
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
                            _fall_back(n, take * wanted, rows[:p], entry_range, entries, granted, left, share)
                            need -= take
                end = _take_first(gpus[p], wanted, kind, free, left, node_kind, entries, at)
        if end < 0:
            outcome[OUTCOME_KIND, i], outcome[OUTCOME_REASON, i] = -1, NO_HOST
            entry_range[0, i] = entry_range[1, i] = at
            continue
        entry_range[1, i] = at = end
        for h in range(2):
            granted[h, i] = wanted[h]
    for p in range(len(rows)):
        i = rows[p]
        if outcome[OUTCOME_LEADER, i] != i:
            outcome[OUTCOME_KIND, i], outcome[OUTCOME_REASON, i] = (
                outcome[OUTCOME_KIND, outcome[OUTCOME_LEADER, i]],
                outcome[OUTCOME_REASON, outcome[OUTCOME_LEADER, i]],
            )
    return entry_range, entries, outcome, granted
