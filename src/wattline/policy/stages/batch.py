"""Stage that chooses the cheapest batch size of each job for its GPUs and power cap."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from wattline.core.energy_knob import EnergyKnob
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_ACCEPTED_KINDS
from wattline.core.snapshot import Snapshot
from wattline.core.table import Ints
from wattline.errors import ConfigError
from wattline.measurement.devices import DEVICES
from wattline.models.cost import sample_cost
from wattline.models.job_classes import classify_jobs
from wattline.policy.chain import plan_as_requested


@dataclass(frozen=True)
class Batch:
    """Stage: train jobs that allow it with the batch size that costs least (You et al., NSDI 2023, "Zeus").

        cost = (η · P + (1 − η) · P_max) / progress

    Progress is predicted by the models: samples per second, times the statistical efficiency of the batch
    size. Sizes are the requested one and its doubles, up to the job's `max_batch`. A job that has started
    keeps its batch, as another would need a restart; a batch that an earlier stage has chosen stays.
    *Deviates:* the original tries batch sizes from one recurrence of a job to the next, which
    `wattline.batch_size.bayesian` does outside the scheduler; here the models predict the cost.
    """

    ENERGY_KNOB: ClassVar[EnergyKnob] = EnergyKnob("eta", fastest=0.0, cheapest=1.0, secondary=True)

    eta: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1:
            raise ConfigError(f"eta must be between 0 and 1, got {self.eta}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`."""
        plan = plan_as_requested(snapshot) if plan is None else plan
        jobs, queue = snapshot.jobs, snapshot.queue
        job = queue.job[plan.row]
        batch = np.zeros(len(plan), dtype=np.int64) if plan.batch is None else plan.batch.copy()
        running = _find_running_batches(snapshot)[plan.row]
        batch = np.where(running >= 0, np.where(batch > 0, batch, running), batch)
        free = (jobs.max_batch[job] > jobs.batch[job]) & (jobs.batch[job] > 0) & (batch == 0) & (running < 0)
        alone = np.bincount(plan.group, minlength=len(queue))[plan.group] == 1
        kind = _find_kinds(snapshot, plan)
        job_class, example = classify_jobs(jobs)
        for p in np.flatnonzero(free & alone).tolist():
            batch[p] = _choose_batch(
                models,  # type: ignore[arg-type]  # models are frozen
                jobs,
                snapshot.nodes,
                self,
                int(example[job_class[job[p]]]),
                int(kind[p]),
                int(plan.gpus[p]),
                0 if plan.cap_w is None else int(plan.cap_w[p]),
            )
        return replace(plan, batch=batch) if batch.any() else plan


def _find_running_batches(snapshot: Snapshot) -> Ints:
    """Return the batch of each row of the queue; -1: it does not run."""
    batch = np.full(len(snapshot.queue), -1, dtype=np.int64)
    rows = np.searchsorted(snapshot.queue.job, snapshot.leases.job)
    batch[rows] = snapshot.leases.batch
    return batch


def _find_kinds(snapshot: Snapshot, plan: Plan) -> Ints:
    """Return the kind of GPU of each entry: that of the plan, or the first that the job accepts."""
    accepts = snapshot.queue.block[QUEUE_ACCEPTED_KINDS, plan.row].astype(np.int64)
    bits = (accepts[:, None] >> np.arange(len(snapshot.nodes.kind.names))) & 1
    first = np.argmax(bits, axis=1).astype(np.int64)
    if plan.node is not None:
        return snapshot.nodes.kind.codes[plan.node]
    return first if plan.kind is None else np.where(plan.kind >= 0, plan.kind, first)


@lru_cache(maxsize=4096)
def _choose_batch(
    models: Models, jobs: Jobs, nodes: Nodes, stage: Batch, job: int, kind: int, gpus: int, cap_w: int
) -> int:
    """Return the cheapest batch size for a job of that class; 0: as requested."""
    requested, most = int(jobs.batch[job]), int(jobs.max_batch[job])
    sizes = [0]
    while requested * 2 ** len(sizes) <= most:
        sizes.append(requested * 2 ** len(sizes))
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
