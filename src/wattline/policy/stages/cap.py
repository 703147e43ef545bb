"""Stage that chooses the cheapest power cap of each job for its GPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from wattline.core.energy_knob import EnergyKnob
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_ACCEPTED_KINDS, QUEUE_JOB
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError
from wattline.jit import F2, I1, I2, kernel, record
from wattline.measurement.devices import DEVICES
from wattline.models.cap_prediction import predict_under_caps
from wattline.models.configurations import PLENTY, PROPORTIONAL, Configurations, build_configurations
from wattline.models.cost import sample_cost
from wattline.models.job_classes import classify_jobs
from wattline.policy.chain import plan_as_requested
from wattline.policy.held_kinds import find_held_kinds

_UNLISTED = -1  # a cap or a batch that is not among the configurations
_LOOSEST = 1 << 62
_AS_REQUESTED = np.empty(0, dtype=np.int64)
_GAIN = 0.001  # relative gain of speed from more of the host that counts


@dataclass(frozen=True)
class Cap:
    """Stage: run every job at the power cap at which it costs least (You et al., NSDI 2023, "Zeus").

        cost = (η · P + (1 − η) · P_max) / speed,    P: power draw of its GPUs, P_max: their largest cap

    *eta* 1 counts energy only, 0 time only. Caps under which a job takes more than *slowdown* times as long
    as without one are left out. The rest of the plan stays as it is; where an earlier stage has set a cap
    the tighter one holds, and jobs on the same GPUs get the loosest of theirs. A waiting job is capped for
    the cluster's kind of GPU, or, of several, for the first that it accepts; if it then starts on another,
    the next decision corrects the cap. A running job is capped for the cores and memory that it has, which
    the placer may change; a waiting one for all that it could use, if the placer divides hosts by need.
    With *known* 1 only jobs with a known power draw are capped: a job
    that runs may search its own cap.
    *Deviates:* the original tries caps while a job runs, here the models predict the cost; the batch sizes
    that it explores from one recurrence of a job to the next are left to other stages.
    """

    ENERGY_KNOB: ClassVar[EnergyKnob] = EnergyKnob("eta", fastest=0.0, cheapest=1.0, secondary=True)

    eta: float = 0.5
    slowdown: float = math.inf
    known: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1:
            raise ConfigError(f"eta must be between 0 and 1, got {self.eta}")
        if not self.slowdown >= 1:
            raise ConfigError(f"slowdown must be at least 1, got {self.slowdown}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`."""
        plan = plan_as_requested(snapshot) if plan is None else plan
        jobs, nodes = snapshot.jobs, snapshot.nodes
        configs = build_configurations(models, jobs, nodes)
        cap_w, kind, unlisted, shared = _look_up_caps(
            plan.row,
            plan.gpus,
            plan.group,
            _AS_REQUESTED if plan.batch is None else plan.batch,
            snapshot.queue.block,
            snapshot.leases.block,
            nodes.kind.codes,
            _choose_caps(configs, nodes, self),
        )
        if unlisted:
            self._fill_unlisted(models, snapshot, plan, kind, cap_w)
        bound = _find_host_bound(models, jobs, nodes)  # type: ignore[arg-type]  # models are frozen
        if bound.any():
            self._correct_host_bound(models, snapshot, plan, kind, cap_w, bound)
        if self.known:
            metered = _find_metered(models, jobs, nodes)  # type: ignore[arg-type]
            cap_w = np.where(metered[snapshot.queue.job[plan.row], kind], cap_w, 0)
        if plan.cap_w is not None:
            cap_w = _or_none(np.minimum(_or_loosest(plan.cap_w), _or_loosest(cap_w)))
        if shared:
            cap_w = _merge_groups(plan.group, cap_w, len(snapshot.queue))
        return replace(plan, cap_w=cap_w) if plan.cap_w is not None or cap_w.any() else plan

    def _fill_unlisted(self, models: Models, snapshot: Snapshot, plan: Plan, kind: Ints, cap_w: Ints) -> None:
        """Fill in the caps of sizes and batches that are not among the configurations."""
        jobs, nodes = snapshot.jobs, snapshot.nodes
        configs = build_configurations(models, jobs, nodes)
        examples = _find_examples(configs)
        for p in np.flatnonzero(cap_w == _UNLISTED).tolist():
            on, gpus = int(kind[p]), int(plan.gpus[p])
            job = int(examples[configs.job_class[int(snapshot.queue.block[QUEUE_JOB, plan.row[p]]), on]])
            batch = 0 if plan.batch is None else int(plan.batch[p])
            cap_w[p] = _choose_unlisted_cap(models, jobs, nodes, self, job, on, gpus, batch)  # type: ignore[arg-type]

    def _correct_host_bound(
        self, models: Models, snapshot: Snapshot, plan: Plan, kind: Ints, cap_w: Ints, bound: Bools
    ) -> None:
        """Choose the caps of jobs that more of a host makes faster for the share of it that they have."""
        jobs, nodes, leases = snapshot.jobs, snapshot.nodes, snapshot.leases
        examples = classify_jobs(jobs)[1] if getattr(models, "alike", False) else np.arange(len(jobs))
        job_class = classify_jobs(jobs)[0] if getattr(models, "alike", False) else examples
        divided = bool(leases.host.any()) or not len(leases)
        waiting = PLENTY if divided else PROPORTIONAL
        job = snapshot.queue.job[plan.row]
        for p in np.flatnonzero(bound[job, kind]).tolist():
            at = int(np.searchsorted(leases.job, job[p]))
            holds = at < len(leases) and int(leases.job[at]) == int(job[p])
            host = tuple(leases.host[:, at].tolist()) if holds else waiting
            if not holds and plan.host is not None:
                host = tuple(plan.host[:, p].tolist())
            if host != PROPORTIONAL:
                batch = 0 if plan.batch is None else int(plan.batch[p])
                example, gpus = int(examples[job_class[job[p]]]), int(plan.gpus[p])
                cap_w[p] = _choose_unlisted_cap(
                    models,  # type: ignore[arg-type]  # models are frozen
                    jobs,
                    nodes,
                    self,
                    example,
                    int(kind[p]),
                    gpus,
                    batch,
                    host,
                )

    def choose_cheapest(self, speed: Floats, gpu_w: Floats, cap_w: Ints, max_w: float) -> Ints:
        """Return the cheapest cap along the last axis, of which the last is none; of equals the loosest."""
        cost = sample_cost(speed, gpu_w, eta=self.eta, max_w=max_w)
        cost = np.where(speed * self.slowdown >= speed[..., -1:], cost, np.inf)
        best = cost.shape[-1] - 1 - np.argmin(cost[..., ::-1], axis=-1)
        return np.take_along_axis(cap_w, best[..., None], axis=-1)[..., 0]


