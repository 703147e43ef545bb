"""Which nodes are on: idle ones go off when being on has cost as much as booting again would."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from wattline.core.leases import Leases
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models, Placer
from wattline.core.queue import HELD, Queue
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Ints
from wattline.errors import ConfigError
from wattline.placement.pack import Pack
from wattline.placement.selection import NO_ROOM, OUTRANKED

_BOOTING = REASONS.index(Reason.BOOTING)


@dataclass(frozen=True)
class Power:
    """The leases of *place*, on nodes that are switched off while nobody needs them.

    A node that nobody uses is switched off when it has been quiet for as long as it must be off to
    save what booting it costs (the ski-rental rule: whatever comes, that uses at most twice the energy
    of who knows what comes; Karlin et al., Algorithmica 1988), unless fewer than *spare* GPUs would then be
    free and on. Nodes are switched on when *place* would let somebody run who waits if they were on:
    those that it gives to them, and no more. Until then nothing is moved or stopped for it: who runs and
    would grow into nodes that are off goes on as it is.
    """

    place: Placer = field(default_factory=Pack)
    spare: int = 0

    def __post_init__(self) -> None:
        if not self.spare >= 0:
            raise ConfigError(f"spare must be at least 0, got {self.spare}")

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        """Leases for the plan, a reason for everybody without, and which nodes should be on."""
        placement = self.place(plan, snapshot, models)
        gpus, now_s = snapshot.nodes.gpus, snapshot.now_s
        free = np.where(snapshot.up, gpus, 0) - _leased(placement.leases, len(gpus))
        needed = np.zeros(len(gpus), dtype=np.bool_)
        reason = placement.reason
        short = (reason == NO_ROOM) | (reason == OUTRANKED)
        if plan.node is not None:
            needed, reason = _as_named(plan, plan.node, snapshot, reason)
        elif short.any() and (snapshot.wakes_s > -math.inf).any():
            dream = self.place(plan, _all_awake(snapshot, placement.leases), models)
            grows = short & snapshot.queue.running & (dream.reason == 0)
            if grows.any():
                placement = self.place(_as_it_is(plan, snapshot, grows), snapshot, models)
                free = np.where(snapshot.up, gpus, 0) - _leased(placement.leases, len(gpus))
            needed, reason = _for_whom(dream.leases, snapshot, free, short, placement.reason)

        idle = snapshot.up & (free == gpus) & ~needed
        due_s = np.minimum(snapshot.quiet_s, now_s) + snapshot.nodes.break_even_s
        on = (snapshot.wakes_s < math.inf) | needed
        left = int(free.sum())  # GPUs that are on and free
        for node in np.flatnonzero(idle & (due_s <= now_s))[::-1].tolist():  # placers begin at the other end
            if left - gpus[node] >= self.spare:
                on[node] = False
                left -= int(gpus[node])
        soon_s = due_s[idle & on & (left - gpus >= self.spare)]
        boots_s = snapshot.wakes_s[needed]
        tick_s = min(
            placement.tick_s,
            float(soon_s[soon_s > now_s].min(initial=math.inf)),
            float(boots_s[boots_s > now_s].min(initial=math.inf)),
        )
        return replace(placement, reason=reason, on=on, tick_s=tick_s)


def _as_named(plan: Plan, node: Ints, snapshot: Snapshot, reason: Ints) -> tuple[Bools, Ints]:
    """Nodes that the plan names and that are off, and why each of the queue waits."""
    needed, reason = np.zeros(len(snapshot.nodes), dtype=np.bool_), reason.copy()
    off = snapshot.wakes_s[node] > -math.inf
    needed[node[off]] = True
    boots = plan.row[off]
    reason[boots[reason[boots] == NO_ROOM]] = _BOOTING
    return needed, reason


def _leased(leases: Leases, nodes: int) -> Ints:
    """GPUs of each node that somebody holds."""
    leads = leases.job == leases.group
    return np.bincount(leases.node[leads], leases.gpus[leads], nodes).astype(np.int64)


def _all_awake(snapshot: Snapshot, leases: Leases) -> Snapshot:
    """What would be if *leases* had begun, and all nodes that were switched off were up.

    `wakes_s` still says which ones: placers prefer the others.
    """
    queue = snapshot.queue
    if leases is not snapshot.leases:
        block = queue.block.copy()
        block[HELD] = np.bincount(np.searchsorted(queue.job, leases.job), leases.gpus, len(queue))
        queue = Queue(block)
    up = snapshot.usable
    free = np.where(up, snapshot.nodes.gpus, 0) - _leased(leases, len(up))
    for column in (up, free):
        column.setflags(write=False)
    return replace(snapshot, queue=queue, leases=leases, up=up, free=free)


def _for_whom(
    dreamt: Leases, snapshot: Snapshot, free: Ints, short: Bools, reason: Ints
) -> tuple[Bools, Ints]:
    """Nodes that those need who are *short* of room, and why each of them waits.

    Also nodes that are off and go to somebody who runs: it moves there to make room. Who gets GPUs
    that are free already waits for something else, but these nodes should not go off meanwhile.
    """
    row = np.searchsorted(snapshot.queue.job, dreamt.job)
    needed = np.zeros(len(free), dtype=np.bool_)
    needed[dreamt.node[short[row] | (snapshot.wakes_s[dreamt.node] > -math.inf)]] = True
    boots = row[short[row] & (reason[row] != 0) & (free[dreamt.node] < dreamt.gpus)]
    reason = reason.copy()
    reason[boots] = _BOOTING
    return needed, reason


def _as_it_is(plan: Plan, snapshot: Snapshot, rows: Bools) -> Plan:
    """*plan*, in which these rows, that run, keep what they hold."""
    queue, leases = snapshot.queue, snapshot.leases
    here = np.flatnonzero(rows[plan.row])
    first = np.searchsorted(leases.job, queue.job[plan.row[here]])
    gpus = plan.gpus.copy()
    gpus[here] = queue.held[plan.row[here]].astype(np.int64)
    knobs = {}
    for name in ("cap_w", "batch", "node"):
        column = getattr(plan, name)
        if column is not None:
            knobs[name] = column.copy()
            knobs[name][here] = getattr(leases, name)[first]
    return replace(plan, gpus=gpus, **knobs)
