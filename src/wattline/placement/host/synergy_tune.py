"""Placement by sensitivity to cores, memory and storage (after Mohan et al., OSDI 2022, "Synergy")."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from wattline.core.leases import LEASE_GPUS, LEASE_GROUP, LEASE_JOB, LEASE_NODE
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_JOB, QUEUE_REQUESTED_GPUS
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError
from wattline.jit import F2, FLOAT, I1, I2, inner, kernel
from wattline.models.sensitivity import (
    MAX_EXTRA_NODES,
    Sensitivity,
    build_sensitivity,
    find_job_points,
    find_saturation_points,
)
from wattline.placement.host.host_arrays import (
    HOST_NODES,
    JOB_SETS,
    POINT_TABLE,
    FreeResources,
    HostNodes,
    JobSets,
    NodeJobs,
    PointTable,
)
from wattline.placement.host.host_split import raise_spanning_job, split_host, swap_best_pair
from wattline.placement.host.node_selection import find_point_set, select_extra_nodes, select_nodes
from wattline.placement.kernel_arrays import (
    ENTRY_GPUS,
    ENTRY_NODE,
    PLAN_COLUMNS,
    NodeEntries,
    PlanColumns,
    take_plan_columns,
)
from wattline.placement.lease_builder import build_placement
from wattline.placement.selection import (
    OUTCOME_KIND,
    OUTCOME_LEADER,
    OUTCOME_STAYS,
    Backfill,
    Selection,
    check_backfill,
    select_jobs,
)


@dataclass(frozen=True)
class Tune:
    """GPUs as `Pack` places them, and the host resources of each node where they help most.

    A job goes where the host resources that it wants are left over, or where it leaves over what others
    lack. Running jobs stay, unless swapping two jobs makes all together faster by *move* for each of the two
    that has to restart; 1 is a job at its usual speed. On each node every job first gets the least that
    makes it as fast as its proportional share; what is left goes in steps to the jobs that gain most speed
    for what the step takes. So no job is slower than with its share, however many others are there. Jobs that
    share GPUs, or are spread over more nodes than they need, have their share. *keep* of its best speed is
    all that a job is taken to want when it is placed.
    *backfill* says which jobs may overtake one that does not fit; see
    `wattline.placement.selection.select_jobs`.
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
        """Return leases for the plan, and a reason for every job without."""
        selection = select_jobs(plan, snapshot, models, self.backfill)
        no_preference = np.full(len(snapshot.queue), -1, dtype=np.int64)
        return place_selection(plan, snapshot, models, selection, no_preference, self.keep, self.move)


def place_selection(
    plan: Plan,
    snapshot: Snapshot,
    models: Models,
    selection: Selection,
    preferred_node: Ints,
    keep: float,
    move: float,
) -> Placement:
    """Return the placement of the selected jobs; *preferred_node* has a node by row of the queue, or -1."""
    nodes = snapshot.nodes
    known, job_sets = look_up_sensitivity(plan, snapshot, models)
    # Plain tuples where kernels take records: building a NamedTuple takes longer.
    entry_range, entries, host, outcome, host_limited = _tune(
        take_plan_columns(plan),
        selection.outcome,
        selection.free_gpus,
        preferred_node,
        move,
        snapshot.queue.block,
        snapshot.leases.block,
        cast(
            HostNodes,
            (
                nodes.kind.codes,
                nodes.gpus,
                nodes.host,
                nodes.host_share,
                known.node_shape,
                snapshot.boot_done_s,
            ),
        ),
        job_sets,
        cast(PointTable, (known.set_start, find_saturation_points(known, keep), known.host, known.speed)),
    )
    selection = selection._replace(outcome=outcome)
    return build_placement(plan, snapshot, selection, (entry_range, entries), host, host_limited)


