"""Selection of the jobs that run, by number of GPUs alone; placers then find nodes for them."""

from __future__ import annotations

from typing import Literal, NamedTuple, NoReturn, get_args

import numpy as np

from wattline.core.leases import LEASE_GPUS, LEASE_GROUP, LEASE_JOB, LEASE_NODE
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_ACCEPTED_KINDS, QUEUE_HELD_GPUS, QUEUE_JOB
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.errors import ConfigError, GrantedTwice, PlanError, UnknownJob, did_you_mean
from wattline.jit import F1, F2, I1, I2, INT, inner, kernel
from wattline.models.remaining import group_remaining_s
from wattline.placement.kernel_arrays import (
    NO_INTS,
    NODE_COLUMNS,
    PLAN_COLUMNS,
    KindCapacity,
    NodeColumns,
    PlanColumns,
    count_gpus,
    take_node_columns,
    take_plan_columns,
)

Backfill = Literal["none", "easy", "greedy"]
"""Jobs that may overtake a job that does not fit; see `select_jobs`."""

NO_ROOM, OUTRANKED = REASONS.index(Reason.NO_ROOM), REASONS.index(Reason.OUTRANKED)
TOO_BIG, NO_HOST = REASONS.index(Reason.TOO_BIG), REASONS.index(Reason.NO_HOST)
_NOT_PLANNED = REASONS.index(Reason.HELD)
BACKFILL_MODES: tuple[str, ...] = get_args(Backfill)
_NONE, _EASY, _GREEDY = range(3)
NO_TIMES = np.empty(0)

OUTCOME_ROWS = 4
OUTCOME_LEADER, OUTCOME_KIND, OUTCOME_STAYS, OUTCOME_REASON = range(OUTCOME_ROWS)


class Selection(NamedTuple):
    """Jobs that run. *outcome* has a column per row of the queue and these rows:

    `OUTCOME_LEADER` the row of the queue that leads its group, -1: not in the plan; `OUTCOME_KIND` the GPU
    kind it runs on, -1: it waits; `OUTCOME_STAYS` 1 if it leads a group that keeps its GPUs;
    `OUTCOME_REASON` why it waits. It is one array because every array costs time on its way in and out of
    compiled code.
    """

    outcome: Ints
    free_gpus: Ints  # by node, without the GPUs of jobs that stay
    unplaced: int  # number of leaders that need nodes
    waiting: int  # number of rows with a reason


def check_backfill(backfill: str) -> None:
    """Raise unless *backfill* is one of the modes of `select_jobs`."""
    if backfill not in BACKFILL_MODES:
        raise ConfigError(
            f"backfill must be one of {', '.join(BACKFILL_MODES)}, got {backfill!r}",
            hint=did_you_mean(backfill, BACKFILL_MODES),
        )


def select_jobs(
    plan: Plan, snapshot: Snapshot, models: Models, backfill: Backfill, excluded_kinds: Ints = NO_INTS
) -> Selection:
    """Select, in the order of the plan, the jobs for which one GPU kind has enough GPUs that are up.

    *backfill* says which jobs may overtake one that does not fit: `none` of them; `greedy` all that fit;
    `easy` those that, by the prediction of the models, do not delay the first job that does not fit
    (aggressive backfilling with one reservation; Lifka, JSSPP 1995). Under a preemptive plan overtaking
    cannot delay a job with precedence, so `easy` reserves nothing. *excluded_kinds* has, by row of the queue,
    a bit for each kind on which the job finds no nodes however many GPUs are free; empty: none is excluded.
    """
    if plan.node is not None:
        raise PlanError("the plan names nodes, but this placer chooses nodes itself; type --place pack")
    excluded_kinds = exclude_other_kinds(plan, snapshot, excluded_kinds)
    columns, nodes = take_plan_columns(plan), take_node_columns(snapshot)
    remaining_s = NO_TIMES
    while True:
        outcome, free_gpus, unplaced, waiting, needs_remaining, invalid = _select(
            columns,
            nodes,
            len(snapshot.nodes.kind.names),
            snapshot.free_gpus,
            snapshot.queue.block,
            snapshot.leases.block,
            BACKFILL_MODES.index(backfill),
            remaining_s,
            excluded_kinds,
        )
        if invalid >= 0:
            raise_plan_error(plan, invalid, snapshot)
        if not needs_remaining:
            return Selection(outcome, free_gpus, unplaced, waiting)
        remaining_s = group_remaining_s(snapshot, models, plan)


