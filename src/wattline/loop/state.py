"""Pure state transitions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wattline.core.actions import (
    NO_ACTIONS,
    POWER_OFF,
    POWER_ON,
    RETUNE,
    START,
    STOP,
    Actions,
)
from wattline.core.events import (
    ARRIVED,
    FAILED,
    FINISHED,
    LOST,
    METERED,
    NODE_BACK,
    NODE_LOST,
    RAN,
    STOPPED,
    Events,
    each,
)
from wattline.core.jobs import Jobs
from wattline.core.leases import LEASE_ROWS, Leases
from wattline.core.nodes import Nodes
from wattline.core.plan import Placement
from wattline.core.queue import (
    ACCEPTS,
    ASKED,
    DONE,
    FIRST,
    GPU_SERVICE,
    HELD,
    JOB,
    LAST_CAP,
    LAST_GPUS,
    LAST_NODE,
    MARK,
    QUEUE_ROWS,
    RATE,
    REASON,
    RESTARTS,
    SERVICE,
    SINCE,
    WATTS,
    Queue,
)
from wattline.core.snapshot import Meter, Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.jit import B1, F1, F2, FLOAT, I1, I2, find, inner, kernel


@dataclass(frozen=True, eq=False, slots=True)
class Decision:
    """What was decided on a snapshot: where everybody should be, and the actions that lead there."""

    placement: Placement
    actions: Actions


def begin(jobs: Jobs, nodes: Nodes, seed: int = 0) -> Snapshot:
    """The state before anything has happened."""
    return Snapshot(
        now_s=0.0,
        jobs=jobs,
        nodes=nodes,
        queue=Queue(np.empty((QUEUE_ROWS, 0))),
        leases=Leases.of((), (), (), ()),
        free=nodes.gpus,
        up=np.ones(len(nodes), dtype=np.bool_),
        wakes_s=np.full(len(nodes), -math.inf),
        quiet_s=np.zeros(len(nodes)),
        meter=Meter.unread(),
        seed=seed,
    )


def resume(
    jobs: Jobs, nodes: Nodes, seed: int, now_s: float, queue: Queue, leases: Leases, meter: Meter
) -> Snapshot:
    """The state at *now_s* in which these jobs have arrived and hold these *leases*; all nodes are up."""
    empty = begin(jobs, nodes, seed)
    there = replace(empty, now_s=now_s, queue=queue, leases=leases, meter=meter)
    nothing = np.empty((0, 6))
    return advance(there, decide_nothing(there), now_s, nothing, jobs, nodes.accepts(jobs.gpu_kind))


def decide_nothing(snapshot: Snapshot) -> Decision:
    """Leave everything as it is."""
    reason = snapshot.queue.block[REASON].astype(np.int64)
    return Decision(Placement(snapshot.leases, reason, int(np.count_nonzero(reason))), NO_ACTIONS)


def advance(
    snapshot: Snapshot,
    decision: Decision,
    now_s: float,
    events: Events,
    jobs: Jobs,
    accepts: Ints,
) -> Snapshot:
    """The state at *now_s*, after *decision* was taken on *snapshot* and *events* came in since.

    *jobs* is everything submitted, *accepts* its GPU kinds as `Nodes.accepts` gives them.
    """
    block, leases, free, quiet_s, turned, read = _advance(
        snapshot.queue.block,
        decision.actions,
        snapshot.now_s,
        decision.placement.reason,
        events,
        jobs.gpus,
        accepts,
        decision.placement.leases.block,
        snapshot.nodes.gpus,
        snapshot.up,
        snapshot.quiet_s,
        now_s,
    )
    up, wakes_s = snapshot.up, snapshot.wakes_s
    if turned:
        up, wakes_s = _turned(snapshot, decision.actions, events)
    for column in (free, quiet_s):
        column.setflags(write=False)
    meter = _read(snapshot.meter, events) if read else snapshot.meter
    return Snapshot(
        now_s,
        jobs,
        snapshot.nodes,
        Queue(block),
        Leases(leases),
        free,
        up,
        wakes_s,
        quiet_s,
        meter,
        snapshot.seed,
    )


def _turned(snapshot: Snapshot, actions: Actions, events: Events) -> tuple[Bools, Floats]:
    """Which nodes are up, and when those that were switched off have booted."""
    up, wakes_s = snapshot.up.copy(), snapshot.wakes_s.copy()
    off, on = (actions[actions[:, 0] == verb, 3] for verb in (POWER_OFF, POWER_ON))
    up[off] = False
    wakes_s[off] = math.inf
    wakes_s[on] = snapshot.now_s + snapshot.nodes.boot_s[on]
    for event in each(events[(events[:, 0] == NODE_LOST) | (events[:, 0] == NODE_BACK)]):
        up[event.job] = event.verb == NODE_BACK
        wakes_s[event.job] = -math.inf
    for column in (up, wakes_s):
        column.setflags(write=False)
    return up, wakes_s


def _read(meter: Meter, events: Events) -> Meter:
    """*meter* with the readings among *events*, which follow each other by time."""
    readings = events[events[:, 0] == METERED]
    columns = max(meter.energy_j.shape[1], int(readings[:, 1].max()) + 2)
    at_s, place = np.unique(readings[:, 2], return_inverse=True)
    new = np.zeros((len(at_s), columns))
    new[place, readings[:, 1].astype(np.int64) + 1] = readings[:, 5]
    old = np.zeros((len(meter.at_s), columns))
    old[:, : meter.energy_j.shape[1]] = meter.energy_j
    meter = Meter(np.concatenate((meter.at_s, at_s)), np.concatenate((old, new)))
    for column in (meter.at_s, meter.energy_j):
        column.setflags(write=False)
    return meter


@inner
def _begin_and_end_leases(full: Floats, queued: int, actions: Actions, decided_s: float) -> None:
    """What was decided: stops and starts at *decided_s*."""
    before = -1
    for a in range(actions.shape[0]):
        verb, job = actions[a, 0], actions[a, 1]
        i = find(full[JOB], queued, job)
        if verb == STOP:
            full[DONE, i] += full[RATE, i] * max(0.0, decided_s - full[MARK, i])
            full[MARK, i] = decided_s
            full[RATE, i] = 0.0
            _end_service(full, i, decided_s)
        elif verb == START:
            if job != before:
                if math.isnan(full[FIRST, i]):
                    full[FIRST, i] = decided_s
                else:
                    full[RESTARTS, i] += 1.0
                full[SINCE, i] = decided_s
                full[WATTS, i] = 0.0
                full[LAST_GPUS, i] = 0.0
                full[LAST_CAP, i] = actions[a, 5]
                full[LAST_NODE, i] = actions[a, 3]
            full[HELD, i] += actions[a, 4]
            full[LAST_GPUS, i] += actions[a, 4]
            before = job
        elif verb == RETUNE:
            full[WATTS, i] = 0.0
            full[LAST_CAP, i] = actions[a, 5]


@inner
def _end_service(full: Floats, i: int, at_s: float) -> None:
    full[SERVICE, i] += at_s - full[SINCE, i]
    full[GPU_SERVICE, i] += full[HELD, i] * (at_s - full[SINCE, i])
    full[SINCE, i] = at_s
    full[HELD, i] = 0.0


@inner
def _happen(
    full: Floats,
    queued: int,
    events: Floats,
    job_gpus: Ints,
    job_accepts: Ints,
    gone: Bools,
    freed: Bools,
) -> bool:
    """What happened since; answers whether somebody gave up a lease."""
    for e in range(events.shape[0]):
        verb = int(events[e, 0])
        job = int(events[e, 1])
        at_s = events[e, 2]
        if verb == ARRIVED:
            for c in range(QUEUE_ROWS):
                full[c, queued] = 0.0
            full[JOB, queued] = job
            full[ASKED, queued] = job_gpus[job]
            full[ACCEPTS, queued] = job_accepts[job]
            full[MARK, queued] = at_s
            full[SINCE, queued] = at_s
            full[FIRST, queued] = math.nan
            queued += 1
        elif RAN <= verb <= FAILED:
            i = find(full[JOB], queued, job)
            if i == queued or full[JOB, i] != job:
                continue  # a late word on a job that has left
            full[DONE, i] = events[e, 3]
            full[MARK, i] = at_s
            full[RATE, i] = events[e, 4] if verb == RAN else 0.0
            if verb == RAN:
                full[WATTS, i] = events[e, 5]
            if verb == LOST:
                _end_service(full, i, at_s)
            gone[i] = verb == FINISHED or verb == FAILED
            freed[i] = verb != RAN and verb != STOPPED
    for i in range(queued):
        if freed[i]:
            return True
    return False


@inner
def _drop(leases: Ints, full: Floats, freed: Bools) -> Ints:
    """Leases that go on. Where the leader of a group is gone, the first of the rest leads."""
    keep = np.zeros(leases.shape[1], dtype=np.bool_)
    rows = 0
    i = 0
    for r in range(leases.shape[1]):
        while full[JOB, i] < leases[0, r]:
            i += 1
        keep[r] = not freed[i]
        rows += keep[r]
    kept = np.empty((LEASE_ROWS, rows), dtype=np.int64)
    at = 0
    for r in range(leases.shape[1]):
        if keep[r]:
            for c in range(LEASE_ROWS):
                kept[c, at] = leases[c, r]
            at += 1
    for r in range(rows):
        orphaned = kept[1, r]
        if orphaned != kept[0, r] and freed[find(full[JOB], full.shape[1], orphaned)]:
            for s in range(r, rows):
                if kept[1, s] == orphaned:
                    kept[1, s] = kept[0, r]
    return kept


@inner
def _without(full: Floats, gone: Bools) -> Floats:
    """The columns of those who are still there."""
    count = 0
    for i in range(len(gone)):
        count += not gone[i]
    rest = np.empty((QUEUE_ROWS, count))
    for c in range(QUEUE_ROWS):
        at = 0
        for i in range(len(gone)):
            if not gone[i]:
                rest[c, at] = full[c, i]
                at += 1
    return rest


@kernel(F2, I2, FLOAT, I1, F2, I1, I1, I2, I1, B1, F1, FLOAT)
def _advance(
    block: Floats,
    actions: Actions,
    decided_s: float,
    reason: Ints,
    events: Floats,
    job_gpus: Ints,
    job_accepts: Ints,
    leases: Ints,
    node_gpus: Ints,
    was_up: Bools,
    was_quiet_s: Floats,
    now_s: float,
) -> tuple[Floats, Ints, Ints, Floats, bool, bool]:
    before = block.shape[1]
    queued = before
    up = was_up.copy()
    turned = False
    read = False
    for a in range(actions.shape[0]):
        if actions[a, 0] == POWER_OFF:
            up[actions[a, 3]] = False
        turned = turned or actions[a, 0] >= POWER_OFF
    for e in range(events.shape[0]):
        if events[e, 0] == ARRIVED:
            queued += 1
        elif events[e, 0] == NODE_LOST or events[e, 0] == NODE_BACK:
            up[int(events[e, 1])] = events[e, 0] == NODE_BACK
            turned = True
        elif events[e, 0] == METERED:
            read = True
    full = np.empty((QUEUE_ROWS, queued))
    for c in range(QUEUE_ROWS):
        for i in range(before):
            full[c, i] = block[c, i]
    for i in range(before):
        full[REASON, i] = reason[i]
    _begin_and_end_leases(full, before, actions, decided_s)
    gone = np.zeros(queued, dtype=np.bool_)  # left the queue
    freed = np.zeros(queued, dtype=np.bool_)  # has no lease any more
    ended = _happen(full, before, events, job_gpus, job_accepts, gone, freed)
    kept = _drop(leases, full, freed)
    if ended:
        full = _without(full, gone)
    free = np.zeros(len(node_gpus), dtype=np.int64)
    for n in range(len(node_gpus)):
        if up[n]:
            free[n] = node_gpus[n]
    for r in range(kept.shape[1]):
        if kept[0, r] == kept[1, r] and up[kept[2, r]]:
            free[kept[2, r]] -= kept[3, r]
    quiet_s = was_quiet_s.copy()
    for r in range(leases.shape[1]):
        quiet_s[leases[2, r]] = now_s  # a lease may have begun and ended since
    for n in range(len(node_gpus)):
        if free[n] < node_gpus[n] and up[n]:
            quiet_s[n] = math.inf
        elif up[n] and not was_up[n]:
            quiet_s[n] = now_s  # who it was switched on for needs time to use it
        else:
            quiet_s[n] = min(quiet_s[n], now_s)
    return full, kept, free, quiet_s, turned, read
