"""Sensitivity of jobs to host resources (Synergy's matrix), reduced to its Pareto points.

Models are evaluated along the axes only: cores with all memory, memory with all cores, at several storage
bandwidths. An input pipeline is as slow as its slowest stage, so the fewest cores and the least memory that
allow a speed allow it together; for other kinds of models the prediction of the combination counts. Points
that need more than others without being faster are dropped.

Models are evaluated once for every job class on every node shape, because many jobs and nodes are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.nodes import HOST_RESOURCES, Nodes
from wattline.core.protocols import Models
from wattline.core.table import Floats, Ints
from wattline.models.job_classes import classify_jobs, take_representatives

MAX_EXTRA_NODES = 3
"""Largest number of nodes beyond the minimum over which a job may spread to use more host resources."""

Points = tuple[Ints, Floats]

_CORE_LEVELS = 64  # about the largest number of levels along an axis
_MEMORY_STEPS = 25  # memory steps per proportional share, up to twice the share; quarters of it beyond
_MIN_MEMORY_STEP = (
    7  # smallest step: memory needed beside the cache is rarely measured, and too little kills the job
)
_SPEEDS = 24
_EXACT = 1e-9
_NO_HOST = np.empty((len(HOST_RESOURCES), 0), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Pareto points of jobs on nodes: entries `set_start[s]` to `set_start[s + 1]` are those of set s.

    `point_sets[job, shape]` is the set of a job with its requested GPUs on a node of that shape; nodes of
    one shape have the same GPU kind, GPUs and host. The first point of a set is the smallest that is as fast
    as the proportional share, and within it; the others follow by speed.
    """

    node_shape: Ints  # shape number of each node
    point_sets: Ints
    spread_sets: (
        Ints  # sets on more nodes than needed: `spread_sets[job, MAX_EXTRA_NODES * shape + extra - 1]`
    )
    set_start: Ints
    host: Ints  # per GPU, rows as in HOST, a column per point
    speed: Floats  # relative to the proportional share


@lru_cache(maxsize=16)
def find_saturation_points(known: Sensitivity, keep: float) -> Ints:
    """Return for each set the smallest point that reaches a share *keep* of the best speed."""
    saturated = np.empty(len(known.set_start) - 1, dtype=np.int64)
    for s, (start, end) in enumerate(
        zip(known.set_start[:-1].tolist(), known.set_start[1:].tolist(), strict=True)
    ):
        speed, host = known.speed[start:end], known.host[:, start:end]
        fast = np.flatnonzero(speed >= keep * speed.max() - _EXACT)
        most = np.maximum(host.max(axis=1), 1)
        saturated[s] = start + fast[np.argmin((host[:, fast].T / most).sum(axis=1))]
    return saturated


def build_sensitivity(models: Models, jobs: Jobs, nodes: Nodes) -> Sensitivity:
    """Return the sensitivity of *jobs* to the host resources of *nodes*, predicted by *models*."""
    return _expand_classes(models, jobs, nodes)  # type: ignore[arg-type]  # models are frozen


@lru_cache(maxsize=4)
def _expand_classes(models: Models, jobs: Jobs, nodes: Nodes) -> Sensitivity:
    if not getattr(models, "alike", False):
        return _build_per_class(models, jobs, nodes)  # type: ignore[arg-type]
    known, class_of = _build_per_class(models, take_representatives(jobs), nodes), classify_jobs(jobs)[0]  # type: ignore[arg-type]
    sets, spread = (
        np.ascontiguousarray(column[class_of]) for column in (known.point_sets, known.spread_sets)
    )
    return replace(known, point_sets=sets, spread_sets=spread)


def _number_shapes(nodes: Nodes) -> Ints:
    """Return the shape number of each node: nodes with equal GPU kind, GPUs and host share it."""
    columns = np.column_stack((nodes.kind.codes, nodes.gpus, nodes.host.T))
    return np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


@lru_cache(maxsize=4)
def _build_per_class(models: Models, jobs: Jobs, nodes: Nodes) -> Sensitivity:
    shape = _number_shapes(nodes)
    shapes = int(shape.max()) + 1
    class_of, job = classify_jobs(jobs)
    sets = [
        find_job_points(models, jobs, nodes, j, gpus)
        for j, gpus in zip(job.tolist(), jobs.gpus[job].tolist(), strict=True)
    ]
    parts = [part for job_sets in sets for part in job_sets]
    lengths = [len(speed) for _, speed in parts]
    number = np.arange(len(parts), dtype=np.int64).reshape(len(job), shapes, MAX_EXTRA_NODES + 1)
    return Sensitivity(
        node_shape=shape,
        point_sets=np.ascontiguousarray(number[class_of, :, 0]),
        spread_sets=np.ascontiguousarray(
            number[class_of, :, 1:].reshape(len(class_of), shapes * MAX_EXTRA_NODES)
        ),
        set_start=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
        # A service without jobs decides, too: a node may be lost meanwhile.
        host=np.ascontiguousarray(np.concatenate([_NO_HOST, *(host for host, _ in parts)], axis=1)),
        speed=np.concatenate([np.empty(0), *(speed for _, speed in parts)]),
    )


