"""Entries of a plan for jobs that it leaves out, but that can share the GPUs of a job in it as one array.

Policies that choose the number of GPUs, or hold a budget, plan each job as if it had GPUs of its own, and
leave out the jobs for which GPUs or watts do not suffice. A member of an array needs neither.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattline.core.plan import Plan
from wattline.core.queue import QUEUE_ACCEPTED_KINDS
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Ints
from wattline.models.array_speed import has_fusion_key
from wattline.policy.chain import reorder

_SCARCE = [REASONS.index(one) for one in (Reason.NO_ROOM, Reason.OUTRANKED, Reason.OVER_BUDGET)]


def add_array_members(snapshot: Snapshot, plan: Plan) -> Plan:
    """Return *plan* with all members of the running arrays of which it has at least one.

    They get the entry of the first one, so that the array runs on.
    """
    leases, job, key = snapshot.leases, snapshot.queue.job, snapshot.jobs.fuse.codes
    shared = np.flatnonzero((leases.job != leases.group) & (key[leases.job] == key[leases.group]))
    if not len(shared):
        return plan
    entry = _find_entries(snapshot, plan)
    member, lead = (np.searchsorted(job, column[shared]) for column in (leases.job, leases.group))
    rows, models = [], []
    for one in np.unique(lead).tolist():
        array = np.unique([one, *member[lead == one].tolist()])
        present = entry[array] >= 0
        if present.any() and not present.all():
            missing = array[~present]
            rows += missing.tolist()
            models += [int(entry[array[present]].min())] * len(missing)
    return _append(plan, np.array(rows, dtype=np.int64), np.array(models, dtype=np.int64))


def add_guests(snapshot: Snapshot, plan: Plan) -> tuple[Plan, Bools]:
    """Return *plan* with waiting jobs that may join one of its jobs that start, and which entries these are.

    They are jobs of the same fusion key, team and request, left out for want of GPUs or watts; each gets the
    entry of the first job that it may join.
    """
    queue, jobs = snapshot.queue, snapshot.jobs
    none = np.zeros(len(plan), dtype=np.bool_)
    if plan.reason is None or len(plan) == len(queue):
        return plan, none
    with_key = np.asarray(has_fusion_key(jobs)[queue.job])
    out = with_key & ~queue.running & np.isin(plan.reason, _SCARCE) & (_find_entries(snapshot, plan) < 0)
    host = with_key[plan.row] & ~queue.running[plan.row]
    host &= plan.gpus == queue.requested_gpus[plan.row]
    if not out.any() or not host.any():
        return plan, none
    accepts = queue.block[QUEUE_ACCEPTED_KINDS].astype(np.int64)
    columns = (jobs.fuse.codes[queue.job], jobs.team.codes[queue.job], queue.requested_gpus, accepts)
    same = np.unique(np.stack(columns), axis=1, return_inverse=True)[1].reshape(-1)
    first: dict[int, int] = {}
    for entry in np.flatnonzero(host).tolist():
        first.setdefault(int(same[plan.row[entry]]), entry)
    rows = [row for row in np.flatnonzero(out).tolist() if int(same[row]) in first]
    models = [first[int(same[row])] for row in rows]
    plan = _append(plan, np.array(rows, dtype=np.int64), np.array(models, dtype=np.int64))
    return plan, np.arange(len(plan)) >= len(plan) - len(rows)


def remove_lonely(plan: Plan, guests: Bools, reason: Ints | None) -> Plan:
    """Return *plan* without the *guests* that have joined no job; *reason* is why jobs were left out."""
    if not guests.any() or reason is None:
        return plan
    keep = ~guests | (plan.group != plan.row)
    restored = reason.copy()
    restored[plan.row[keep]] = 0
    return replace(reorder(plan, np.flatnonzero(keep), non_preemptive=plan.non_preemptive), reason=restored)


def _find_entries(snapshot: Snapshot, plan: Plan) -> Ints:
    """Return the entry of each row of the queue; -1: it is left out."""
    entry = np.full(len(snapshot.queue), -1, dtype=np.int64)
    entry[plan.row] = np.arange(len(plan))
    return entry


def _append(plan: Plan, rows: Ints, models: Ints) -> Plan:
    """Return *plan* with *rows* at its end, each with the values of the entry in *models*, alone."""
    if not len(rows):
        return plan
    order = np.concatenate((np.arange(len(plan)), models))
    longer = reorder(plan, order, non_preemptive=plan.non_preemptive)
    return replace(
        longer,
        row=np.concatenate((plan.row, rows)),
        group=np.concatenate((plan.group, rows)),
    )