class _CapTable(NamedTuple):
    """Cheapest caps: *job_class* by job and kind, the others by job class and size."""

    job_class: Ints
    gpus: Ints
    batch: Ints  # `_UNLISTED`: it depends on the cap
    cap_w: Ints


@lru_cache(maxsize=8)
def _choose_caps(configs: Configurations, nodes: Nodes, stage: Cap) -> _CapTable:
    batch = np.where(
        (configs.batch == configs.batch[..., -1:]).all(axis=-1), configs.batch[..., -1], _UNLISTED
    )
    caps = np.empty_like(batch)
    classes = len(configs.gpus) // len(nodes.kind.names)
    for code, name in enumerate(nodes.kind.names):
        here = slice(code * classes, (code + 1) * classes)
        gpu_w = configs.watts[here] / configs.gpus[here, :, None]
        caps[here] = stage.choose_cheapest(configs.speed[here], gpu_w, configs.cap_w[here], _max_w(name))
    return _CapTable(configs.job_class, configs.gpus, np.ascontiguousarray(batch), caps)


def _max_w(kind: str) -> float:
    """Return the largest cap of a kind of GPU."""
    return DEVICES[kind].max_cap_w if kind in DEVICES else 1.0  # an unknown device has no caps to choose from


@lru_cache(maxsize=8)
def _find_metered(models: Models, jobs: Jobs, nodes: Nodes) -> Bools:
    """Return by job and kind of GPU whether the models know the power draw."""
    job_class, example = classify_jobs(jobs)
    watts = [models.watts(jobs, Grants.of(example, jobs.gpus[example], kind=k)) for k in nodes.kind.names]
    return np.asarray(np.isfinite(np.stack(watts, axis=1))[job_class])


