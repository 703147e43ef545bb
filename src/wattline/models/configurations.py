"""In what ways a job could be run: GPUs, caps and batch sizes, with the speed and watts of each.

Many jobs of a cluster are alike (same model, batch and wish), so the models are asked once for every sort of
job. What is answered depends on models, jobs and nodes alone; the last few answers are kept, because a
policy asks for the same ones in every round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.protocols import Models
from wattline.core.table import Floats, Ints, Labels
from wattline.measurement.devices import DEVICES
from wattline.models.job_classes import distinct, examples, sorts

CAPS = 8
"""How many power caps are looked at, from the lowest that can be set to none."""


@dataclass(frozen=True, eq=False)
class Menu:
    """Ways to run jobs: axis 0 is the sort of job, 1 its number of GPUs, 2 the cap.

    A job's sort is `sort[job, kind]`, for the kind of GPU it runs on. Sizes go up; a sort that has fewer
    than others repeats its largest, `sizes` says how many count. Caps go up, the last is none.
    """

    sort: Ints
    sizes: Ints
    gpus: Ints
    cap_w: Ints
    batch: Ints
    speed: Floats  # as asked is 1
    watts: Floats  # of all its GPUs
    idle_w: Floats  # of one GPU without a job, by sort; of nodes that differ the least
    static_w: Floats  # its share of a node, by sort and GPU; of nodes that differ the most


def menu(models: Models, jobs: Jobs, nodes: Nodes) -> Menu:
    """Ways to run each of *jobs* on *nodes*, as *models* say."""
    return _expanded(models, jobs, nodes)  # type: ignore[arg-type]  # models are frozen


@lru_cache(maxsize=4)
def _expanded(models: Models, jobs: Jobs, nodes: Nodes) -> Menu:
    if not getattr(models, "alike", False):
        return _menu(models, jobs, nodes)  # type: ignore[arg-type]
    known = _menu(models, examples(jobs), nodes)  # type: ignore[arg-type]
    return replace(known, sort=np.ascontiguousarray(known.sort[sorts(jobs)[0]]))


@lru_cache(maxsize=4)
def _menu(models: Models, jobs: Jobs, nodes: Nodes) -> Menu:
    bounds = (jobs.min_gpus, jobs.max_gpus, jobs.max_batch, jobs.noise.view(np.int64))
    alike = np.stack((jobs.model.codes, jobs.gpu_kind.codes, jobs.gpus, jobs.batch, *bounds), axis=1)
    code, first = distinct(alike)
    kinds = nodes.kind.names
    parts = [_of_kind(models, jobs, nodes, first, kind) for kind in range(len(kinds))]
    wide = max(part.gpus.shape[1] for part in parts)
    return Menu(
        sort=code.reshape(-1, 1) + len(first) * np.arange(len(kinds)),
        sizes=np.concatenate([part.sizes for part in parts]),
        gpus=np.concatenate([_wider(part.gpus, wide) for part in parts]),
        cap_w=np.concatenate([_wider(part.cap_w, wide) for part in parts]),
        batch=np.concatenate([_wider(part.batch, wide) for part in parts]),
        speed=np.concatenate([_wider(part.speed, wide) for part in parts]),
        watts=np.concatenate([_wider(part.watts, wide) for part in parts]),
        idle_w=np.concatenate([part.idle_w for part in parts]),
        static_w=np.concatenate([part.static_w for part in parts]),
    )


def _wider(column: NDArray[Any], wide: int) -> NDArray[Any]:
    return np.asarray(np.take(column, np.minimum(np.arange(wide), column.shape[1] - 1), axis=1))


def _of_kind(models: Models, jobs: Jobs, nodes: Nodes, job: Ints, kind: int) -> Menu:
    """The menu of one job of each sort, on one kind of GPU."""
    here = np.flatnonzero(nodes.kind.codes == kind)
    node_gpus, total = int(nodes.gpus[here].max()), int(nodes.gpus[here].sum())
    gpus, sizes = _sizes(jobs, job, total)
    caps = _caps(nodes.kind.names[kind])
    batches = _batches(jobs, job)
    shape = (len(job), gpus.shape[1], len(caps), batches.shape[1])

    def flat(column: Ints, *axes: int) -> Ints:
        stretched = column.reshape([shape[a] if a in axes else 1 for a in range(4)])
        return np.ascontiguousarray(np.broadcast_to(stretched, shape)).reshape(-1)

    wide = flat(gpus, 0, 1)
    grants = Grants.of(
        flat(job, 0),
        wide,
        -(-wide // node_gpus),
        cap_w=flat(caps, 2),
        batch=flat(batches, 0, 3),
        kind=Labels(np.zeros(len(wide), dtype=np.int64), (nodes.kind.names[kind],)),
    )
    speed, gpu_w = models.speed(jobs, grants), models.watts(jobs, grants)
    usual_w = float(nodes.busy_w[here].max())
    most_w = np.where(grants.cap_w > 0, np.minimum(grants.cap_w, usual_w), usual_w)
    watts = wide * np.where(np.isnan(gpu_w), most_w, gpu_w)
    best = np.argmax(speed.reshape(shape), axis=3)[..., None]  # of the batch sizes, the fastest

    def chosen(column: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(np.take_along_axis(column.reshape(shape), best, axis=3)[..., 0])

    count = len(job)
    sizes = _useful(chosen(speed), sizes)
    few = slice(int(sizes.max(initial=1)))
    return Menu(
        sort=np.arange(count, dtype=np.int64).reshape(-1, 1),
        sizes=sizes,
        gpus=np.ascontiguousarray(gpus[:, few]),
        cap_w=np.ascontiguousarray(np.broadcast_to(caps, (count, gpus[:, few].shape[1], len(caps)))),
        batch=np.ascontiguousarray(chosen(grants.batch)[:, few]),
        speed=np.ascontiguousarray(chosen(speed)[:, few]),
        watts=np.ascontiguousarray(chosen(watts)[:, few]),
        idle_w=np.full(count, float(nodes.idle_w[here].min())),
        static_w=np.full(count, float((nodes.base_w[here] / nodes.gpus[here]).max())),
    )


def _sizes(jobs: Jobs, job: Ints, total: int) -> tuple[Ints, Ints]:
    """GPUs each sort may be given, ascending: powers of two and what it asked for, within its bounds."""
    powers = 2 ** np.arange(max(total, 1).bit_length(), dtype=np.int64)
    rows = []
    for gpus, least, most in zip(jobs.gpus[job], jobs.min_gpus[job], jobs.max_gpus[job], strict=True):
        within = powers[(powers >= max(least, 1)) & (powers <= (most or total)) & (powers <= total)]
        rows.append(np.union1d(within, [gpus]))
    wide = max(map(len, rows), default=1)
    table = np.array([np.pad(row, (0, wide - len(row)), mode="edge") for row in rows], dtype=np.int64)
    return table.reshape(len(rows), wide), np.array([len(row) for row in rows], dtype=np.int64)


def _useful(speed: Floats, sizes: Ints) -> Ints:
    """How many sizes of each sort count: not the largest, where no cap makes them faster than smaller."""
    best = np.maximum.accumulate(speed.max(axis=2), axis=1)
    faster = best[:, 1:] > best[:, :-1]
    last = 1 + np.where(faster, np.arange(1, 1 + faster.shape[1]), 0).max(axis=1, initial=0)
    return np.asarray(np.minimum(sizes, last))


def _caps(kind: str) -> Ints:
    if kind not in DEVICES:
        return np.zeros(CAPS, dtype=np.int64)  # as many as of other kinds
    lowest, highest = DEVICES[kind].min_cap_w, DEVICES[kind].max_cap_w
    return np.append(np.linspace(lowest, highest, CAPS)[:-1].round().astype(np.int64), 0)


def _batches(jobs: Jobs, job: Ints) -> Ints:
    """Batch sizes of each sort: as asked (0), then doubled as far as the job allows."""
    asked, most = jobs.batch[job], jobs.max_batch[job]
    doubled = asked[:, None] * 2 ** np.arange(12)
    allowed = (doubled <= most[:, None]) & (asked > 0)[:, None]
    allowed[:, 0] = False  # it is what was asked
    wide = 1 + int(allowed.sum(axis=1).max(initial=0))
    return np.where(allowed, doubled, 0)[:, :wide].astype(np.int64)


@lru_cache(maxsize=4)
def with_own_batch(jobs: Jobs) -> Jobs:
    """*jobs* whose batch size nobody may change."""
    return replace(jobs, max_batch=np.zeros(len(jobs), dtype=np.int64)) if jobs.max_batch.any() else jobs