def exclude_other_kinds(plan: Plan, snapshot: Snapshot, excluded_kinds: Ints = NO_INTS) -> Ints:
    """Return *excluded_kinds* with all kinds added but the one that the plan names for a job."""
    if plan.kind is None:
        return excluded_kinds
    queued = len(snapshot.queue)
    others = np.zeros(queued, dtype=np.int64)
    valid = (plan.row >= 0) & (plan.row < queued) & (plan.kind >= 0)
    others[plan.row[valid]] = ~(1 << plan.kind[valid])
    return others | excluded_kinds if len(excluded_kinds) else others


def check_entries(plan: Plan, snapshot: Snapshot) -> None:
    """Raise unless every entry of *plan* is a job of the queue, with GPUs, and occurs once."""
    invalid = _check_entries(plan.row, plan.gpus, plan.group, len(snapshot.queue))
    if invalid >= 0:
        raise_plan_error(plan, invalid, snapshot)


def raise_plan_error(plan: Plan, at: int, snapshot: Snapshot) -> NoReturn:
    """Raise the error of a plan with the invalid entry *at*."""
    row, group, queued = int(plan.row[at]), int(plan.group[at]), len(snapshot.queue)
    if not 0 <= row < queued:
        raise UnknownJob(f"the plan grants GPUs to row {row} of a queue of {queued} jobs")
    if plan.gpus[at] <= 0:
        raise PlanError(f"the plan grants {plan.gpus[at]} GPUs to row {row}, expected at least 1")
    if np.count_nonzero(plan.row == row) > 1:
        raise GrantedTwice(f"the plan grants GPUs to row {row} twice")
    raise PlanError(f"the plan puts row {row} into the group of row {group}, which leads no group")


@inner
def _find_invalid_entry(plan_row: Ints, plan_gpus: Ints, plan_group: Ints, queued: int) -> int:
    """Return the first invalid entry of a plan; -1: none is."""
    leads = np.zeros(queued, dtype=np.int64)  # 0 not in the plan, 1 follows, 2 leads
    for p in range(len(plan_row)):
        i = plan_row[p]
        if i < 0 or i >= queued or plan_gpus[p] <= 0 or leads[i] != 0:
            return p
        leads[i] = 2 if plan_group[p] == i else 1
    for p in range(len(plan_row)):
        leader = plan_group[p]
        if leader != plan_row[p] and (leader < 0 or leader >= queued or leads[leader] != 2):
            return p
    return -1


@kernel(I1, I1, I1, INT)
def _check_entries(plan_row: Ints, plan_gpus: Ints, plan_group: Ints, queued: int) -> int:
    return _find_invalid_entry(plan_row, plan_gpus, plan_group, queued)


@inner
def _find_held_kinds(queue: Floats, leases: Ints, node_kind: Ints) -> Ints:
    """Return by row of the queue the kind of the GPUs that it holds; -1: none."""
    held_kind = np.full(queue.shape[1], -1, dtype=np.int64)
    i = 0
    for r in range(leases.shape[1]):
        while queue[QUEUE_JOB, i] < leases[LEASE_JOB, r]:
            i += 1
        held_kind[i] = node_kind[leases[LEASE_NODE, r]]
    return held_kind


@inner
def _compute_reservation(
    need: int, accepted: int, kind_of: Ints, granted: Ints, room: Ints, off_gpus: Ints, remaining_s: Floats
) -> tuple[int, float, int]:
    """Return the kind and the seconds after which *need* GPUs are free, and how many more are free then.

    Nodes that are off count as free: they are switched on for the first job in line.
    """
    best, best_s, best_extra = -1, np.inf, 0
    selected = np.flatnonzero(kind_of >= 0)
    for k in range(len(room)):
        if not (accepted >> k) & 1:
            continue
        free, when_s = room[k] + off_gpus[k], -np.inf
        while free < need:  # find the next end one by one: few are needed
            next_s = np.inf
            for i in selected:
                if kind_of[i] == k and when_s < remaining_s[i] < next_s:
                    next_s = remaining_s[i]
            if next_s == np.inf:
                break
            for i in selected:
                if kind_of[i] == k and remaining_s[i] == next_s:
                    free += granted[i]
            when_s = next_s
        if free >= need and when_s < best_s:
            best, best_s, best_extra = k, when_s, free - need
    return best, best_s, best_extra


