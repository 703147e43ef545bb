"""The queue as the market sees it: configurations, kinds of GPU, remaining work and costs of restarts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_ACCEPTED_KINDS, QUEUE_LAST_GPUS
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.models.array_speed import has_fusion_key
from wattline.models.configurations import (
    PLENTY,
    PROPORTIONAL,
    Configurations,
    add_array_classes,
    build_configurations,
)
from wattline.policy.elastic.capacity import build_capacity
from wattline.policy.elastic.restart_costs import compute_restart_s, compute_work_s
from wattline.policy.market.columns import Columns, build_columns
from wattline.policy.market.rounding import SizeCosts
from wattline.policy.market.work_left import compute_work_left_s

_LEAST_WORK_S = 1.0
_TURN = 10.0  # restarts that a turn is as long as, see `work_left`


@dataclass(frozen=True, eq=False, slots=True)
class Scene:
    """Configurations and GPUs that are open to the jobs of a queue, by row of the queue unless noted."""

    configs: Configurations
    columns: Columns
    room: Ints  # GPUs by kind, on nodes that are up or can be switched on
    open_to: Ints  # bit mask of the kinds of GPU; 0: none
    job_class: Ints  # on kind 0; on kind k it is k times *classes* more
    classes: int  # number of job classes, those of arrays included
    alone_classes: int  # of jobs that are not fused: that of an array of b jobs is (b - 1) times so many more
    work_s: Floats
    held: Ints  # GPUs
    held_kind: Ints  # -1: it waits
    restart_s: Floats  # what a restart costs; 0: it has not run yet
    protected: Bools
    most_gpus: Ints  # that it may have now
    outranked: Bools  # jobs of a smaller precedence leave it no GPUs
    leader: Ints  # row that stands for its fused array; its own: it is alone

    @property
    def kinds(self) -> int:
        """Number of kinds of GPU."""
        return len(self.room)

    @property
    def sizes(self) -> SizeCosts:
        """Configurations for kernels."""
        configs = self.configs
        return SizeCosts(configs.size_count, configs.gpus, configs.speed, configs.watts, configs.static_w)

    def find_class(self, kind: Ints, rows: Ints | slice = slice(None)) -> Ints:
        """Return the class of *rows* on these kinds of GPU; of rows without (-1) that on kind 0."""
        return np.asarray(self.job_class[rows] + np.maximum(kind, 0) * self.classes)

    def count_gpus(self, kind: Ints, size: Ints) -> Ints:
        """Return the GPUs of each row that has this kind and size; -1: none."""
        return np.where(kind >= 0, self.configs.gpus[self.find_class(kind), np.maximum(size, 0)], 0)


def build_scene(
    snapshot: Snapshot,
    models: Models,
    plan: Plan | None,
    restart_s: float,
    explore: float = 0.0,
    aim: str = "jct",
) -> Scene:
    """Return the scene; jobs that an earlier *plan* leaves out are open to nothing.

    Neither are those for which its precedence leaves no GPUs: a weight of a job never outweighs the share of
    its team. With *explore* a job may have so many times the GPUs that it had last, and one at first. With
    the *aim* `cost` estimates of durations count as they are: a mean rest changes with every job that ends,
    and restarts that follow from that cost more than it gains.
    """
    queue, nodes = snapshot.queue, snapshot.nodes
    # If the placer splits hosts by need, a job that waits for its input gets more than its share, and a cap
    # that looks free with the share would slow it down.
    host = PLENTY if snapshot.leases.host.any() else PROPORTIONAL
    configs = build_configurations(models, snapshot.jobs, nodes, host)
    alone_classes = len(configs.gpus) // len(nodes.kind.names)
    if has_fusion_key(snapshot.jobs).any():
        configs = add_array_classes(configs, models, snapshot.jobs, nodes)
    kinds = len(nodes.kind.names)
    room = np.bincount(nodes.kind.codes, nodes.gpus * snapshot.usable, kinds).astype(np.int64)
    classes = np.take(configs.job_class, queue.job, axis=0)
    accepts = queue.block[QUEUE_ACCEPTED_KINDS].astype(np.int64)
    open_to = np.zeros(len(queue), dtype=np.int64)
    for k in range(kinds):
        fits = configs.gpus[classes[:, k], 0] <= room[k]
        open_to |= np.where(fits & ((accepts >> k) & 1 == 1), 1 << k, 0)
    row_restart_s = compute_restart_s(snapshot, restart_s)
    if aim == "cost":
        work_s = compute_work_s(snapshot)
    else:
        work_s = compute_work_left_s(snapshot, _TURN * row_restart_s)
    outranked = np.zeros(len(queue), dtype=np.bool_)
    if plan is not None:
        left_out = np.ones(len(queue), dtype=np.bool_)
        left_out[plan.row] = False
        open_to[left_out] = 0
        if plan.precedence is not None:
            by_work = work_s * queue.requested_gpus
            capacity = build_capacity(snapshot, models, plan, batches=True, by_precedence=True, first=by_work)
            outranked = capacity.outranked
            open_to[outranked] = 0
    held_kind = np.full(len(queue), -1, dtype=np.int64)
    leases = snapshot.leases
    held_kind[np.searchsorted(queue.job, leases.job)] = nodes.kind.codes[leases.node]
    has_run = ~np.isnan(queue.first_start_s)
    return Scene(
        configs=configs,
        columns=build_columns(configs),
        room=room,
        open_to=open_to,
        job_class=np.ascontiguousarray(classes[:, 0]),
        classes=len(configs.gpus) // kinds,
        alone_classes=alone_classes,
        work_s=np.maximum(work_s, _LEAST_WORK_S),
        held=queue.held_gpus.astype(np.int64),
        held_kind=held_kind,
        restart_s=np.where(has_run, row_restart_s, 0.0),
        protected=snapshot.protected & (open_to > 0),
        most_gpus=_limit_to_explored(snapshot, configs.gpus[classes[:, 0], 0], explore),
        outranked=outranked,
        leader=np.arange(len(queue), dtype=np.int64),
    )


def _limit_to_explored(snapshot: Snapshot, least: Ints, explore: float) -> Ints:
    """Return the most GPUs of each row; its *least* size is always allowed."""
    if not explore:
        return np.full(len(least), np.iinfo(np.int64).max)
    last = np.maximum(snapshot.queue.block[QUEUE_LAST_GPUS], 1 / explore)
    return np.asarray(np.maximum((explore * last).astype(np.int64), least))
