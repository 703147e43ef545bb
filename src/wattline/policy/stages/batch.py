"""With which batch size a job is cheapest, on the GPUs and under the cap it is given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import ACCEPTS
from wattline.core.snapshot import Snapshot
from wattline.core.table import Ints
from wattline.errors import ConfigError
from wattline.measurement.devices import DEVICES
from wattline.models.cost import sample_cost
from wattline.models.job_classes import sorts
from wattline.policy.chain import asked


@dataclass(frozen=True)
class Batch:
    """Stage: jobs that allow it are trained with the batch size at which they cost least (Zeus, NSDI 2023).

        cost = (η · P + (1 − η) · P_max) / progress

    Progress is what the models say of a batch size: samples per second, times what a sample of a larger batch
    still teaches. Sizes are the one that was asked for and its doubles, up to the job's `max_batch`. A job
    that has started keeps its batch, as another would be a restart; what a stage before has chosen stays.
    *Deviates:* the original tries batch sizes from one recurrence of a job to the next, which is what
    `wattline.batch_size.bayesian` does outside of the scheduler; here the models are asked.
    """

    eta: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1:
            raise ConfigError(f"eta must be between 0 and 1, got {self.eta}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """The plan; see `wattline.policy.chain.Stage`."""
        plan = asked(snapshot) if plan is None else plan
        jobs, queue = snapshot.jobs, snapshot.queue
        job = queue.job[plan.row]
        batch = np.zeros(len(plan), dtype=np.int64) if plan.batch is None else plan.batch.copy()
        has = _has(snapshot)[plan.row]
        batch = np.where(has >= 0, np.where(batch > 0, batch, has), batch)
        free = (jobs.max_batch[job] > jobs.batch[job]) & (jobs.batch[job] > 0) & (batch == 0) & (has < 0)
        alone = np.bincount(plan.group, minlength=len(queue))[plan.group] == 1
        kind = _kinds(snapshot, plan)
        sort, example = sorts(jobs)
        for p in np.flatnonzero(free & alone).tolist():
            batch[p] = _cheapest(
                models,  # type: ignore[arg-type]  # models are frozen
                jobs,
                snapshot.nodes,
                self,
                int(example[sort[job[p]]]),
                int(kind[p]),
                int(plan.gpus[p]),
                0 if plan.cap_w is None else int(plan.cap_w[p]),
            )
        return replace(plan, batch=batch) if batch.any() else plan


def _has(snapshot: Snapshot) -> Ints:
    """By row of the queue the batch of a job that runs; -1: it does not."""
    found = np.full(len(snapshot.queue), -1, dtype=np.int64)
    rows = np.searchsorted(snapshot.queue.job, snapshot.leases.job)
    found[rows] = snapshot.leases.batch
    return found


def _kinds(snapshot: Snapshot, plan: Plan) -> Ints:
    """The kind of GPU of each entry: what the plan says, or the first that the job accepts."""
    accepts = snapshot.queue.block[ACCEPTS, plan.row].astype(np.int64)
    bits = (accepts[:, None] >> np.arange(len(snapshot.nodes.kind.names))) & 1
    first = np.argmax(bits, axis=1).astype(np.int64)
    if plan.node is not None:
        return snapshot.nodes.kind.codes[plan.node]
    return first if plan.kind is None else np.where(plan.kind >= 0, plan.kind, first)


@lru_cache(maxsize=4096)
def _cheapest(
    models: Models, jobs: Jobs, nodes: Nodes, stage: Batch, job: int, kind: int, gpus: int, cap_w: int
) -> int:
    """The batch size to choose for a job of that sort; 0: as asked."""
    asked_for, most = int(jobs.batch[job]), int(jobs.max_batch[job])
    sizes = [0]
    while asked_for * 2 ** len(sizes) <= most:
        sizes.append(asked_for * 2 ** len(sizes))
    same = np.ones(len(sizes), dtype=np.int64)
    name = nodes.kind.names[kind]
    here = nodes.kind.codes == kind
    grants = Grants.of(
        same * job,
        same * gpus,
        same * -(-gpus // int(nodes.gpus[here].max())),
        cap_w=same * cap_w,
        batch=np.array(sizes, dtype=np.int64),
        kind=name,
    )
    gpu_w = models.watts(jobs, grants)
    busy_w = float(nodes.busy_w[here].max())
    gpu_w = np.where(np.isnan(gpu_w), min(busy_w, cap_w) if cap_w else busy_w, gpu_w)
    max_w = DEVICES[name].max_cap_w if name in DEVICES else busy_w
    cost = sample_cost(models.speed(jobs, grants), gpu_w, eta=stage.eta, max_w=max_w)
    return sizes[int(np.argmin(cost))]
