"""How many cores and how much memory should a job ask for?"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wattline.core.grants import Grants
from wattline.core.host_share import with_shares
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.table import Ints
from wattline.models.job_classes import sorts
from wattline.models.sensitivity import needs, saturating
from wattline.models.workload_models import Measured

_SAME = 0.005  # a change of speed that is none


@dataclass(frozen=True)
class Advice:
    """What jobs that are alike ask for, for each GPU, and what they should; None: nobody knows.

    *keeps* is of the best speed that they can have on such a node, *faster* over what they ask for now.
    """

    model: str
    gpu: str
    gpus: int
    jobs: int
    node: str
    asks_cpus: float
    asks_gib: float
    cpus: int | None = None
    mem_gib: int | None = None
    keeps: float = math.nan
    faster: float = math.nan

    @property
    def flags(self) -> str:
        """What to give Slurm; "" where nothing is known."""
        return "" if self.cpus is None else f"--cpus-per-gpu={self.cpus} --mem-per-gpu={self.mem_gib}G"

    @property
    def frees_cpus(self) -> float:
        """Cores that one such job leaves to others; negative: it takes more than it asks for now."""
        return 0.0 if self.cpus is None else self.gpus * (self.asks_cpus - self.cpus)

    @property
    def frees_gib(self) -> float:
        """Likewise memory."""
        return 0.0 if self.mem_gib is None else self.gpus * (self.asks_gib - self.mem_gib)

    @property
    def more_jobs(self) -> int:
        """For how many one-GPU jobs that ask for as much the cores and memory suffice that one leaves."""
        if self.cpus is None or self.mem_gib is None:
            return 0
        return max(0, int(min(self.frees_cpus / self.cpus, self.frees_gib / self.mem_gib)))


def advise(jobs: Jobs, nodes: Nodes, models: Measured, keep: float = 0.98) -> list[Advice]:
    """What each sort of *jobs* should ask for on the first of *nodes* that it accepts.

    The least cores, and then the least memory, with which it has *keep* of its best speed there. Jobs that
    do not say what they ask for are taken to have their proportional share.
    """
    jobs = with_shares(jobs, nodes)
    known = needs(models, jobs, nodes)
    sort, example = sorts(jobs)
    count = np.bincount(sort, minlength=len(example))
    accepts = nodes.accepts(jobs.gpu_kind)
    found = []
    for job, many in zip(example.tolist(), count.tolist(), strict=True):
        may = np.flatnonzero((accepts[job] >> nodes.kind.codes) & 1)
        node = int(may[0]) if len(may) else 0
        gpus = int(jobs.gpus[job])
        kind = nodes.kind.word(node)
        cores = round(float(nodes.cpus[node]))
        plain = Advice(
            model=jobs.model.word(job),
            gpu=kind,
            gpus=gpus,
            jobs=many,
            node=f"{nodes.gpus[node]} x {kind}, {cores} cores, {nodes.mem_gib[node]:g} GiB",
            asks_cpus=float(jobs.cpus[job] / gpus),
            asks_gib=float(jobs.mem_gib[job] / gpus),
        )
        if not models.knows_host(plain.model, kind):
            found.append(plain)
            continue
        s = known.sets[job, known.shape[node]]
        least = saturating(known, keep)[s]
        best = known.first[s] + int(np.argmax(known.speed[known.first[s] : known.first[s + 1]]))
        host = known.host[:, [least, best]]
        cpus, gib = math.ceil(host[0, 0] / 1000), math.ceil(host[1, 0] / 1024)
        rounded = host[:, 0].copy()
        rounded[:2] = 1000 * cpus, 1024 * gib
        timed = np.array((1000 * plain.asks_cpus, 1024 * plain.asks_gib, rounded[2])).astype(np.int64)
        now, then, top = _speeds(models, jobs, job, kind, np.stack((timed, rounded, host[:, 1]), axis=1))
        keeps, faster = min(1.0, then / top), then / now
        found.append(replace(plain, cpus=cpus, mem_gib=gib, keeps=keeps, faster=faster))
    return sorted(found, key=lambda a: -a.jobs * abs(a.frees_cpus) if a.cpus is not None else 1.0)


def _speeds(models: Measured, jobs: Jobs, job: int, kind: str, host: Ints) -> list[float]:
    same = np.ones(host.shape[1], dtype=np.int64)
    grants = Grants.of(same * job, same * int(jobs.gpus[job]), host=np.ascontiguousarray(host), kind=kind)
    found: list[float] = models.speed(jobs, grants).tolist()
    return found


def sentence(advice: Advice) -> str:
    """The advice in words, with what to type."""
    if advice.cpus is None:
        return "nothing is known of its need of cores and memory; measure it: wattline profile -- COMMAND"
    text = f"{advice.flags} keeps {100 * advice.keeps:.0f} % speed"
    if advice.faster > 1 + _SAME:
        text += f", {advice.faster:.2f}x as fast as with what it asks for"
    elif advice.faster < 1 - _SAME:
        text += f", {advice.faster:.2f}x the speed of what it asks for"
    freed, gib = advice.frees_cpus, advice.frees_gib
    if freed >= 1 and gib >= 0:
        text += f"; frees {_cores(freed)}"
        if advice.more_jobs:
            more = advice.more_jobs
            text += f" = {more} more one-GPU job{'s' if more > 1 else ''} on this node"
    elif freed >= 1:
        text += f"; frees {_cores(freed)}, takes {-gib:g} GiB more"
    elif freed <= -1:
        text += f"; takes {_cores(-freed)} more" + (f" and {-gib:g} GiB" if gib <= -1 else "")
    elif gib >= 1:
        text += f"; frees {gib:g} GiB"
    return text


def _cores(count: float) -> str:
    return f"{count:g} core{'s' if count != 1 else ''}"
