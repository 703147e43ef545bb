"""Recorded jobs of a Slurm partition as a case for the simulator."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattline.backend.engine.slurm.node_list import NodeList
from wattline.backend.engine.slurm.recorded_jobs import RecordedJob
from wattline.backend.sim.recorded import Allocation, RecordedCase
from wattline.core.jobs import PREEMPTIBLE_ALWAYS, PREEMPTIBLE_NEVER, Jobs
from wattline.core.table import Bools

ASSUMED_S = 3600.0
"""Duration that is assumed of a job without a time limit before its end is known."""
_LEAST_S = 0.5  # of a job that starts and ends within the same second of Slurm's clock


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Jobs that a comparison does not count, and its mask of those that it does."""

    counted: Bools  # by row of the case: it started and ended while it was watched
    ran_before: int  # started before; they keep their GPUs
    running: int  # had not ended
    waiting: int  # had not started
    unknown_ends: int  # Slurm has forgotten them before their end was read
    cancelled: int  # before they started
    without_gpus: int


@dataclass(frozen=True)
class _Row:
    job: RecordedJob
    arrived_s: float  # this and all other times: since the beginning of the watch
    duration_s: float
    assumed_s: float
    ran_before: bool = False
    counted: bool = False


def build_case(
    jobs: Iterable[RecordedJob],
    node_list: NodeList,
    began_s: float,
    ended_s: float,
    unknown_ends: Iterable[str] = (),
    about: dict[str, Any] | None = None,
) -> tuple[RecordedCase, LeftOut]:
    """Return the case of all jobs that held or wanted GPUs between *began_s* and *ended_s*.

    A job that has not ended is assumed to last as long as its time limit: others must not get its GPUs in the
    simulation only because its end is not known. It is not counted.
    """
    recent = [job for job in jobs if not (job.is_over and job.end_s < began_s)]
    with_gpus = [job for job in recent if job.gpus > 0]
    cancelled = [job for job in with_gpus if job.is_over and not job.has_run]
    rows = [row for job in with_gpus if (row := _build_row(job, began_s, ended_s)) is not None]
    rows = [row for row in rows if not row.job.has_run or _find_nodes(row.job, node_list)]
    rows.sort(key=lambda row: row.arrived_s)
    lost = set(unknown_ends)
    open_rows = [row.job for row in rows if not row.job.is_over]
    left_out = LeftOut(
        counted=np.array([row.counted for row in rows], dtype=np.bool_),
        ran_before=sum(row.ran_before for row in rows),
        running=sum(
            row.job.has_run and not row.job.is_over and not row.ran_before and row.job.id not in lost
            for row in rows
        ),
        waiting=sum(not job.has_run and not job.is_over for job in with_gpus),
        unknown_ends=sum(job.id in lost for job in open_rows),
        cancelled=len(cancelled),
        without_gpus=len(recent) - len(with_gpus),
    )
    allocations = {number: _find_nodes(row.job, node_list) for number, row in enumerate(rows)}
    case = RecordedCase(
        jobs=_build_jobs(rows, node_list),
        nodes=node_list.nodes,
        assumed_s=np.array([row.assumed_s for row in rows]),
        running={number: allocations[number] for number, row in enumerate(rows) if row.ran_before},
        starts=[
            (row.job.start_s - began_s, number, allocations[number])
            for number, row in enumerate(rows)
            if row.job.has_run and not row.ran_before
        ],
        about=about or {},
    )
    return case, left_out


def _build_row(job: RecordedJob, began_s: float, ended_s: float) -> _Row | None:
    """Return the row of a job; None: it was cancelled before it started, or may not start yet."""
    limit_s = ASSUMED_S if job.limit_s is None else job.limit_s
    if not job.has_run:
        if job.is_over or math.isnan(job.eligible_s):
            return None
        return _Row(job, max(job.submit_s, job.eligible_s) - began_s, limit_s, limit_s)
    arrived_s = min(np.nanmax((job.submit_s, job.eligible_s)), job.start_s) - began_s
    # A job that is over is exactly as long as recorded; of others only the time so far is known.
    end_s = job.end_s if job.is_over else max(job.start_s + limit_s, ended_s)
    if job.start_s < began_s:
        assumed_s = max(job.start_s + limit_s - began_s, _LEAST_S)
        return _Row(job, arrived_s, max(end_s - began_s, _LEAST_S), assumed_s, ran_before=True)
    duration_s = max(end_s - job.start_s, _LEAST_S)
    return _Row(job, arrived_s, duration_s, max(limit_s, _LEAST_S), counted=job.is_over)


def _build_jobs(rows: list[_Row], node_list: NodeList) -> Jobs:
    jobs = [row.job for row in rows]
    kinds, gpus = node_list.nodes.kind.names, [job.gpus for job in jobs]
    return Jobs.of(
        id=_name_apart([job.id for job in jobs]),
        submit_s=[row.arrived_s for row in rows],
        gpus=gpus,
        min_gpus=gpus,
        max_gpus=gpus,
        duration_s=[row.duration_s for row in rows],
        team=[job.account for job in jobs],
        user=[job.user for job in jobs],
        gpu_kind=[job.gpu_type.casefold() if job.gpu_type.casefold() in kinds else "" for job in jobs],
        preemptible=[PREEMPTIBLE_NEVER if row.ran_before else PREEMPTIBLE_ALWAYS for row in rows],
    )


def _name_apart(ids: list[str]) -> list[str]:
    """Return *ids* with ~2, ~3 … after those that Slurm has given out again."""
    return [f"{id}~{before + 1}" if (before := ids[:n].count(id)) else id for n, id in enumerate(ids)]


def _find_nodes(job: RecordedJob, node_list: NodeList) -> Allocation:
    """Return the rows of a job's nodes, and its GPUs on each; nodes outside the partition are left out."""
    places = ((node_list.row(name), gpus) for name, gpus in job.allocation)
    return tuple(sorted((node, gpus) for node, gpus in places if node >= 0))