def find_job_points(models: Models, jobs: Jobs, nodes: Nodes, job: int, gpus: int) -> list[Points]:
    """Return the point sets of a job with *gpus* GPUs: per node shape, on the fewest nodes and on more."""
    _, example = np.unique(_number_shapes(nodes), return_index=True)
    sets = []
    for node in example.tolist():
        fewest = -(-gpus // int(nodes.gpus[node]))
        for more in range(MAX_EXTRA_NODES + 1):
            on = min(gpus, fewest + more)
            sets.append(find_points(models, jobs, nodes, job, gpus, node, on))  # type: ignore[arg-type]
    return sets


@lru_cache(maxsize=4096)
def find_points(
    models: Models, jobs: Jobs, nodes: Nodes, job: int, gpus: int, node: int, on: int
) -> tuple[Ints, Floats]:
    """Return the Pareto points of one job with *gpus* GPUs *on* that many nodes like *node*.

    They are host resources, and the speed relative to the proportional share on the fewest nodes.
    """
    share, host = nodes.host_share[:, node], nodes.host[:, node]
    node_gpus = -(-gpus // on)
    most = host // node_gpus
    kind = nodes.kind.names[int(nodes.kind.codes[node])]

    def speed(*columns: Ints, on: int = on) -> Floats:
        rows = np.stack(np.broadcast_arrays(*columns)).reshape(len(HOST_RESOURCES), -1)
        same = np.ones(rows.shape[1], dtype=np.int64)
        grants = Grants.of(same * job, same * gpus, same * on, host=rows.astype(np.int64), kind=kind)
        return models.speed(jobs, grants)

    base = float(speed(*share.reshape(3, 1), on=-(-gpus // int(nodes.gpus[node])))[0])
    cores, memory = (
        _core_levels(int(host[0]), node_gpus, int(share[0])),
        _memory_levels(int(share[1]), int(most[1])),
    )
    candidates: list[Ints] = [share.reshape(3, 1)]
    for read in _read_levels(int(share[2]), int(most[2])):
        by_cores = np.maximum.accumulate(speed(cores, most[1:2], np.array([read]))) / base
        by_memory = np.maximum.accumulate(speed(most[:1], memory, np.array([read]))) / base
        top = min(by_cores[-1], by_memory[-1])
        if top < 1 - _EXACT:
            continue
        wanted = _thin_speeds(np.concatenate((by_cores, by_memory)), top)
        at = [np.searchsorted(by, wanted * (1 - _EXACT)) for by in (by_cores, by_memory)]
        candidates.append(np.stack((cores[at[0]], memory[at[1]], np.full(len(wanted), read))))
    host_of = np.unique(np.concatenate(candidates, axis=1), axis=1)
    return _take_pareto(host_of, speed(*host_of) / base, share, host)


def _core_levels(mcpus: int, node_gpus: int, share: int) -> Ints:
    """Return thousandths of a core per GPU for *node_gpus* GPUs: whole cores of the job, and the share."""
    cores = max(1, mcpus // 1000)
    whole = np.unique(np.linspace(1, cores, min(cores, _CORE_LEVELS)).astype(np.int64)) * 1000 // node_gpus
    return np.unique(np.append(whole, share))


def _memory_levels(share: int, most: int) -> Ints:
    fine = share * np.arange(_MIN_MEMORY_STEP, 2 * _MEMORY_STEPS + 1) // _MEMORY_STEPS
    rough = share * np.arange(9, max(10, 4 * most // max(1, share)) + 1) // 4
    levels = np.concatenate((fine, rough, [share, most]))
    return np.unique(levels[(levels > 0) & (levels <= most)])


def _read_levels(share: int, most: int) -> list[int]:
    """Return storage bandwidths from an eighth of the share to eight times it; [0] if it is not limited."""
    if share == 0:
        return [0]
    levels = {max(1, share * part // 8) for part in (1, 2, 4, 8, 16, 32, 64)}
    return sorted(level for level in levels if level <= most)


def _thin_speeds(speeds: Floats, top: float) -> Floats:
    """Return about `_SPEEDS` of the *speeds* from 1 to *top*, spread evenly."""
    wanted = np.unique(np.append(speeds[(speeds >= 1) & (speeds <= top)], (1.0, top)))
    spaced = np.append(True, np.diff(wanted) > (top - 1) / (2 * _SPEEDS) + _EXACT)
    spaced[-1] = True
    return np.asarray(wanted[spaced])


def _take_pareto(host_of: Ints, speed: Floats, share: Ints, host: Ints) -> tuple[Ints, Floats]:
    """Return the Pareto points that are at least as fast as the share, the smallest first.

    A job on more nodes than needed may need more than the share for that; then the share comes first.
    """
    good = speed >= 1 - _EXACT
    if not (good & (share >= host_of.T).all(axis=1)).any():
        good |= (share == host_of.T).all(axis=1)
    host_of, speed = host_of[:, good], speed[good]
    dominates = (host_of[:, :, None] <= host_of[:, None, :]).all(axis=0) & (speed[:, None] >= speed - _EXACT)
    equal = (host_of[:, :, None] == host_of[:, None, :]).all(axis=0)
    dominated = (dominates & ~equal).any(axis=0)
    host_of, speed = host_of[:, ~dominated], speed[~dominated]
    cost = (host_of.T / np.maximum(host, 1)).sum(axis=1)
    within = (share >= host_of.T).all(axis=1)
    least = int(np.argmin(np.where(within, cost, np.inf)))
    order = np.lexsort((cost, speed))
    order = np.append(least, order[order != least])
    return np.ascontiguousarray(host_of[:, order]), speed[order]