@inner
def _any_entry_fits(start: int, plan: PlanColumns, queue: Floats, room: Ints) -> bool:
    """Return whether an entry of the plan from *start* on fits into the *room* that is left."""
    row, gpus, _, _, _ = plan
    for p in range(start, len(row)):
        for k in range(len(room)):
            if room[k] >= gpus[p] and (int(queue[QUEUE_ACCEPTED_KINDS, row[p]]) >> k) & 1:
                return True
    return False


@inner
def _can_ever_fit(need: int, accepted: int, total_gpus: Ints) -> bool:
    """Return whether an accepted kind has *need* GPUs in all."""
    fits = False
    for k in range(len(total_gpus)):
        fits = fits or (total_gpus[k] >= need and (accepted >> k) & 1 == 1)
    return fits


@inner
def _prepare_outcome(plan: PlanColumns, queue: Floats, outcome: Ints) -> Ints:
    """Fill *outcome* for a queue of which no job runs; return by leader the kinds that its group accepts."""
    row, _, group, plan_reason, _ = plan
    queued = queue.shape[1]
    leader_of, reason = outcome[OUTCOME_LEADER], outcome[OUTCOME_REASON]
    leader_of[:] = -1
    outcome[OUTCOME_KIND] = -1
    accepted = np.empty(queued, dtype=np.int64)
    for i in range(queued):
        reason[i] = _NOT_PLANNED if len(plan_reason) == 0 else plan_reason[i]
        accepted[i] = int(queue[QUEUE_ACCEPTED_KINDS, i])
    for p in range(len(row)):
        accepted[group[p]] &= accepted[row[p]]
        leader_of[row[p]] = group[p]
    return accepted


@inner
def follow_leaders(plan_row: Ints, plan_group: Ints, outcome: Ints) -> None:
    """Copy kind and reason of each leader to the members of its group."""
    for p in range(len(plan_row)):
        i, leader = plan_row[p], plan_group[p]
        if leader != i:
            outcome[OUTCOME_KIND, i], outcome[OUTCOME_REASON, i] = (
                outcome[OUTCOME_KIND, leader],
                outcome[OUTCOME_REASON, leader],
            )


@inner
def _walk_plan(
    plan: PlanColumns,
    queue: Floats,
    held_kind: Ints,
    capacity: KindCapacity,
    mode: int,
    remaining_s: Floats,
    excluded_kinds: Ints,
    outcome: Ints,
) -> bool:
    """Write leader, kind and reason of every job into *outcome*.

    Return whether an `easy` reservation needs *remaining_s*; the call is then repeated with it.
    """
    plan_row, plan_gpus, plan_group, _, non_preemptive = plan
    kind_of, reason = outcome[OUTCOME_KIND], outcome[OUTCOME_REASON]
    accepted = _prepare_outcome(plan, queue, outcome)
    granted = np.zeros(queue.shape[1], dtype=np.int64)
    room, total_gpus = capacity.up.copy(), capacity.total
    reserves = mode == _EASY and non_preemptive
    head = -1  # first row of the plan that does not fit
    head_kind = -1
    shadow_s, extra = np.inf, 0  # when the head can start; GPUs it leaves over then
    for turn in range(2 if non_preemptive else 1):  # running jobs go first unless they may be stopped
        for p in range(len(plan_row)):
            i = plan_row[p]
            if plan_group[p] != i:
                continue  # it runs where its leader runs
            allowed = accepted[i] if len(excluded_kinds) == 0 else accepted[i] & ~excluded_kinds[i]
            held, need = held_kind[i], plan_gpus[p]
            stays = held >= 0 and queue[QUEUE_HELD_GPUS, i] == need and (allowed >> held) & 1 == 1
            if non_preemptive and stays != (turn == 0):
                continue
            if head >= 0 and mode == _NONE:
                reason[i] = OUTRANKED
                continue
            kind = -1
            if stays and room[held] >= need:
                kind = held
            if kind < 0:  # includes jobs that lose the kind they hold
                for k in range(len(room)):
                    reserved = reserves and k == head_kind and remaining_s[i] > shadow_s and need > extra
                    if kind < 0 and room[k] >= need and (allowed >> k) & 1 and not reserved:
                        kind = k
            if kind >= 0:
                if head >= 0 and reserves and kind == head_kind and not stays and remaining_s[i] > shadow_s:
                    extra -= need
                room[kind] -= need
                kind_of[i], granted[i], reason[i] = kind, need, 0
            elif not _can_ever_fit(need, accepted[i], total_gpus):
                reason[i] = TOO_BIG
            elif head >= 0:
                reason[i] = OUTRANKED
            else:
                reason[i] = NO_ROOM
                head = i
                if reserves and _any_entry_fits(p + 1, plan, queue, room):
                    if len(remaining_s) == 0:
                        return True
                    head_kind, shadow_s, extra = _compute_reservation(
                        need, accepted[i], kind_of, granted, room, capacity.off, remaining_s
                    )
    follow_leaders(plan_row, plan_group, outcome)
    return False


