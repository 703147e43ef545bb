"""What jobs could do with more or less of the host: the sensitivity matrix, as the points that matter.

Models are asked along the axes only: cores with all memory, memory with all cores, at some bandwidths of
storage. A loader is as slow as its slowest stage, so the least cores and the least memory that allow a
speed allow it together; where a model is of another kind, what it says of the two together counts. Points
that need more than others without being faster are left out.

Many jobs of a cluster are alike, so the models are asked once for every sort of job on every sort of node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.nodes import HOST, Nodes
from wattline.core.protocols import Models
from wattline.core.table import Floats, Ints
from wattline.models.job_classes import examples, sorts

SPREADS = 3
"""How many more nodes than it takes a job may be spread over to have more of their hosts."""

Points = tuple[Ints, Floats]

_CORES = 64  # levels along the axes, at most or so
_PARTS = 25  # of the share of memory, up to twice the share; quarters of it beyond
_LEAST = 7  # such parts: what a job needs beside its cache is seldom measured, and with too little it dies
_SPEEDS = 24
_EXACT = 1e-9


@dataclass(frozen=True, eq=False)
class Needs:
    """Points of jobs on nodes: entries `first[s]` to `first[s + 1]` are those of set s.

    `sets[job, shape]` is the set of a job with the GPUs it asked for on a node of that shape; nodes of
    one shape differ in nothing that counts here. In a set the first point is the least that is as fast as
    the proportional share, and within it; the others follow by speed.
    """

    shape: Ints  # of each node
    sets: Ints
    spread: Ints  # sets on 1 to SPREADS nodes more than it takes: `spread[job, SPREADS * shape + more - 1]`
    first: Ints
    host: Ints  # of each GPU, rows as in HOST, a column per point
    speed: Floats  # over that with the proportional share


@lru_cache(maxsize=16)
def saturating(known: Needs, keep: float) -> Ints:
    """Of each set the point that needs least and has *keep* of the best speed."""
    full = np.empty(len(known.first) - 1, dtype=np.int64)
    for s, (start, end) in enumerate(zip(known.first[:-1].tolist(), known.first[1:].tolist(), strict=True)):
        speed, host = known.speed[start:end], known.host[:, start:end]
        fast = np.flatnonzero(speed >= keep * speed.max() - _EXACT)
        most = np.maximum(host.max(axis=1), 1)
        full[s] = start + fast[np.argmin((host[:, fast].T / most).sum(axis=1))]
    return full


def needs(models: Models, jobs: Jobs, nodes: Nodes) -> Needs:
    """What each of *jobs* could do with more or less of the host of *nodes*, as *models* say."""
    return _expanded(models, jobs, nodes)  # type: ignore[arg-type]  # models are frozen


@lru_cache(maxsize=4)
def _expanded(models: Models, jobs: Jobs, nodes: Nodes) -> Needs:
    if not getattr(models, "alike", False):
        return _needs(models, jobs, nodes)  # type: ignore[arg-type]
    known, sort = _needs(models, examples(jobs), nodes), sorts(jobs)[0]  # type: ignore[arg-type]
    sets, spread = (np.ascontiguousarray(column[sort]) for column in (known.sets, known.spread))
    return replace(known, sets=sets, spread=spread)


def _needs_shape(nodes: Nodes) -> Ints:
    """The shape of each node: what counts of it here."""
    columns = np.column_stack((nodes.kind.codes, nodes.gpus, nodes.host.T))
    return np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


@lru_cache(maxsize=4)
def _needs(models: Models, jobs: Jobs, nodes: Nodes) -> Needs:
    shape = _needs_shape(nodes)
    shapes = int(shape.max()) + 1
    sort, job = sorts(jobs)
    sets = [
        of_job(models, jobs, nodes, j, gpus)
        for j, gpus in zip(job.tolist(), jobs.gpus[job].tolist(), strict=True)
    ]
    parts = [part for of_one in sets for part in of_one]
    lengths = [len(speed) for _, speed in parts]
    number = np.arange(len(parts), dtype=np.int64).reshape(len(job), shapes, SPREADS + 1)
    return Needs(
        shape=shape,
        sets=np.ascontiguousarray(number[sort, :, 0]),
        spread=np.ascontiguousarray(number[sort, :, 1:].reshape(len(sort), -1)),
        first=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
        host=np.ascontiguousarray(np.concatenate([host for host, _ in parts], axis=1)),
        speed=np.concatenate([speed for _, speed in parts]),
    )


def of_job(models: Models, jobs: Jobs, nodes: Nodes, job: int, gpus: int) -> list[Points]:
    """The sets of a job with so many GPUs: for each shape of node, on as few as it takes, and on more."""
    _, example = np.unique(_needs_shape(nodes), return_index=True)
    sets = []
    for node in example.tolist():
        fewest = -(-gpus // int(nodes.gpus[node]))
        for more in range(SPREADS + 1):
            on = min(gpus, fewest + more)
            sets.append(points(models, jobs, nodes, job, gpus, node, on))  # type: ignore[arg-type]
    return sets


@lru_cache(maxsize=4096)
def points(
    models: Models, jobs: Jobs, nodes: Nodes, job: int, gpus: int, node: int, on: int
) -> tuple[Ints, Floats]:
    """The points of one job with so many GPUs *on* so many nodes like *node*.

    Host, and speed over that with the proportional share on as few nodes as it takes.
    """
    share, host = nodes.share[:, node], nodes.host[:, node]
    here = -(-gpus // on)
    most = host // here
    kind = nodes.kind.names[int(nodes.kind.codes[node])]

    def speed(*columns: Ints, on: int = on) -> Floats:
        rows = np.stack(np.broadcast_arrays(*columns)).reshape(len(HOST), -1)
        same = np.ones(rows.shape[1], dtype=np.int64)
        grants = Grants.of(same * job, same * gpus, same * on, host=rows.astype(np.int64), kind=kind)
        return models.speed(jobs, grants)

    base = float(speed(*share.reshape(3, 1), on=-(-gpus // int(nodes.gpus[node])))[0])
    cores, memory = (
        _core_levels(int(host[0]), here, int(share[0])),
        _memory_levels(int(share[1]), int(most[1])),
    )
    found: list[Ints] = [share.reshape(3, 1)]
    for read in _read_levels(int(share[2]), int(most[2])):
        by_cores = np.maximum.accumulate(speed(cores, most[1:2], np.array([read]))) / base
        by_memory = np.maximum.accumulate(speed(most[:1], memory, np.array([read]))) / base
        top = min(by_cores[-1], by_memory[-1])
        if top < 1 - _EXACT:
            continue
        wanted = _levels(np.concatenate((by_cores, by_memory)), top)
        at = [np.searchsorted(by, wanted * (1 - _EXACT)) for by in (by_cores, by_memory)]
        found.append(np.stack((cores[at[0]], memory[at[1]], np.full(len(wanted), read))))
    host_of = np.unique(np.concatenate(found, axis=1), axis=1)
    return _that_matter(host_of, speed(*host_of) / base, share, host)


def _core_levels(mcpus: int, here: int, share: int) -> Ints:
    """Thousandths of a core for each of *here* GPUs: whole cores of the job, and the share."""
    cores = max(1, mcpus // 1000)
    whole = np.unique(np.linspace(1, cores, min(cores, _CORES)).astype(np.int64)) * 1000 // here
    return np.unique(np.append(whole, share))


def _memory_levels(share: int, most: int) -> Ints:
    fine = share * np.arange(_LEAST, 2 * _PARTS + 1) // _PARTS
    rough = share * np.arange(9, max(10, 4 * most // max(1, share)) + 1) // 4
    levels = np.concatenate((fine, rough, [share, most]))
    return np.unique(levels[(levels > 0) & (levels <= most)])


def _read_levels(share: int, most: int) -> list[int]:
    """What is looked at of storage: eighths of the share to eight times it; 0 where it is not limited."""
    if share == 0:
        return [0]
    levels = {max(1, share * part // 8) for part in (1, 2, 4, 8, 16, 32, 64)}
    return sorted(level for level in levels if level <= most)


def _levels(speeds: Floats, top: float) -> Floats:
    """Speeds to be reached, from 1 to *top*: those there are, few of them."""
    wanted = np.unique(np.append(speeds[(speeds >= 1) & (speeds <= top)], (1.0, top)))
    apart = np.append(True, np.diff(wanted) > (top - 1) / (2 * _SPEEDS) + _EXACT)
    apart[-1] = True
    return np.asarray(wanted[apart])


def _that_matter(host_of: Ints, speed: Floats, share: Ints, host: Ints) -> tuple[Ints, Floats]:
    """Points as fast as the share of which no other needs less and is as fast; the least first.

    On more nodes than it takes a job may need more than the share for that; then the share comes first.
    """
    good = speed >= 1 - _EXACT
    if not (good & (share >= host_of.T).all(axis=1)).any():
        good |= (share == host_of.T).all(axis=1)
    host_of, speed = host_of[:, good], speed[good]
    less = (host_of[:, :, None] <= host_of[:, None, :]).all(axis=0) & (speed[:, None] >= speed - _EXACT)
    equal = (host_of[:, :, None] == host_of[:, None, :]).all(axis=0)
    beaten = (less & ~equal).any(axis=0)
    host_of, speed = host_of[:, ~beaten], speed[~beaten]
    cost = (host_of.T / np.maximum(host, 1)).sum(axis=1)
    within = (share >= host_of.T).all(axis=1)
    least = int(np.argmin(np.where(within, cost, np.inf)))
    order = np.lexsort((cost, speed))
    order = np.append(least, order[order != least])
    return np.ascontiguousarray(host_of[:, order]), speed[order]
