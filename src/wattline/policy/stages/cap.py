"""At what power cap a job is cheapest, on the GPUs it is given."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import ACCEPTS, JOB
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError
from wattline.jit import F2, I1, I2, kernel
from wattline.measurement.devices import DEVICES
from wattline.models.configurations import Menu, menu
from wattline.models.cost import sample_cost
from wattline.models.job_classes import sorts
from wattline.policy.chain import asked

_ODD = -1  # a cap or a batch that the menu does not know
_LOOSEST = 1 << 62
_AS_ASKED = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Cap:
    """Stage: every job runs at the power cap at which it costs least (You et al., NSDI 2023, "Zeus").

        cost = (η · P + (1 − η) · P_max) / speed,    P: what its GPUs draw, P_max: their largest cap

    *eta* 1 counts energy only, 0 time only. Caps under which a job takes more than *slowdown* times as long
    as without one are left out. The rest of the plan stays as it is; where a stage before has set a cap the
    tighter one holds, and jobs on the same GPUs get the loosest of theirs. Who waits is capped for the
    cluster's kind of GPU, or, of several, for the first that it accepts; if it then starts on another, this
    is put right when the policy is asked next. With *known* 1 jobs whose watts nobody knows are left alone:
    a job that runs may find its own cap.
    *Deviates:* the original tries caps while a job runs, here the models are asked; the batch sizes that it
    explores from one recurrence of a job to the next are left alone.
    """

    eta: float = 0.5
    slowdown: float = math.inf
    known: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1:
            raise ConfigError(f"eta must be between 0 and 1, got {self.eta}")
        if not self.slowdown >= 1:
            raise ConfigError(f"slowdown must be at least 1, got {self.slowdown}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """The plan; see `wattline.policy.chain.Stage`."""
        plan = asked(snapshot) if plan is None else plan
        jobs, nodes = snapshot.jobs, snapshot.nodes
        ways = menu(models, jobs, nodes)
        batches, caps = _on_the_menu(ways, nodes, self)
        cap_w, kind, odd, shared = _look_up(
            plan.row,
            plan.gpus,
            plan.group,
            _AS_ASKED if plan.batch is None else plan.batch,
            snapshot.queue.block,
            snapshot.leases.block,
            nodes.kind.codes,
            ways.sort,
            ways.gpus,
            batches,
            caps,
        )
        if odd:
            self._ask(models, snapshot, plan, kind, cap_w)
        if self.known:
            metered = _metered(models, jobs, nodes)  # type: ignore[arg-type]
            cap_w = np.where(metered[snapshot.queue.job[plan.row], kind], cap_w, 0)
        if plan.cap_w is not None:
            cap_w = _or_none(np.minimum(_or_loosest(plan.cap_w), _or_loosest(cap_w)))
        if shared:
            cap_w = _together(plan.group, cap_w, len(snapshot.queue))
        return replace(plan, cap_w=cap_w) if plan.cap_w is not None or cap_w.any() else plan

    def _ask(self, models: Models, snapshot: Snapshot, plan: Plan, kind: Ints, cap_w: Ints) -> None:
        """Fill in the caps of sizes and batches that are not on the menu."""
        jobs, nodes = snapshot.jobs, snapshot.nodes
        ways = menu(models, jobs, nodes)
        examples = _examples(ways)
        for p in np.flatnonzero(cap_w == _ODD).tolist():
            on, gpus = int(kind[p]), int(plan.gpus[p])
            job = int(examples[ways.sort[int(snapshot.queue.block[JOB, plan.row[p]]), on]])
            batch = 0 if plan.batch is None else int(plan.batch[p])
            cap_w[p] = _off_the_menu(models, jobs, nodes, self, job, on, gpus, batch)  # type: ignore[arg-type]

    def _cheapest(self, speed: Floats, gpu_w: Floats, cap_w: Ints, max_w: float) -> Ints:
        """The best of the caps along the last axis, of which the last is none; of equals the loosest."""
        cost = sample_cost(speed, gpu_w, eta=self.eta, max_w=max_w)
        cost = np.where(speed * self.slowdown >= speed[..., -1:], cost, np.inf)
        best = cost.shape[-1] - 1 - np.argmin(cost[..., ::-1], axis=-1)
        return np.take_along_axis(cap_w, best[..., None], axis=-1)[..., 0]


@lru_cache(maxsize=8)
def _on_the_menu(ways: Menu, nodes: Nodes, stage: Cap) -> tuple[Ints, Ints]:
    """By sort and size the batch, where one is best at all caps (else `_ODD`), and the cap to choose."""
    batch = np.where((ways.batch == ways.batch[..., -1:]).all(axis=-1), ways.batch[..., -1], _ODD)
    caps = np.empty_like(batch)
    sorts = len(ways.gpus) // len(nodes.kind.names)
    for code, name in enumerate(nodes.kind.names):
        here = slice(code * sorts, (code + 1) * sorts)
        gpu_w = ways.watts[here] / ways.gpus[here, :, None]
        caps[here] = stage._cheapest(ways.speed[here], gpu_w, ways.cap_w[here], _max_w(name))
    return np.ascontiguousarray(batch), caps


def _max_w(kind: str) -> float:
    return DEVICES[kind].max_cap_w if kind in DEVICES else 1.0  # there is nothing to choose then


@lru_cache(maxsize=8)
def _metered(models: Models, jobs: Jobs, nodes: Nodes) -> Bools:
    """By job and kind of GPU, whether anybody knows what it draws there."""
    sort, example = sorts(jobs)
    said = [models.watts(jobs, Grants.of(example, jobs.gpus[example], kind=k)) for k in nodes.kind.names]
    return np.asarray(np.isfinite(np.stack(said, axis=1))[sort])


@lru_cache(maxsize=8)
def _examples(ways: Menu) -> Ints:
    """A job of each sort."""
    jobs = np.empty(len(ways.gpus), dtype=np.int64)
    jobs[ways.sort[::-1]] = np.arange(len(ways.sort), dtype=np.int64)[::-1, None]
    return jobs


@lru_cache(maxsize=4096)
def _off_the_menu(
    models: Models, jobs: Jobs, nodes: Nodes, stage: Cap, job: int, kind: int, gpus: int, batch: int
) -> int:
    """The cap to choose for a size or a batch that is not on the menu."""
    ways = menu(models, jobs, nodes)
    cap_w = np.ascontiguousarray(ways.cap_w[ways.sort[job, kind], 0])
    here = nodes.kind.codes == kind
    same = np.ones(len(cap_w), dtype=np.int64)
    grants = Grants.of(
        same * job,
        same * gpus,
        same * -(-gpus // int(nodes.gpus[here].max())),
        cap_w=cap_w,
        batch=same * batch,
        kind=nodes.kind.names[kind],
    )
    busy_w = float(nodes.busy_w[here].max())
    gpu_w = models.watts(jobs, grants)
    gpu_w = np.where(np.isnan(gpu_w), np.where(cap_w > 0, np.minimum(cap_w, busy_w), busy_w), gpu_w)
    speed = models.speed(jobs, grants)
    return int(stage._cheapest(speed, gpu_w, cap_w, _max_w(nodes.kind.names[kind])))


def _together(group: Ints, cap_w: Ints, queued: int) -> Ints:
    """The loosest cap of each group, for all of it."""
    loosest = np.zeros(queued, dtype=np.int64)
    np.maximum.at(loosest, group, _or_loosest(cap_w))
    return _or_none(loosest[group])


def _or_loosest(cap_w: Ints) -> Ints:
    """Caps that can be compared: none is a very large one."""
    return np.where(cap_w == 0, _LOOSEST, cap_w)


def _or_none(cap_w: Ints) -> Ints:
    return np.where(cap_w == _LOOSEST, 0, cap_w)


@kernel(I1, I1, I1, I1, F2, I2, I1, I2, I2, I2, I2)
def _look_up(
    plan_row: Ints,
    plan_gpus: Ints,
    plan_group: Ints,
    plan_batch: Ints,
    block: Floats,
    leases: Ints,
    node_kind: Ints,
    sort: Ints,
    gpus: Ints,
    batches: Ints,
    caps: Ints,
) -> tuple[Ints, Ints, bool, bool]:
    """Cap and kind of every entry of the plan; whether some are not on the menu, or share their GPUs."""
    held_in = np.full(block.shape[1], -1, dtype=np.int64)
    i = 0
    for r in range(leases.shape[1]):
        while block[JOB, i] < leases[0, r]:
            i += 1
        held_in[i] = node_kind[leases[2, r]]
    cap_w = np.full(len(plan_row), _ODD, dtype=np.int64)
    kind = np.zeros(len(plan_row), dtype=np.int64)
    odd = shared = False
    for p in range(len(plan_row)):
        i = plan_row[p]
        k = held_in[i]
        if k < 0:
            accepts = int(block[ACCEPTS, i])
            k = 0
            while k + 1 < sort.shape[1] and not (accepts >> k) & 1:
                k += 1
        kind[p] = k
        c = sort[int(block[JOB, i]), k]
        batch = plan_batch[p] if len(plan_batch) > 0 else 0
        for s in range(gpus.shape[1]):
            if gpus[c, s] == plan_gpus[p]:
                if batches[c, s] == batch:
                    cap_w[p] = caps[c, s]
                break
        odd = odd or cap_w[p] == _ODD
        shared = shared or plan_group[p] != i
    return cap_w, kind, odd, shared
