"""Pure transitions between snapshots."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from wattline.core.actions import (
    ACTION_NODE,
    ACTION_VERB,
    NO_ACTIONS,
    POWER_OFF,
    POWER_ON,
    Actions,
)
from wattline.core.events import (
    CAPACITY,
    EVENT_AT_S,
    EVENT_ENERGY_J,
    EVENT_JOB,
    EVENT_RATE,
    EVENT_STEPS,
    EVENT_VERB,
    METERED,
    NODE_BACK,
    NODE_LOST,
    Events,
    build_events,
    list_events,
)
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.plan import Placement
from wattline.core.queue import (
    QUEUE_REASON,
    QUEUE_ROWS,
    Queue,
)
from wattline.core.quotas import NO_QUOTAS, Quotas
from wattline.core.snapshot import MeterReadings, Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.core.usage import Usage, charge
from wattline.loop.advance_kernels import advance_state


@dataclass(frozen=True, eq=False, slots=True)
class Decision:
    """Placement decided on a snapshot, and the actions that realise it."""

    placement: Placement
    actions: Actions


def build_empty_state(jobs: Jobs, nodes: Nodes, seed: int = 0) -> Snapshot:
    """Return the state at time 0: no jobs, all nodes up and idle."""
    return Snapshot(
        now_s=0.0,
        jobs=jobs,
        nodes=nodes,
        queue=Queue(np.empty((QUEUE_ROWS, 0))),
        leases=Leases.of((), (), (), ()),
        free_gpus=nodes.gpus,
        up=np.ones(len(nodes), dtype=np.bool_),
        boot_done_s=np.full(len(nodes), -math.inf),
        idle_since_s=np.zeros(len(nodes)),
        meter=MeterReadings.empty(),
        seed=seed,
    )


def restore_state(
    jobs: Jobs,
    nodes: Nodes,
    seed: int,
    now_s: float,
    queue: Queue,
    leases: Leases,
    meter: MeterReadings,
    usage: Usage | None = None,
    quotas: Quotas = NO_QUOTAS,
) -> Snapshot:
    """Return the state at *now_s* in which the jobs of *queue* hold *leases*; all nodes are up."""
    empty = build_empty_state(jobs, nodes, seed)
    state = replace(empty, now_s=now_s, queue=queue, leases=leases, meter=meter, usage=usage, quotas=quotas)
    # Without events `advance` only derives the free GPUs and the idle times from the leases.
    return advance(
        state, build_empty_decision(state), now_s, build_events(), jobs, nodes.accepted_kinds(jobs.gpu_kind)
    )


def build_empty_decision(snapshot: Snapshot) -> Decision:
    """Return the decision that changes nothing."""
    reason = snapshot.queue.block[QUEUE_REASON].astype(np.int64)
    return Decision(Placement(snapshot.leases, reason, int(np.count_nonzero(reason))), NO_ACTIONS)


def advance(
    snapshot: Snapshot,
    decision: Decision,
    now_s: float,
    events: Events,
    jobs: Jobs,
    accepted_kinds: Ints,
) -> Snapshot:
    """Return the state at *now_s*, after *decision* was taken on *snapshot* and *events* occurred since.

    *jobs* are all jobs submitted, *accepted_kinds* their GPU kinds from `Nodes.accepted_kinds`.
    """
    nodes = snapshot.nodes
    before = (
        snapshot.queue.block,
        decision.placement.leases.block,
        decision.placement.reason,
        decision.actions,
        snapshot.now_s,
        events,
        jobs.gpus,
        accepted_kinds,
    )
    after = (snapshot.up, snapshot.idle_since_s, now_s)
    block, leases, free_gpus, idle_since_s, switched, metered, resized, may_protect = advance_state(
        *before, nodes.gpus, *after
    )
    if resized:
        nodes = _resize_nodes(nodes, events)
        free_gpus, idle_since_s = advance_state(*before, nodes.gpus, *after)[2:4]
    up, boot_done_s = snapshot.up, snapshot.boot_done_s
    if switched:
        up, boot_done_s = _switch_nodes(snapshot, decision.actions, events)
    for column in (free_gpus, idle_since_s):
        column.setflags(write=False)
    meter = _add_readings(snapshot.meter, events) if metered else snapshot.meter
    usage = snapshot.usage
    if usage is not None:
        usage = charge(usage, jobs, decision.placement.leases, events, now_s)
    return Snapshot(
        now_s,
        jobs,
        nodes,
        Queue(block, may_protect),
        Leases(leases),
        free_gpus,
        up,
        boot_done_s,
        idle_since_s,
        meter,
        snapshot.seed,
        usage,
        snapshot.quotas,
        estimates=snapshot.estimates,
    )


def _switch_nodes(snapshot: Snapshot, actions: Actions, events: Events) -> tuple[Bools, Floats]:
    """Return which nodes are up, and when those that were switched off have booted."""
    up, boot_done_s = snapshot.up.copy(), snapshot.boot_done_s.copy()
    off, on = (actions[actions[:, ACTION_VERB] == verb, ACTION_NODE] for verb in (POWER_OFF, POWER_ON))
    up[off] = False
    boot_done_s[off] = math.inf
    boot_done_s[on] = snapshot.now_s + snapshot.nodes.boot_s[on]
    verbs = events[:, EVENT_VERB]
    for event in list_events(events[(verbs == NODE_LOST) | (verbs == NODE_BACK)]):
        up[event.job] = event.verb == NODE_BACK
        boot_done_s[event.job] = -math.inf
    for column in (up, boot_done_s):
        column.setflags(write=False)
    return up, boot_done_s


def _resize_nodes(nodes: Nodes, events: Events) -> Nodes:
    """Return *nodes* with the capacities among *events*; of several for one node the last one counts."""
    found = events[events[:, EVENT_VERB] == CAPACITY]
    rows, gpus = (found[:, column].astype(np.int64) for column in (EVENT_JOB, EVENT_STEPS))
    return nodes.resize(rows, gpus, found[:, EVENT_RATE], found[:, EVENT_ENERGY_J])


def _add_readings(meter: MeterReadings, events: Events) -> MeterReadings:
    """Return *meter* with the readings among *events*, which are in order of time."""
    readings = events[events[:, EVENT_VERB] == METERED]
    team = readings[:, EVENT_JOB].astype(np.int64)  # -1: the cluster
    columns = max(meter.energy_j.shape[1], int(team.max()) + 2)
    at_s, row = np.unique(readings[:, EVENT_AT_S], return_inverse=True)
    new = np.zeros((len(at_s), columns))
    new[row, team + 1] = readings[:, EVENT_ENERGY_J]
    old = np.zeros((len(meter.at_s), columns))
    old[:, : meter.energy_j.shape[1]] = meter.energy_j
    meter = MeterReadings(np.concatenate((meter.at_s, at_s)), np.concatenate((old, new)))
    for column in (meter.at_s, meter.energy_j):
        column.setflags(write=False)
    return meter