def look_up_sensitivity(plan: Plan, snapshot: Snapshot, models: Models) -> tuple[Sensitivity, JobSets]:
    """Return the sensitivity of jobs to host resources, and their point sets with the GPUs of the plan."""
    known, block = build_sensitivity(models, snapshot.jobs, snapshot.nodes), snapshot.queue.block
    if (plan.gpus == block[QUEUE_REQUESTED_GPUS, plan.row]).all():
        job = block[QUEUE_JOB].astype(np.int64)
        return known, JobSets(known.point_sets.take(job, axis=0), known.spread_sets.take(job, axis=0))
    return _add_resized_jobs(known, plan, snapshot, models)


def _add_resized_jobs(
    known: Sensitivity, plan: Plan, snapshot: Snapshot, models: Models
) -> tuple[Sensitivity, JobSets]:
    """Return the same as `look_up_sensitivity` where jobs have other GPUs than they requested."""
    jobs, nodes, queue = snapshot.jobs, snapshot.nodes, snapshot.queue
    sets, spread = known.point_sets[queue.job].copy(), known.spread_sets[queue.job].copy()
    added: dict[tuple[int, int], Ints] = {}
    hosts, speeds, lengths = [known.host], [known.speed], np.diff(known.set_start).tolist()
    for row, gpus in zip(plan.row.tolist(), plan.gpus.tolist(), strict=True):
        job = int(queue.job[row])
        if gpus == jobs.gpus[job]:
            continue
        key = (int(known.point_sets[job, 0]), gpus)
        if key not in added:
            parts = find_job_points(models, jobs, nodes, job, gpus)
            number = np.arange(len(lengths), len(lengths) + len(parts), dtype=np.int64)
            added[key] = number.reshape(-1, MAX_EXTRA_NODES + 1)
            hosts += [host for host, _ in parts]
            speeds += [speed for _, speed in parts]
            lengths += [len(speed) for _, speed in parts]
        sets[row], spread[row] = added[key][:, 0], added[key][:, 1:].reshape(-1)
    extended = replace(
        known,
        set_start=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
        host=np.ascontiguousarray(np.concatenate(hosts, axis=1)),
        speed=np.concatenate(speeds),
    )
    return extended, JobSets(sets, spread)


@inner
def _add_staying(
    outcome: Ints,
    alone: Bools,
    queue: Floats,
    leases: Ints,
    left: Ints,
    nodes: HostNodes,
    sets: Ints,
    points: PointTable,
    entry_range: Ints,
    entries: Ints,
) -> int:
    """Write the entries of jobs that stay, reduce *left* by their wants; return the end of the entries."""
    at = i = 0
    for r in range(leases.shape[1]):
        while queue[QUEUE_JOB, i] < leases[LEASE_JOB, r]:
            i += 1
        if not outcome[OUTCOME_STAYS, i] or leases[LEASE_JOB, r] != leases[LEASE_GROUP, r]:
            continue
        n, gpus = leases[LEASE_NODE, r], leases[LEASE_GPUS, r]
        if entry_range[1, i] == 0:
            entry_range[0, i] = at
        entries[ENTRY_NODE, at], entries[ENTRY_GPUS, at] = n, gpus
        at += 1
        entry_range[1, i] = at
        for h in range(3):
            wanted = (
                points.host[h, points.saturated[sets[i, nodes.shape[n]]]] if alone[i] else nodes.share[h, n]
            )
            left[h, n] -= gpus * wanted
    return at


