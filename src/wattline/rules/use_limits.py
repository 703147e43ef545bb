"""Limits of use, and jobs that give way to others, as compiled code."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wattline.core.leases import LEASE_GPUS, LEASE_NODE
from wattline.core.table import Bools, Ints
from wattline.jit import I1, I2, inner, record
from wattline.placement.kernel_arrays import NodeColumns, PlanColumns
from wattline.rules.backfill_heads import STAYS, UNDECIDED, WAITS
from wattline.rules.node_search import NodeRules, RowRules, find_nodes, may_use


class UseRules(NamedTuple):
    """Limits of use; row i of the queue counts for the counters `of_row[:, i]`, -1: none."""

    of_row: Ints  # 2-D
    most: Ints  # by counter: jobs, GPUs
    reason: Ints
    borrow: Ints  # 1: beyond it a job may start after all others


USE_RULES = record(UseRules, I2, I2, I1, I1)


@inner
def find_exceeded(i: int, gpus: int, borrows: bool, use: UseRules, used: Ints) -> int:
    """Return the first counter that row *i* exceeds with one job and *gpus* more; -1: none.

    With *borrows*, counters beyond which it may borrow do not count.
    """
    for line in range(use.of_row.shape[0]):
        c = use.of_row[line, i]
        if c < 0 or (borrows and use.borrow[c] == 1):
            continue
        if used[0, c] + 1 > use.most[0, c] or used[1, c] + gpus > use.most[1, c]:
            return int(c)
    return -1


@inner
def count_use(i: int, sign: int, gpus: int, use: UseRules, used: Ints) -> None:
    """Count row *i* with *gpus*, or with *sign* -1 count it no longer."""
    for line in range(use.of_row.shape[0]):
        c = use.of_row[line, i]
        if c >= 0:
            used[0, c] += sign
            used[1, c] += sign * gpus


@inner
def evict_jobs(
    i: int,
    p: int,
    need: int,
    accepted: int,
    kinds: int,
    plan: PlanColumns,
    nodes: NodeColumns,
    rules: NodeRules,
    rows: RowRules,
    partition: Ints,
    blocked: Ints,
    free: Ints,
    found: Ints,
    status: Ints,
    holds: Bools,
    evicted: Bools,
    leases: Ints,
    old_start: Ints,
    use: UseRules,
    used: Ints,
    keeps: Ints,
) -> tuple[int, int]:
    """Take GPUs of running jobs until row *i* fits; return the number of its nodes, and their kind.

    Jobs behind it give way in a plan that allows that, and those that it has the right to preempt in any.
    The last in the plan give way first. If that does not help, nothing changes and the number is 0.
    """
    if plan.non_preemptive and rows.preempts[i] == 0:
        return 0, -1
    before = free.copy()
    taken = np.zeros(len(plan.row), dtype=np.int64)
    count, kind, some = 0, -1, 0
    for q in range(len(plan.row) - 1, -1, -1):
        j = plan.row[q]
        if j == i or not holds[j] or plan.group[q] != j:
            continue
        behind = not plan.non_preemptive and q > p and status[j] == UNDECIDED
        right = (rows.preempts[i] >> rows.qos[j]) & 1 == 1
        if not (behind or right):
            continue
        helps = False
        for r in range(old_start[j], old_start[j + 1]):
            n = leases[LEASE_NODE, r]
            helps = helps or may_use(n, i, partition, blocked, rules, rows.named)
        if not helps:
            continue
        for r in range(old_start[j], old_start[j + 1]):
            free[leases[LEASE_NODE, r]] += leases[LEASE_GPUS, r]
        taken[some] = j
        some += 1
        count, kind, _ = find_nodes(
            i, need, accepted, kinds, nodes, rules, rows, partition, blocked, free, found
        )
        if count > 0:
            break
    if count == 0:
        free[:] = before
        return 0, -1
    for s in range(some):
        holds[taken[s]] = False
        count_use(taken[s], -1, keeps[taken[s]], use, used)
        if status[taken[s]] == STAYS:
            status[taken[s]] = WAITS
            evicted[taken[s]] = True
    return count, kind
