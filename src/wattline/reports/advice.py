"""Advice on the CPU cores and the memory that jobs should request."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wattline.core.grants import Grants
from wattline.core.host_share import fill_host_shares
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.table import Ints
from wattline.models.job_classes import classify_jobs
from wattline.models.sensitivity import build_sensitivity, find_saturation_points
from wattline.models.workload_models import WorkloadModels

_SAME_SPEED = 0.005  # relative changes of speed up to this count as none


@dataclass(frozen=True)
class Advice:
    """Requested and advised host resources of equal jobs, per GPU; None = no model is known.

    `speed_kept` is the share of the best speed that the jobs can have on such a node, `speedup` the speed
    over that with the present request.
    """

    model: str
    gpu: str
    gpus: int
    jobs: int
    node: str
    requested_cpus: float
    requested_gib: float
    cpus: int | None = None
    mem_gib: int | None = None
    speed_kept: float = math.nan
    speedup: float = math.nan

    @property
    def flags(self) -> str:
        """Options of sbatch; "" = no model is known."""
        return "" if self.cpus is None else f"--cpus-per-gpu={self.cpus} --mem-per-gpu={self.mem_gib}G"

    @property
    def freed_cpus(self) -> float:
        """Cores that one such job frees; negative = it needs more than it requests."""
        return 0.0 if self.cpus is None else self.gpus * (self.requested_cpus - self.cpus)

    @property
    def freed_gib(self) -> float:
        """Memory in GiB that one such job frees; negative = it needs more than it requests."""
        return 0.0 if self.mem_gib is None else self.gpus * (self.requested_gib - self.mem_gib)

    @property
    def extra_jobs(self) -> int:
        """Number of one-GPU jobs with the advised request for which the freed cores and memory suffice."""
        if self.cpus is None or self.mem_gib is None:
            return 0
        return max(0, int(min(self.freed_cpus / self.cpus, self.freed_gib / self.mem_gib)))


def advise(jobs: Jobs, nodes: Nodes, models: WorkloadModels, keep: float = 0.98) -> list[Advice]:
    """Return the advised request of each class of *jobs* on the first of *nodes* that it accepts.

    It has the fewest cores, and then the least memory, that give the share *keep* of the best speed there.
    Jobs without a request are taken to have their proportional share. The largest sum of cores changed
    comes first, jobs without a model last.
    """
    jobs = fill_host_shares(jobs, nodes)
    known = build_sensitivity(models, jobs, nodes)
    job_class, examples = classify_jobs(jobs)
    count = np.bincount(job_class, minlength=len(examples))
    accepts = nodes.accepted_kinds(jobs.gpu_kind)
    result = []
    for job, job_count in zip(examples.tolist(), count.tolist(), strict=True):
        accepted = np.flatnonzero((accepts[job] >> nodes.kind.codes) & 1)
        node = int(accepted[0]) if len(accepted) else 0
        gpus = int(jobs.gpus[job])
        kind = nodes.kind.word(node)
        cores = round(float(nodes.cpus[node]))
        request = Advice(
            model=jobs.model.word(job),
            gpu=kind,
            gpus=gpus,
            jobs=job_count,
            node=f"{nodes.gpus[node]} x {kind}, {cores} cores, {nodes.mem_gib[node]:g} GiB",
            requested_cpus=float(jobs.cpus[job] / gpus),
            requested_gib=float(jobs.mem_gib[job] / gpus),
        )
        if not models.has_host_profile(request.model, kind):
            result.append(request)
            continue
        s = known.point_sets[job, known.node_shape[node]]
        least = find_saturation_points(known, keep)[s]
        best = known.set_start[s] + int(np.argmax(known.speed[known.set_start[s] : known.set_start[s + 1]]))
        host = known.host[:, [least, best]]
        cpus, gib = math.ceil(host[0, 0] / 1000), math.ceil(host[1, 0] / 1024)
        advised = host[:, 0].copy()
        advised[:2] = 1000 * cpus, 1024 * gib
        requested = np.array(
            (1000 * request.requested_cpus, 1024 * request.requested_gib, advised[2])
        ).astype(np.int64)
        settings = np.stack((requested, advised, host[:, 1]), axis=1)
        requested_speed, advised_speed, best_speed = _predict_speeds(models, jobs, job, kind, settings)
        keeps, faster = min(1.0, advised_speed / best_speed), advised_speed / requested_speed
        result.append(replace(request, cpus=cpus, mem_gib=gib, speed_kept=keeps, speedup=faster))
    return sorted(result, key=lambda a: -a.jobs * abs(a.freed_cpus) if a.cpus is not None else 1.0)


def _predict_speeds(models: WorkloadModels, jobs: Jobs, job: int, kind: str, host: Ints) -> list[float]:
    """Return the speed of *job* with each column of *host*: mcpus, MiB and MiB/s per GPU."""
    same = np.ones(host.shape[1], dtype=np.int64)
    grants = Grants.of(same * job, same * int(jobs.gpus[job]), host=np.ascontiguousarray(host), kind=kind)
    speeds: list[float] = models.speed(jobs, grants).tolist()
    return speeds


def format_advice(advice: Advice) -> str:
    """Return the advice as a sentence with the options to use."""
    if advice.cpus is None:
        return "no model of its need of cores and memory is known; measure it: wattline profile -- COMMAND"
    text = f"{advice.flags} keeps {100 * advice.speed_kept:.0f} % speed"
    if advice.speedup > 1 + _SAME_SPEED:
        text += f", {advice.speedup:.2f}x as fast as with its present request"
    elif advice.speedup < 1 - _SAME_SPEED:
        text += f", {advice.speedup:.2f}x the speed with its present request"
    freed, gib = advice.freed_cpus, advice.freed_gib
    if freed >= 1 and gib >= 0:
        text += f"; frees {_format_cores(freed)}"
        if advice.extra_jobs:
            more = advice.extra_jobs
            text += f" = {more} more one-GPU job{'s' if more > 1 else ''} on this node"
    elif freed >= 1:
        text += f"; frees {_format_cores(freed)}, takes {-gib:g} GiB more"
    elif freed <= -1:
        text += f"; takes {_format_cores(-freed)} more" + (f" and {-gib:g} GiB" if gib <= -1 else "")
    elif gib >= 1:
        text += f"; frees {gib:g} GiB"
    return text


def _format_cores(count: float) -> str:
    return f"{count:g} core{'s' if count != 1 else ''}"