@inner
def _mark_staying(
    plan: PlanColumns, queue: Floats, held_kind: Ints, leases: Ints, outcome: Ints, free_gpus: Ints
) -> int:
    """Mark leaders that keep their kind and size as staying; add the GPUs of all others to *free_gpus*.

    Return the number of leaders that need nodes.
    """
    row, gpus, _, _, _ = plan
    kind_of, stays = outcome[OUTCOME_KIND], outcome[OUTCOME_STAYS]
    stays[:] = 0
    unplaced = 0
    for p in range(len(row)):
        i = row[p]
        if outcome[OUTCOME_LEADER, i] == i and kind_of[i] >= 0:
            stays[i] = kind_of[i] == held_kind[i] and gpus[p] == queue[QUEUE_HELD_GPUS, i]
            unplaced += 1 - stays[i]
    i = 0
    for r in range(leases.shape[1]):
        while queue[QUEUE_JOB, i] < leases[LEASE_JOB, r]:
            i += 1
        if leases[LEASE_JOB, r] != leases[LEASE_GROUP, r]:
            unplaced += stays[i]
            stays[i] = 0  # it ran on the GPUs of another job
        elif stays[i] == 0:
            free_gpus[leases[LEASE_NODE, r]] += leases[LEASE_GPUS, r]
    return unplaced


@inner
def select_rows(
    plan: PlanColumns,
    nodes: NodeColumns,
    kinds: int,
    node_free_gpus: Ints,
    queue: Floats,
    leases: Ints,
    mode: int,
    remaining_s: Floats,
    excluded_kinds: Ints,
) -> tuple[Ints, Ints, int, int, bool, int]:
    """Return the fields of a `Selection`, whether *remaining_s* is needed, and an invalid entry or -1."""
    free_gpus = node_free_gpus.copy()
    outcome = np.empty((OUTCOME_ROWS, queue.shape[1]), dtype=np.int64)
    invalid = _find_invalid_entry(plan.row, plan.gpus, plan.group, queue.shape[1])
    if invalid >= 0:
        return outcome, free_gpus, 0, 0, False, invalid
    held_kind = _find_held_kinds(queue, leases, nodes.kind)
    needs_remaining = _walk_plan(
        plan, queue, held_kind, count_gpus(nodes, kinds), mode, remaining_s, excluded_kinds, outcome
    )
    if needs_remaining:
        return outcome, free_gpus, 0, 0, needs_remaining, invalid
    unplaced = _mark_staying(plan, queue, held_kind, leases, outcome, free_gpus)
    waiting = 0
    for i in range(outcome.shape[1]):
        waiting += outcome[OUTCOME_REASON, i] != 0
    return outcome, free_gpus, unplaced, waiting, needs_remaining, invalid


@kernel(PLAN_COLUMNS, NODE_COLUMNS, INT, I1, F2, I2, INT, F1, I1)
def _select(
    plan: PlanColumns,
    nodes: NodeColumns,
    kinds: int,
    node_free_gpus: Ints,
    queue: Floats,
    leases: Ints,
    mode: int,
    remaining_s: Floats,
    excluded_kinds: Ints,
) -> tuple[Ints, Ints, int, int, bool, int]:
    return select_rows(plan, nodes, kinds, node_free_gpus, queue, leases, mode, remaining_s, excluded_kinds)