@inner
def _select_all_nodes(
    plan: PlanColumns,
    outcome: Ints,
    alone: Bools,
    free_gpus: Ints,
    preferred_node: Ints,
    queue: Floats,
    leases: Ints,
    nodes: HostNodes,
    job_sets: JobSets,
    points: PointTable,
) -> NodeEntries:
    """Return the nodes of all jobs that run, including those that stay."""
    count = len(nodes.kind)
    leader_of, kind_of, stays = outcome[OUTCOME_LEADER], outcome[OUTCOME_KIND], outcome[OUTCOME_STAYS]
    free = FreeResources(free_gpus.copy(), nodes.host.copy())
    capacity = 0
    for p in range(len(plan.row)):
        capacity += min(plan.gpus[p], count)
    entry_range = np.zeros((2, queue.shape[1]), dtype=np.int64)
    entries = np.empty((2, capacity + leases.shape[1]), dtype=np.int64)
    sets, spread = job_sets
    at = _add_staying(outcome, alone, queue, leases, free.host, nodes, sets, points, entry_range, entries)
    for p in range(len(plan.row)):
        i, need = plan.row[p], plan.gpus[p]
        if leader_of[i] != i or kind_of[i] < 0 or stays[i]:
            continue
        n = 0
        while nodes.kind[n] != kind_of[i]:
            n += 1
        wanted = points.host[:, points.saturated[sets[i, nodes.shape[n]]]] if alone[i] else nodes.share[:, n]
        entry_range[0, i] = at
        n = preferred_node[i]
        if n >= 0 and free.gpus[n] >= need:
            free.gpus[n] -= need
            for h in range(3):
                free.host[h, n] -= need * wanted[h]
            entries[ENTRY_NODE, at], entries[ENTRY_GPUS, at] = n, need
            at += 1
            entry_range[1, i] = at
            continue
        end = -1
        if alone[i] and need > 1:
            end = select_extra_nodes(need, kind_of[i], sets[i], spread[i], free, nodes, points, entries, at)
        if end < 0:
            end = select_nodes(need, kind_of[i], wanted, free, nodes, entries, at)
        at = entry_range[1, i] = end
    return entry_range, entries


@inner
def _collect_node_jobs(
    on_one_node: Bools, stays: Ints, entry_range: Ints, entries: Ints, count: int
) -> NodeJobs:
    """Return the jobs that are *on_one_node*, by node; their points are not set yet."""
    start = np.zeros(count + 1, dtype=np.int64)
    for i in range(len(on_one_node)):
        if on_one_node[i]:
            start[entries[ENTRY_NODE, entry_range[0, i]] + 1] += 1
    for n in range(count):
        start[n + 1] += start[n]
    end = start.copy()
    rows, gpus = np.empty(start[count], dtype=np.int64), np.empty(start[count], dtype=np.int64)
    point, runs = np.empty(start[count], dtype=np.int64), np.empty(start[count], dtype=np.bool_)
    for i in range(len(on_one_node)):
        if on_one_node[i]:
            at = entry_range[0, i]
            n = entries[ENTRY_NODE, at]
            rows[end[n]], gpus[end[n]], runs[end[n]] = i, entries[ENTRY_GPUS, at], stays[i]
            end[n] += 1
    return NodeJobs(start, rows, gpus, point, runs)


@inner
def _split_nodes(
    jobs: NodeJobs, spare: Ints, move: float, nodes: HostNodes, sets: Ints, points: PointTable
) -> None:
    """Split the *spare* host of all nodes among their *jobs*, and swap jobs while that helps.

    *move* inf: no job is swapped.
    """
    start, rows, gpus, point, _ = jobs
    count = len(nodes.kind)
    left, speed_sum = spare.copy(), np.empty(count)
    for _ in range(start[count] + 1):
        for n in range(count):
            left[:, n] = spare[:, n]
            speed_sum[n] = split_host(
                rows[start[n] : start[n + 1]],
                gpus[start[n] : start[n + 1]],
                sets[:, nodes.shape[n]],
                left[:, n],
                nodes.host[:, n],
                points,
                point[start[n] : start[n + 1]],
            )
        if move == np.inf or not swap_best_pair(jobs, speed_sum, move, spare, left, nodes, sets, points):
            break


