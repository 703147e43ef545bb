"""Columns of the bound: every way in which a policy could run a job, reduced to those that matter.

A way is a number of GPUs of one kind, on any number of nodes, alone, packed or fused, at a cap and at a batch
size that the job allows, with all host resources of a node. Of a group of m jobs on n GPUs each is charged
n / m GPUs and an m-th of their watts. Speeds and watts are those of the models that are true in the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.nodes import HOST_RESOURCES, Nodes
from wattline.core.protocols import Models
from wattline.core.table import Floats, Ints
from wattline.models.array_speed import has_fusion_key
from wattline.models.configurations import list_batches, list_caps
from wattline.models.job_classes import classify_jobs, find_unique_rows

ALL_SIZES = 16
"""Up to so many GPUs every number is a way, beyond them multiples of 8, powers of two and the request."""

_ALL_NODES = 16
_PACKED = (2, 3, 4)  # jobs on the same GPUs; of more, none is known to gain
_MOST_FUSED = 64  # wider arrays are charged as wide as they can be and are as fast as one of this width
_PLENTY = np.array([[10**9], [2**40], [10**9]], dtype=np.int64)  # host resources per GPU beyond any node's
_EXACT = 1e-12
_SAME = 1e-9  # relative difference of speeds that are equal
_GPUS, _CAP_W, _MEMBERS = 0, 2, 4  # rows of `_list_ways`

Keep = Literal["fast", "frugal", "both"]
_Ask = Callable[[Ints, Ints], tuple[Floats, Floats]]  # speed and watts of one GPU of jobs in ways


@dataclass(frozen=True, eq=False)
class BoundColumns:
    """Columns of job classes on GPU kinds: axis 0 is the class, 1 the kind, 2 the column.

    `count[c, k]` columns are valid, in ascending order of speed; 0: the class cannot run on this kind.
    """

    job_class: Ints
    count: Ints
    gpus: Floats
    speed: Floats  # 1.0 = as requested
    watts: Floats  # of the job's GPUs and their part of the node

    @property
    def fastest(self) -> Floats:
        """Largest speed of each class; 0: it can never run."""
        return np.asarray(self._over_valid(self.speed, 0.0).max(axis=(1, 2)))

    def least(self, amount: Floats) -> Floats:
        """Return the least *amount* per unit of work of each class and kind; inf: it cannot run there."""
        per_work = amount / np.maximum(self.speed, _EXACT)
        return np.asarray(self._over_valid(per_work, np.inf).min(axis=2))

    def _over_valid(self, values: Floats, otherwise: float) -> Floats:
        valid = np.arange(values.shape[2]) < self.count[:, :, None]
        return np.where(valid, values, otherwise)


def build_columns(models: Models, jobs: Jobs, nodes: Nodes, keep: Keep = "fast") -> BoundColumns:
    """Return the columns of *jobs* on *nodes* that matter.

    *keep* says for what: `fast`, if watts do not count; `frugal`, for the least energy alone, one column of
    each class and kind; `both`, if speed, GPUs and watts count.
    """
    reduce = {"fast": _keep_hull, "frugal": _keep_cheapest, "both": _keep_undominated}[keep]
    width = _count_key_members(jobs)
    alike = bool(getattr(models, "alike", False))
    base = classify_jobs(jobs)[0] if alike else np.arange(len(jobs), dtype=np.int64)
    job_class, example = find_unique_rows(np.stack((base, width), axis=1))
    kinds = nodes.kind.names
    accepts = nodes.accepted_kinds(jobs.gpu_kind)
    found: dict[tuple[int, int], Floats] = {}
    for kind in range(len(kinds)):
        wanted = [c for c, job in enumerate(example.tolist()) if (int(accepts[job]) >> kind) & 1]
        for c, points in _evaluate(models, jobs, nodes, kind, example, wanted, width, keep):
            found[c, kind] = reduce(points)
    wide = max((points.shape[1] for points in found.values()), default=1)
    shape = (len(example), len(kinds), max(wide, 1))
    gpus, speed, watts = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    count = np.zeros(shape[:2], dtype=np.int64)
    for (c, kind), points in found.items():
        length = points.shape[1]
        count[c, kind] = length
        gpus[c, kind, :length], speed[c, kind, :length], watts[c, kind, :length] = points
    return BoundColumns(job_class, count, gpus, speed, watts)


def _count_key_members(jobs: Jobs) -> Ints:
    """Return for each job the number of jobs with its fusion key, 1 without one."""
    members = np.bincount(jobs.fuse.codes, minlength=len(jobs.fuse.names))[jobs.fuse.codes]
    return np.where(has_fusion_key(jobs), members, 1).astype(np.int64)


def _evaluate(
    models: Models,
    jobs: Jobs,
    nodes: Nodes,
    kind: int,
    example: Ints,
    classes: list[int],
    width: Ints,
    keep: Keep,
) -> Iterator[tuple[int, Floats]]:
    """Yield for each class its GPUs, speeds and watts (three rows) in every way on one kind."""
    here = np.flatnonzero(nodes.kind.codes == kind)
    if not classes or not len(here):
        return
    total, node_gpus = int(nodes.gpus[here].sum()), int(nodes.gpus[here].max())
    name = nodes.kind.names[kind]

    def ask(job: Ints, ways: Ints) -> tuple[Floats, Floats]:
        gpus, spread, cap_w, batch, members, fused = ways
        host = np.ascontiguousarray(np.broadcast_to(_PLENTY, (len(HOST_RESOURCES), len(job))))
        grants = Grants.of(
            job, gpus, spread, members=members, fused=fused.astype(np.bool_), cap_w=cap_w, batch=batch,
            host=host, kind=name,
        )  # fmt: skip
        return models.speed(jobs, grants), models.watts(jobs, grants)

    caps = list_caps(name)
    if keep == "fast":
        caps = caps if _is_cap_faster(ask, jobs, example[classes], caps) else caps[-1:]
    blocks = [
        _list_ways(jobs, int(job), total, node_gpus, len(here), caps, int(width[job]))
        for job in example[classes].tolist()
    ]
    ways = np.concatenate(blocks, axis=1)
    job = np.repeat(example[classes], [block.shape[1] for block in blocks])
    speed, gpu_w = ask(job, ways)
    # Without a measurement GPUs draw their usual watts, up to the cap; see `PowerDraw.busy_w`.
    cap_w, busy_w = ways[_CAP_W], float(nodes.busy_w[here].min())
    assumed_w = np.where(cap_w > 0, np.minimum(cap_w, busy_w), busy_w)
    base_w = float((nodes.base_w[here] / nodes.gpus[here]).min())
    members = ways[_MEMBERS]
    charged = ways[_GPUS] / np.where(members < _MOST_FUSED, members, np.maximum(members, width[job]))
    points = np.stack((charged, speed, charged * (np.where(np.isnan(gpu_w), assumed_w, gpu_w) + base_w)))
    gains = _measure_packing(ask, jobs, example[classes])
    ends = np.cumsum([block.shape[1] for block in blocks])
    for at, (c, part) in enumerate(zip(classes, np.split(points, ends[:-1], axis=1), strict=True)):
        runs = part[:, part[1] > 0]
        if runs.shape[1]:
            packed = [
                runs * [[1 / m], [gain], [1 / m]] for m, gain in zip(_PACKED, gains[:, at], strict=True)
            ]
            yield c, np.concatenate((runs, *packed), axis=1)


def _is_cap_faster(ask: _Ask, jobs: Jobs, job: Ints, caps: Ints) -> bool:
    """Return whether a job that runs as requested is faster under one of *caps* than without."""
    rows, cap_w = np.repeat(job, len(caps)), np.tile(caps, len(job))
    one, none = np.ones_like(rows), np.zeros_like(rows)
    speed = ask(rows, np.stack((jobs.gpus[rows], one, cap_w, none, one, none)))[0].reshape(len(job), -1)
    return bool((speed > speed[:, -1:] * (1 + _SAME)).any())


def _measure_packing(ask: _Ask, jobs: Jobs, job: Ints) -> Floats:
    """Return the speed of each *job* among as many as `_PACKED` on the same GPUs, relative to alone."""
    one, none = np.ones_like(job), np.zeros_like(job)
    speeds = [ask(job, np.stack((jobs.gpus[job], one, none, none, m * one, none)))[0] for m in (1, *_PACKED)]
    return np.array([speed / np.where(speeds[0] > 0, speeds[0], np.inf) for speed in speeds[1:]])


def _list_ways(jobs: Jobs, job: int, total: int, node_gpus: int, nodes: int, caps: Ints, width: int) -> Ints:
    """Return all ways of a job alone or fused: rows gpus, nodes, cap_w, batch, members and fused."""
    least, most = max(1, int(jobs.min_gpus[job])), int(jobs.max_gpus[job]) or total
    powers = 2 ** np.arange(max(total, 1).bit_length())
    some = np.concatenate((np.arange(1, ALL_SIZES + 1), np.arange(ALL_SIZES, total + 1, 8), powers))
    some = np.append(some[(some >= least) & (some <= most)], int(jobs.gpus[job]))
    pairs = [
        (n, k) for n in np.unique(some[some <= total]).tolist() for k in _list_spreads(n, node_gpus, nodes)
    ]
    if not pairs:
        return np.empty((6, 0), dtype=np.int64)
    batches = list_batches(jobs, np.array([job], dtype=np.int64))[0]
    if (largest := int(jobs.max_batch[job])) > int(jobs.batch[job]) > 0:
        batches = np.append(batches, largest)
    batches = np.unique(batches)
    at = np.indices((len(pairs), len(caps), len(batches), min(width, _MOST_FUSED))).reshape(4, -1)
    gpus, spread = np.array(pairs, dtype=np.int64)[at[0]].T
    return np.stack((gpus, spread, caps[at[1]], batches[at[2]], at[3] + 1, at[3] > 0)).astype(np.int64)


def _list_spreads(gpus: int, node_gpus: int, nodes: int) -> list[int]:
    """Return numbers of nodes on which *gpus* GPUs can be."""
    fewest, most = -(-gpus // node_gpus), min(gpus, nodes)
    every = [*range(fewest, min(most, _ALL_NODES) + 1), *range(max(fewest, 2 * _ALL_NODES), most + 1, 16)]
    return every or ([fewest] if fewest <= most else [])


def _keep_hull(points: Floats) -> Floats:
    """Return the points on the upper hull of speed over GPUs that starts at 0 GPUs, by ascending speed."""
    kept: list[int] = []
    x, y = points[0], points[1]

    def slope(a: int, b: int) -> float:
        x0, y0 = (0.0, 0.0) if a < 0 else (x[a], y[a])
        return float((y[b] - y0) / max(x[b] - x0, _EXACT))

    for at in np.lexsort((-y, x)).tolist():
        if kept and y[at] <= y[kept[-1]]:
            continue
        while kept and slope(kept[-1], at) >= slope(kept[-2] if len(kept) > 1 else -1, kept[-1]):
            kept.pop()
        kept.append(at)
    return np.ascontiguousarray(points[:, kept])


def _keep_cheapest(points: Floats) -> Floats:
    """Return the one point with the least energy per unit of work."""
    return np.ascontiguousarray(points[:, [int(np.argmin(points[2] / points[1]))]])


def _keep_undominated(points: Floats) -> Floats:
    """Return the points than which none is as fast with fewer GPUs and fewer watts, by ascending speed."""
    points = points[:, np.lexsort((points[2], points[0], -points[1]))]
    kept: list[int] = []
    for at in range(points.shape[1]):
        better = points[:, kept]
        if not ((better[0] <= points[0, at] + _EXACT) & (better[2] <= points[2, at] + _EXACT)).any():
            kept.append(at)
    return np.ascontiguousarray(points[:, kept[::-1]])
