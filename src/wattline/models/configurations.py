"""Configurations in which jobs can run: GPUs, power caps and batch sizes, with speed and watts of each.

Many jobs of a cluster agree in model, batch size and request, so models are evaluated once per job class.
The result depends on models, jobs and nodes alone; the last few results are cached, because a policy needs
the same ones in every round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.protocols import Models
from wattline.core.table import Floats, Ints, Labels
from wattline.measurement.devices import DEVICES
from wattline.models.array_speed import has_fusion_key, max_array_width
from wattline.models.job_classes import classify_jobs, find_unique_rows, take_representatives

CAP_LEVELS = 8
"""Number of power caps considered, from the lowest that can be set to no cap."""

PROPORTIONAL = (0, 0, 0)
"""Host resources per GPU, as in `Grants.host`: the proportional share of a node."""

PLENTY = (10**9, 2**40, 10**9)
"""Host resources per GPU, as in `Grants.host`: more than any node has."""

MOST_FUSED = 8
"""Largest width of the fused arrays that are considered."""

_BY_CLASS = ("size_count", "gpus", "cap_w", "batch", "speed", "watts", "idle_w", "static_w")


@dataclass(frozen=True, eq=False)
class Configurations:
    """Configurations of job classes: axis 0 is the job class, 1 the number of GPUs, 2 the power cap.

    `job_class[job, kind]` is the class of a job on a kind of GPU. GPU counts ascend; a class with fewer of
    them than others repeats its largest, and `size_count` is the number of valid ones. Caps ascend; the last
    one is 0, no cap.
    """

    job_class: Ints
    size_count: Ints
    gpus: Ints
    cap_w: Ints
    batch: Ints
    speed: Floats  # 1.0 = as requested
    watts: Floats  # of all GPUs of the job
    idle_w: Floats  # of one idle GPU, by class; the minimum over the nodes of a kind
    static_w: Floats  # a node's base power per GPU, by class; the maximum over the nodes of a kind

    @cached_property
    def has_batches(self) -> bool:
        """True if a configuration has another batch size than requested."""
        return bool(self.batch.any())


def build_configurations(
    models: Models, jobs: Jobs, nodes: Nodes, host: tuple[int, ...] = PROPORTIONAL
) -> Configurations:
    """Return the configurations of each of *jobs* on *nodes*, predicted by *models*.

    *host* are the host resources per GPU that every job has, as in `Grants.host`.
    """
    return _expand_classes(models, jobs, nodes, host)  # type: ignore[arg-type]  # models are frozen


@lru_cache(maxsize=4)
def _expand_classes(models: Models, jobs: Jobs, nodes: Nodes, host: tuple[int, ...]) -> Configurations:
    if not getattr(models, "alike", False):
        return _build_per_class(models, jobs, nodes, host)  # type: ignore[arg-type]
    known = _build_per_class(models, take_representatives(jobs), nodes, host)  # type: ignore[arg-type]
    return replace(known, job_class=np.ascontiguousarray(known.job_class[classify_jobs(jobs)[0]]))


@lru_cache(maxsize=4)
def _build_per_class(models: Models, jobs: Jobs, nodes: Nodes, host: tuple[int, ...]) -> Configurations:
    bounds = (jobs.min_gpus, jobs.max_gpus, jobs.max_batch, jobs.noise.view(np.int64))
    class_columns = np.stack((jobs.model.codes, jobs.gpu_kind.codes, jobs.gpus, jobs.batch, *bounds), axis=1)
    code, first = find_unique_rows(class_columns)
    kinds = nodes.kind.names
    parts = [_build_for_kind(models, jobs, nodes, first, kind, host) for kind in range(len(kinds))]
    wide = max(part.gpus.shape[1] for part in parts)
    return Configurations(
        job_class=code.reshape(-1, 1) + len(first) * np.arange(len(kinds)),
        size_count=np.concatenate([part.size_count for part in parts]),
        gpus=np.concatenate([_pad_sizes(part.gpus, wide) for part in parts]),
        cap_w=np.concatenate([_pad_sizes(part.cap_w, wide) for part in parts]),
        batch=np.concatenate([_pad_sizes(part.batch, wide) for part in parts]),
        speed=np.concatenate([_pad_sizes(part.speed, wide) for part in parts]),
        watts=np.concatenate([_pad_sizes(part.watts, wide) for part in parts]),
        idle_w=np.concatenate([part.idle_w for part in parts]),
        static_w=np.concatenate([part.static_w for part in parts]),
    )


def add_array_classes(configs: Configurations, models: Models, jobs: Jobs, nodes: Nodes) -> Configurations:
    """Return *configs* with further classes for fused arrays of 2 to `MOST_FUSED` jobs.

    With C job classes, class `c + (width - 1) * C` is an array of *width* jobs of class c: its speed is that
    of each member, its watts are those of all, and its batch size is as requested. Arrays that do not fit
    into memory, and those of classes without a fusion key, have speed 0.
    """
    return _add_array_classes(configs, models, jobs, nodes)  # type: ignore[arg-type]  # models are frozen


@lru_cache(maxsize=4)
def _add_array_classes(configs: Configurations, models: Models, jobs: Jobs, nodes: Nodes) -> Configurations:
    kinds = len(nodes.kind.names)
    classes = len(configs.gpus) // kinds
    of = configs.job_class[:, 0]
    fusible = np.unique(of[has_fusion_key(jobs)])
    job = np.zeros(classes, dtype=np.int64)
    job[of[::-1]] = np.arange(len(of))[::-1]  # the first job of each class
    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in _BY_CLASS}
    for kind in range(kinds):
        own = slice(kind * classes, (kind + 1) * classes)
        speed, watts = _predict_arrays(models, jobs, nodes, job[fusible], kind, configs, fusible)
        for width in range(1, MOST_FUSED + 1):
            part = {name: getattr(configs, name)[own] for name in _BY_CLASS}
            if width > 1:
                part["speed"], part["watts"] = np.zeros_like(part["speed"]), part["watts"].copy()
                part["batch"] = np.zeros_like(part["batch"])
                part["speed"][fusible], part["watts"][fusible] = speed[width - 2], watts[width - 2]
            for name, column in part.items():
                columns[name].append(column)
    return Configurations(
        job_class=of[:, None] + MOST_FUSED * classes * np.arange(kinds),
        **{name: np.concatenate(parts) for name, parts in columns.items()},
    )


def _predict_arrays(
    models: Models, jobs: Jobs, nodes: Nodes, job: Ints, kind: int, configs: Configurations, classes: Ints
) -> tuple[Floats, Floats]:
    """Return the speed of each member and the watts of all, by width from 2 on, class, size and cap."""
    here = np.flatnonzero(nodes.kind.codes == kind)
    of = classes + kind * (len(configs.gpus) // len(nodes.kind.names))
    shape = (MOST_FUSED - 1, *configs.cap_w[of].shape)

    def broadcast_flat(column: Ints) -> Ints:
        return np.ascontiguousarray(np.broadcast_to(column, shape)).reshape(-1)

    wide = broadcast_flat(configs.gpus[of][..., None])
    members = broadcast_flat(np.arange(2, MOST_FUSED + 1)[:, None, None, None])
    grants = Grants.of(
        broadcast_flat(job[:, None, None]),
        wide,
        -(-wide // int(nodes.gpus[here].max())),
        members=members,
        fused=np.ones(len(wide), dtype=np.bool_),
        cap_w=broadcast_flat(configs.cap_w[of]),
        kind=nodes.kind.names[kind],
    )
    fits = members <= np.maximum(max_array_width(models, jobs, grants), 1)
    speed = np.where(fits, models.speed(jobs, grants), 0.0).reshape(shape)
    gpu_w = models.watts(jobs, grants).reshape(shape)
    return speed, np.where(np.isnan(gpu_w), configs.watts[of], wide.reshape(shape) * gpu_w)


def _pad_sizes(column: NDArray[Any], wide: int) -> NDArray[Any]:
    return np.asarray(np.take(column, np.minimum(np.arange(wide), column.shape[1] - 1), axis=1))


def _build_for_kind(
    models: Models, jobs: Jobs, nodes: Nodes, job: Ints, kind: int, host: tuple[int, ...]
) -> Configurations:
    """Return the configurations of one job of each class on one kind of GPU."""
    here = np.flatnonzero(nodes.kind.codes == kind)
    node_gpus, total = int(nodes.gpus[here].max()), int(nodes.gpus[here].sum())
    gpus, sizes = _list_sizes(jobs, job, total)
    caps = list_caps(nodes.kind.names[kind])
    batches = list_batches(jobs, job)
    shape = (len(job), gpus.shape[1], len(caps), batches.shape[1])

    def broadcast_flat(column: Ints, *axes: int) -> Ints:
        stretched = column.reshape([shape[a] if a in axes else 1 for a in range(4)])
        return np.ascontiguousarray(np.broadcast_to(stretched, shape)).reshape(-1)

    wide = broadcast_flat(gpus, 0, 1)
    grants = Grants.of(
        broadcast_flat(job, 0),
        wide,
        -(-wide // node_gpus),
        cap_w=broadcast_flat(caps, 2),
        batch=broadcast_flat(batches, 0, 3),
        host=np.outer(host, np.ones(len(wide))).astype(np.int64),
        kind=Labels(np.zeros(len(wide), dtype=np.int64), (nodes.kind.names[kind],)),
    )
    speed, gpu_w = models.speed(jobs, grants), models.watts(jobs, grants)
    uncapped_w = float(nodes.busy_w[here].max())
    bound_w = np.where(grants.cap_w > 0, np.minimum(grants.cap_w, uncapped_w), uncapped_w)
    watts = wide * np.where(np.isnan(gpu_w), bound_w, gpu_w)
    best = np.argmax(speed.reshape(shape), axis=3)[..., None]  # index of the fastest batch size

    def take_best(column: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(np.take_along_axis(column.reshape(shape), best, axis=3)[..., 0])

    count = len(job)
    sizes = _count_useful_sizes(take_best(speed), sizes)
    valid = slice(int(sizes.max(initial=1)))
    return Configurations(
        job_class=np.arange(count, dtype=np.int64).reshape(-1, 1),
        size_count=sizes,
        gpus=np.ascontiguousarray(gpus[:, valid]),
        cap_w=np.ascontiguousarray(np.broadcast_to(caps, (count, gpus[:, valid].shape[1], len(caps)))),
        batch=np.ascontiguousarray(take_best(grants.batch)[:, valid]),
        speed=np.ascontiguousarray(take_best(speed)[:, valid]),
        watts=np.ascontiguousarray(take_best(watts)[:, valid]),
        idle_w=np.full(count, float(nodes.idle_w[here].min())),
        static_w=np.full(count, float((nodes.base_w[here] / nodes.gpus[here]).max())),
    )


def _list_sizes(jobs: Jobs, job: Ints, total: int) -> tuple[Ints, Ints]:
    """Return the ascending GPU counts of each class and how many are valid.

    They are powers of two within the job's bounds, and the number it requested.
    """
    powers = 2 ** np.arange(max(total, 1).bit_length(), dtype=np.int64)
    rows = []
    for gpus, least, most in zip(jobs.gpus[job], jobs.min_gpus[job], jobs.max_gpus[job], strict=True):
        within = powers[(powers >= max(least, 1)) & (powers <= (most or total)) & (powers <= total)]
        rows.append(np.union1d(within, [gpus]))
    wide = max(map(len, rows), default=1)
    table = np.array([np.pad(row, (0, wide - len(row)), mode="edge") for row in rows], dtype=np.int64)
    return table.reshape(len(rows), wide), np.array([len(row) for row in rows], dtype=np.int64)


def _count_useful_sizes(speed: Floats, sizes: Ints) -> Ints:
    """Return the number of useful GPU counts of each class, without the largest that no cap makes faster."""
    best = np.maximum.accumulate(speed.max(axis=2), axis=1)
    faster = best[:, 1:] > best[:, :-1]
    last = 1 + np.where(faster, np.arange(1, 1 + faster.shape[1]), 0).max(axis=1, initial=0)
    return np.asarray(np.minimum(sizes, last))


def list_caps(kind: str) -> Ints:
    """Return evenly spaced caps from the lowest up, then 0 (no cap); only zeros if *kind* is unknown."""
    if kind not in DEVICES:
        return np.zeros(CAP_LEVELS, dtype=np.int64)  # the same length as for known kinds
    lowest, highest = DEVICES[kind].min_cap_w, DEVICES[kind].max_cap_w
    return np.append(np.linspace(lowest, highest, CAP_LEVELS)[:-1].round().astype(np.int64), 0)


def list_batches(jobs: Jobs, job: Ints) -> Ints:
    """Return the batch sizes of each class: as requested (0), then doubled up to the job's maximum."""
    requested, most = jobs.batch[job], jobs.max_batch[job]
    doubled = requested[:, None] * 2 ** np.arange(12)
    allowed = (doubled <= most[:, None]) & (requested > 0)[:, None]
    allowed[:, 0] = False  # the requested batch size itself
    wide = 1 + int(allowed.sum(axis=1).max(initial=0))
    return np.where(allowed, doubled, 0)[:, :wide].astype(np.int64)


@lru_cache(maxsize=4)
def with_fixed_batch(jobs: Jobs) -> Jobs:
    """Return *jobs* with the batch size fixed at the requested one."""
    return replace(jobs, max_batch=np.zeros(len(jobs), dtype=np.int64)) if jobs.max_batch.any() else jobs