@inner
def split_hosts(
    plan: PlanColumns,
    outcome: Ints,
    alone: Bools,
    entry_range: Ints,
    entries: Ints,
    move: float,
    nodes: HostNodes,
    job_sets: JobSets,
    points: PointTable,
) -> tuple[Ints, bool]:
    """Return the host resources of each GPU of a leader, and whether a job could use more.

    Jobs may be swapped: then their entries change, and they do not stay.
    """
    queued, count = outcome.shape[1], len(nodes.kind)
    sets, host, speed = job_sets.sets, points.host, points.speed
    own = np.full(queued, -1, dtype=np.int64)  # point set of a leader on its nodes; -1: it has its share
    on_one_node, spans_nodes = np.zeros(queued, dtype=np.bool_), np.zeros(queued, dtype=np.bool_)
    left = nodes.host.copy()
    for i in range(queued):
        if outcome[OUTCOME_LEADER, i] != i or outcome[OUTCOME_KIND, i] < 0:
            continue
        if alone[i]:
            own[i] = find_point_set(entry_range[:, i], entries, nodes, sets[i], job_sets.spread[i])
        on_one_node[i] = own[i] >= 0 and entry_range[1, i] == entry_range[0, i] + 1
        spans_nodes[i] = own[i] >= 0 and entry_range[1, i] > entry_range[0, i] + 1
        for a in range(entry_range[0, i], entry_range[1, i]):
            n = entries[ENTRY_NODE, a]
            for h in range(3):
                least = host[h, points.start[own[i]]] if own[i] >= 0 else nodes.share[h, n]
                left[h, n] -= entries[ENTRY_GPUS, a] * least
    granted = np.zeros((3, queued), dtype=np.int64)
    host_limited = False
    for p in range(len(plan.row)):  # first the jobs that span nodes: they need the same of all at once
        i = plan.row[p]
        if spans_nodes[i]:
            best = raise_spanning_job(own[i], entry_range[:, i], entries, left, nodes.host, points)
            host_limited = host_limited or speed[best] < speed[points.start[own[i] + 1] - 1]
            for h in range(3):
                granted[h, i] = host[h, best]
    for i in range(queued):
        if on_one_node[i]:
            at = entry_range[0, i]
            for h in range(3):
                left[h, entries[ENTRY_NODE, at]] += entries[ENTRY_GPUS, at] * host[h, points.start[own[i]]]
    jobs = _collect_node_jobs(on_one_node, outcome[OUTCOME_STAYS], entry_range, entries, count)
    _split_nodes(jobs, left, move, nodes, sets, points)
    for n in range(count):
        for a in range(jobs.start[n], jobs.start[n + 1]):
            i, point = jobs.row[a], jobs.point[a]
            at = entry_range[0, i]
            if entries[ENTRY_NODE, at] != n:
                entries[ENTRY_NODE, at], outcome[OUTCOME_STAYS, i] = n, 0
            fastest = points.start[sets[i, nodes.shape[n]] + 1] - 1
            host_limited = host_limited or speed[point] < speed[fastest]
            for h in range(3):
                granted[h, i] = host[h, point]
    return granted, host_limited


@kernel(PLAN_COLUMNS, I2, I1, I1, FLOAT, F2, I2, HOST_NODES, JOB_SETS, POINT_TABLE)
def _tune(
    plan: PlanColumns,
    selected: Ints,
    free_gpus: Ints,
    preferred_node: Ints,
    move: float,
    queue: Floats,
    leases: Ints,
    nodes: HostNodes,
    job_sets: JobSets,
    points: PointTable,
) -> tuple[Ints, Ints, Ints, Ints, bool]:
    """Return node entries, host resources by row of the queue, the new outcome, and `host_limited`."""
    outcome = selected.copy()
    alone = np.ones(queue.shape[1], dtype=np.bool_)  # by leader: no other job shares its GPUs
    for p in range(len(plan.row)):
        if plan.group[p] != plan.row[p]:
            alone[plan.group[p]] = False
    entry_range, entries = _select_all_nodes(
        plan, outcome, alone, free_gpus, preferred_node, queue, leases, nodes, job_sets, points
    )
    host, host_limited = split_hosts(
        plan, outcome, alone, entry_range, entries, move, nodes, job_sets, points
    )
    return entry_range, entries, host, outcome, host_limited