@lru_cache(maxsize=8)
def _find_host_bound(models: Models, jobs: Jobs, nodes: Nodes) -> Bools:
    """Return by job and kind of GPU whether more cores, memory or storage make a job faster."""
    if getattr(models, "alike", False):
        job_class, example = classify_jobs(jobs)
    else:
        job_class = example = np.arange(len(jobs), dtype=np.int64)
    gains = []
    for kind in nodes.kind.names:
        plenty = np.outer(PLENTY, np.ones(len(example))).astype(np.int64)
        share = models.speed(jobs, Grants.of(example, jobs.gpus[example], kind=kind))
        gains.append(
            models.speed(jobs, Grants.of(example, jobs.gpus[example], host=plenty, kind=kind)) / share
        )
    return np.asarray((np.stack(gains, axis=1) > 1 + _GAIN)[job_class])


@lru_cache(maxsize=8)
def _find_examples(configs: Configurations) -> Ints:
    """Return a job of each class."""
    jobs = np.empty(len(configs.gpus), dtype=np.int64)
    jobs[configs.job_class[::-1]] = np.arange(len(configs.job_class), dtype=np.int64)[::-1, None]
    return jobs


@lru_cache(maxsize=4096)
def _choose_unlisted_cap(
    models: Models,
    jobs: Jobs,
    nodes: Nodes,
    stage: Cap,
    job: int,
    kind: int,
    gpus: int,
    batch: int,
    host: tuple[int, ...] = PROPORTIONAL,
) -> int:
    """Return the cheapest cap for a size, a batch or a share of the host that no configuration has."""
    configs = build_configurations(models, jobs, nodes)
    cap_w = np.ascontiguousarray(configs.cap_w[configs.job_class[job, kind], 0])
    batches = np.full(len(cap_w), batch, dtype=np.int64)
    speed, gpu_w = predict_under_caps(models, jobs, nodes, job, kind, gpus, cap_w, batches, host)
    return int(stage.choose_cheapest(speed, gpu_w, cap_w, _max_w(nodes.kind.names[kind])))


def _merge_groups(group: Ints, cap_w: Ints, queued: int) -> Ints:
    """Return the loosest cap of each group for all its members."""
    loosest = np.zeros(queued, dtype=np.int64)
    np.maximum.at(loosest, group, _or_loosest(cap_w))
    return _or_none(loosest[group])


def _or_loosest(cap_w: Ints) -> Ints:
    """Return caps that can be compared: no cap is a very large one."""
    return np.where(cap_w == 0, _LOOSEST, cap_w)


def _or_none(cap_w: Ints) -> Ints:
    """Return caps as plans have them: 0 is none."""
    return np.where(cap_w == _LOOSEST, 0, cap_w)


@kernel(I1, I1, I1, I1, F2, I2, I1, record(_CapTable, I2, I2, I2, I2))
def _look_up_caps(
    plan_row: Ints,
    plan_gpus: Ints,
    plan_group: Ints,
    plan_batch: Ints,
    block: Floats,
    leases: Ints,
    node_kind: Ints,
    table: _CapTable,
) -> tuple[Ints, Ints, bool, bool]:
    """Return cap and kind of every entry, whether some caps are unlisted, and whether jobs share GPUs."""
    held_in = find_held_kinds(block, leases, node_kind)
    cap_w = np.full(len(plan_row), _UNLISTED, dtype=np.int64)
    kind = np.zeros(len(plan_row), dtype=np.int64)
    unlisted = shared = False
    for p in range(len(plan_row)):
        i = plan_row[p]
        k = held_in[i]
        if k < 0:
            accepts = int(block[QUEUE_ACCEPTED_KINDS, i])
            k = 0
            while k + 1 < table.job_class.shape[1] and not (accepts >> k) & 1:
                k += 1
        kind[p] = k
        c = table.job_class[int(block[QUEUE_JOB, i]), k]
        batch = plan_batch[p] if len(plan_batch) > 0 else 0
        for s in range(table.gpus.shape[1]):
            if table.gpus[c, s] == plan_gpus[p]:
                if table.batch[c, s] == batch:
                    cap_w[p] = table.cap_w[c, s]
                break
        unlisted = unlisted or cap_w[p] == _UNLISTED
        shared = shared or plan_group[p] != i
    return cap_w, kind, unlisted, shared
