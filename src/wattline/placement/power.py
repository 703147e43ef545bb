"""Switching of idle nodes: one goes off once being on has cost as much energy as booting it again would."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from wattline.core.leases import Leases
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models, Placer
from wattline.core.queue import QUEUE_HELD_GPUS, Queue
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Ints
from wattline.errors import ConfigError
from wattline.placement.pack import Pack
from wattline.placement.selection import NO_ROOM, OUTRANKED

_BOOTING = REASONS.index(Reason.BOOTING)


@dataclass(frozen=True)
class Power:
    """The leases of *place*, on nodes that are switched off while no job needs them.

    An unused node is switched off when it has been idle for as long as it must be off to save the energy of
    booting it (the ski-rental rule: at most twice the energy of a schedule that knows the future; Karlin et
    al., Algorithmica 1988), unless fewer than *spare* GPUs would then be free and on. Nodes are switched on
    if *place* would start a waiting job were they on: those that it gives to such jobs, and no more. Until
    they are up no job is moved or stopped for them: a running job that would grow into nodes that are off
    keeps its lease.
    """

    place: Placer = field(default_factory=Pack)
    spare: int = 0

    def __post_init__(self) -> None:
        if not self.spare >= 0:
            raise ConfigError(f"spare must be at least 0, got {self.spare}")

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        """Return leases for the plan, a reason for every job without, and the nodes that should be on."""
        placement = self.place(plan, snapshot, models)
        gpus, now_s = snapshot.nodes.gpus, snapshot.now_s
        free = np.where(snapshot.up, gpus, 0) - _count_leased_gpus(placement.leases, len(gpus))
        needed = np.zeros(len(gpus), dtype=np.bool_)
        reason = placement.reason
        lacks_room = (reason == NO_ROOM) | (reason == OUTRANKED)
        if plan.node is not None:
            needed, reason = _find_named_nodes(plan, plan.node, snapshot, reason)
        elif lacks_room.any() and (snapshot.boot_done_s > -math.inf).any():
            all_on = self.place(plan, _with_all_nodes_up(snapshot, placement.leases), models)
            grows = lacks_room & snapshot.queue.running & (all_on.reason == 0)
            if grows.any():
                placement = self.place(_keep_sizes(plan, snapshot, grows), snapshot, models)
                free = np.where(snapshot.up, gpus, 0) - _count_leased_gpus(placement.leases, len(gpus))
            needed, reason = _find_needed_nodes(all_on.leases, snapshot, free, lacks_room, placement.reason)

        idle = snapshot.up & (free == gpus) & ~needed
        off_at_s = np.minimum(snapshot.idle_since_s, now_s) + snapshot.nodes.break_even_s
        on = (snapshot.boot_done_s < math.inf) | needed
        left = int(free.sum())  # GPUs that are on and free
        for node in np.flatnonzero(idle & (off_at_s <= now_s))[
            ::-1
        ].tolist():  # placers fill low numbers first
            if left - gpus[node] >= self.spare:
                on[node] = False
                left -= int(gpus[node])
        next_off_s = off_at_s[idle & on & (left - gpus >= self.spare)]
        boot_done_s = snapshot.boot_done_s[needed]
        next_decision_s = min(
            placement.next_decision_s,
            float(next_off_s[next_off_s > now_s].min(initial=math.inf)),
            float(boot_done_s[boot_done_s > now_s].min(initial=math.inf)),
        )
        return replace(placement, reason=reason, powered_on=on, next_decision_s=next_decision_s)


def _find_named_nodes(plan: Plan, node: Ints, snapshot: Snapshot, reason: Ints) -> tuple[Bools, Ints]:
    """Return a mask of the nodes that the plan names and that are off, and the reasons of all jobs."""
    needed, reason = np.zeros(len(snapshot.nodes), dtype=np.bool_), reason.copy()
    off = snapshot.boot_done_s[node] > -math.inf
    needed[node[off]] = True
    waits = plan.row[off]
    reason[waits[reason[waits] == NO_ROOM]] = _BOOTING
    return needed, reason


def _count_leased_gpus(leases: Leases, nodes: int) -> Ints:
    """Return the GPUs of each node that jobs hold."""
    leads = leases.job == leases.group
    return np.bincount(leases.node[leads], leases.gpus[leads], nodes).astype(np.int64)


def _with_all_nodes_up(snapshot: Snapshot, leases: Leases) -> Snapshot:
    """Return the state as if *leases* had begun and all nodes that are off were up.

    `boot_done_s` still shows which ones are off: placers prefer the others.
    """
    queue = snapshot.queue
    if leases is not snapshot.leases:
        block = queue.block.copy()
        block[QUEUE_HELD_GPUS] = np.bincount(np.searchsorted(queue.job, leases.job), leases.gpus, len(queue))
        queue = Queue(block)
    up = snapshot.usable
    free = np.where(up, snapshot.nodes.gpus, 0) - _count_leased_gpus(leases, len(up))
    for column in (up, free):
        column.setflags(write=False)
    return replace(snapshot, queue=queue, leases=leases, up=up, free_gpus=free)


def _find_needed_nodes(
    all_on: Leases, snapshot: Snapshot, free: Ints, lacks_room: Bools, reason: Ints
) -> tuple[Bools, Ints]:
    """Return a mask of the nodes that jobs without room get in the leases *all_on*, and all reasons.

    The mask includes nodes that are off and go to running jobs, which move there to make room. A job that
    gets GPUs that are free already waits for another reason, but its nodes must not go off meanwhile.
    """
    row = np.searchsorted(snapshot.queue.job, all_on.job)
    needed = np.zeros(len(free), dtype=np.bool_)
    needed[all_on.node[lacks_room[row] | (snapshot.boot_done_s[all_on.node] > -math.inf)]] = True
    waits = row[lacks_room[row] & (reason[row] != 0) & (free[all_on.node] < all_on.gpus)]
    reason = reason.copy()
    reason[waits] = _BOOTING
    return needed, reason


def _keep_sizes(plan: Plan, snapshot: Snapshot, rows: Bools) -> Plan:
    """Return *plan* with the current GPUs, cap, batch and node of these *rows*, which run."""
    queue, leases = snapshot.queue, snapshot.leases
    at = np.flatnonzero(rows[plan.row])
    lease = np.searchsorted(leases.job, queue.job[plan.row[at]])
    gpus = plan.gpus.copy()
    gpus[at] = queue.held_gpus[plan.row[at]].astype(np.int64)
    knobs = {}
    for name in ("cap_w", "batch", "node"):
        column = getattr(plan, name)
        if column is not None:
            knobs[name] = column.copy()
            knobs[name][at] = getattr(leases, name)[lease]
    return replace(plan, gpus=gpus, **knobs)
