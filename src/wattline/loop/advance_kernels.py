"""Kernels that advance the queue, the leases and the nodes by one step of the loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattline.core.actions import (
    ACTION_CAP_W,
    ACTION_GPUS,
    ACTION_JOB,
    ACTION_NODE,
    ACTION_VERB,
    POWER_OFF,
    RETUNE,
    START,
    STOP,
    Actions,
)
from wattline.core.events import (
    ARRIVED,
    CAPACITY,
    EVENT_AT_S,
    EVENT_ENERGY_J,
    EVENT_JOB,
    EVENT_RATE,
    EVENT_STEPS,
    EVENT_VERB,
    FAILED,
    FINISHED,
    LOST,
    METERED,
    NODE_BACK,
    NODE_LOST,
    PROTECTED,
    RAN,
    READY,
    STOPPED,
)
from wattline.core.leases import LEASE_GPUS, LEASE_GROUP, LEASE_JOB, LEASE_NODE, LEASE_ROWS
from wattline.core.queue import (
    QUEUE_ACCEPTED_KINDS,
    QUEUE_FIRST_START_S,
    QUEUE_HELD_GPUS,
    QUEUE_JOB,
    QUEUE_LAST_CAP_W,
    QUEUE_LAST_GPUS,
    QUEUE_LAST_NODE,
    QUEUE_PROGRESS_AT_S,
    QUEUE_PROTECTED_UNTIL_S,
    QUEUE_REASON,
    QUEUE_REQUESTED_GPUS,
    QUEUE_RESTART_S,
    QUEUE_RESTARTS,
    QUEUE_ROWS,
    QUEUE_SAVED_AT_S,
    QUEUE_SAVED_STEPS,
    QUEUE_SERVICE_GPU_S,
    QUEUE_SERVICE_S,
    QUEUE_SINCE_S,
    QUEUE_STARTUP_S,
    QUEUE_STEPS_DONE,
    QUEUE_STEPS_PER_S,
    QUEUE_WATTS,
)
from wattline.core.table import Bools, Floats, Ints
from wattline.jit import B1, F1, F2, FLOAT, I1, I2, find, inner, kernel


@inner
def _apply_actions(full: Floats, queued: int, actions: Actions, decided_s: float) -> None:
    """Apply the stops, starts and retunes decided at *decided_s* to the queue."""
    started = -1  # the rows of one start are adjacent
    for a in range(actions.shape[0]):
        verb, job = actions[a, ACTION_VERB], actions[a, ACTION_JOB]
        i = find(full[QUEUE_JOB], queued, job)
        if i == queued or full[QUEUE_JOB, i] != job:
            continue  # it has ended since
        if verb == STOP:
            full[QUEUE_STEPS_DONE, i] += full[QUEUE_STEPS_PER_S, i] * max(
                0.0, decided_s - full[QUEUE_PROGRESS_AT_S, i]
            )
            full[QUEUE_PROGRESS_AT_S, i] = decided_s
            full[QUEUE_STEPS_PER_S, i] = 0.0
            _end_service(full, i, decided_s)
        elif verb == START:
            if job != started:
                if math.isnan(full[QUEUE_FIRST_START_S, i]):
                    full[QUEUE_FIRST_START_S, i] = decided_s
                else:
                    full[QUEUE_RESTARTS, i] += 1.0
                full[QUEUE_SINCE_S, i] = decided_s
                full[QUEUE_SAVED_STEPS, i] = full[QUEUE_STEPS_DONE, i]
                full[QUEUE_SAVED_AT_S, i] = decided_s
                full[QUEUE_WATTS, i] = 0.0
                full[QUEUE_LAST_GPUS, i] = 0.0
                full[QUEUE_LAST_CAP_W, i] = actions[a, ACTION_CAP_W]
                full[QUEUE_LAST_NODE, i] = actions[a, ACTION_NODE]
            full[QUEUE_HELD_GPUS, i] += actions[a, ACTION_GPUS]
            full[QUEUE_LAST_GPUS, i] += actions[a, ACTION_GPUS]
            started = job
        elif verb == RETUNE:
            full[QUEUE_WATTS, i] = 0.0
            full[QUEUE_LAST_CAP_W, i] = actions[a, ACTION_CAP_W]


@inner
def _end_service(full: Floats, i: int, at_s: float) -> None:
    """Add the service of a lease that ends at *at_s* to the totals of job *i*."""
    full[QUEUE_SERVICE_S, i] += at_s - full[QUEUE_SINCE_S, i]
    full[QUEUE_SERVICE_GPU_S, i] += full[QUEUE_HELD_GPUS, i] * (at_s - full[QUEUE_SINCE_S, i])
    full[QUEUE_SINCE_S, i] = at_s
    full[QUEUE_HELD_GPUS, i] = 0.0
    full[QUEUE_PROTECTED_UNTIL_S, i] = -math.inf


@inner
def _apply_events(
    full: Floats,
    queued: int,
    events: Floats,
    job_gpus: Ints,
    job_accepts: Ints,
    gone: Bools,
) -> None:
    """Apply *events* to the first *queued* columns of the queue, and write those of new jobs behind them.

    *gone* are the jobs that have left the queue and have no column, see `_find_ended`.
    """
    arrived = len(gone)
    for e in range(events.shape[0]):
        arrived -= events[e, EVENT_VERB] == ARRIVED
    for e in range(events.shape[0]):
        verb = int(events[e, EVENT_VERB])
        job = int(events[e, EVENT_JOB])
        at_s = events[e, EVENT_AT_S]
        if verb == ARRIVED:
            arrived += 1
            if gone[arrived - 1]:
                continue
            for c in range(QUEUE_ROWS):
                full[c, queued] = 0.0
            full[QUEUE_JOB, queued] = job
            full[QUEUE_REQUESTED_GPUS, queued] = job_gpus[job]
            full[QUEUE_ACCEPTED_KINDS, queued] = job_accepts[job]
            full[QUEUE_PROGRESS_AT_S, queued] = at_s
            full[QUEUE_SINCE_S, queued] = at_s
            full[QUEUE_FIRST_START_S, queued] = math.nan
            full[QUEUE_PROTECTED_UNTIL_S, queued] = -math.inf
            full[QUEUE_STARTUP_S, queued] = math.nan
            full[QUEUE_RESTART_S, queued] = math.nan
            queued += 1
        elif verb == PROTECTED:
            i = find(full[QUEUE_JOB], queued, job)
            if i < queued and full[QUEUE_JOB, i] == job and full[QUEUE_HELD_GPUS, i] > 0:
                full[QUEUE_SAVED_STEPS, i] = events[e, EVENT_STEPS]
                full[QUEUE_SAVED_AT_S, i] = events[e, EVENT_ENERGY_J]
                full[QUEUE_PROTECTED_UNTIL_S, i] = events[e, EVENT_RATE]
        elif verb == READY:
            i = find(full[QUEUE_JOB], queued, job)
            if i < queued and full[QUEUE_JOB, i] == job and full[QUEUE_HELD_GPUS, i] > 0:
                measured = QUEUE_RESTART_S if full[QUEUE_RESTARTS, i] > 0 else QUEUE_STARTUP_S
                full[measured, i] = events[e, EVENT_RATE]
        elif RAN <= verb <= FAILED:
            i = find(full[QUEUE_JOB], queued, job)
            if i == queued or full[QUEUE_JOB, i] != job:
                continue  # a late event of a job that has left the queue
            full[QUEUE_STEPS_DONE, i] = events[e, EVENT_STEPS]
            full[QUEUE_PROGRESS_AT_S, i] = at_s
            full[QUEUE_STEPS_PER_S, i] = events[e, EVENT_RATE] if verb == RAN else 0.0
            if verb == RAN:
                full[QUEUE_WATTS, i] = events[e, EVENT_ENERGY_J]
            if verb != RAN:
                full[QUEUE_SAVED_STEPS, i] = events[e, EVENT_STEPS]
            if verb == LOST:
                _end_service(full, i, at_s)


@inner
def _find_ended(block: Floats, events: Floats) -> tuple[Floats, Bools, Bools]:
    """Return the jobs of the queue and those that arrive, and two masks of them.

    The masks are of the jobs that have left the queue, and of those that have lost their lease.
    """
    queued = block.shape[1]
    count = queued
    for e in range(events.shape[0]):
        count += events[e, EVENT_VERB] == ARRIVED
    jobs = np.empty(count)
    for i in range(queued):
        jobs[i] = block[QUEUE_JOB, i]
    gone = np.zeros(count, dtype=np.bool_)
    freed = np.zeros(count, dtype=np.bool_)
    for e in range(events.shape[0]):
        verb, job = int(events[e, EVENT_VERB]), events[e, EVENT_JOB]
        if verb == ARRIVED:
            jobs[queued] = job
            queued += 1
        elif RAN <= verb <= FAILED:
            i = find(jobs, queued, job)
            if i < queued and jobs[i] == job:
                gone[i] = verb == FINISHED or verb == FAILED
                freed[i] = verb != RAN and verb != STOPPED
    return jobs, gone, freed


@inner
def _copy_columns(source: NDArray[Any], out: Bools, target: NDArray[Any]) -> None:
    """Copy the columns of *source* that are not *out* into *target*, in runs: few columns are left out."""
    at = start = 0
    for end in range(len(out) + 1):
        if end == len(out) or out[end]:
            if end > start:
                for c in range(source.shape[0]):
                    target[c, at : at + end - start] = source[c, start:end]
                at += end - start
            start = end + 1


@inner
def _select_leases(leases: Ints, jobs: Floats, freed: Bools) -> Ints:
    """Return the leases that continue; the first remaining member replaces a leader that is gone."""
    out = np.zeros(leases.shape[1], dtype=np.bool_)
    count = leases.shape[1]
    for i in range(len(freed)):
        if freed[i]:
            r = find(leases[LEASE_JOB], len(out), jobs[i])
            while r < len(out) and leases[LEASE_JOB, r] == jobs[i]:
                out[r] = True
                count -= 1
                r += 1
    kept = np.empty((LEASE_ROWS, count), dtype=np.int64)
    _copy_columns(leases, out, kept)
    if count == leases.shape[1]:
        return kept
    for r in range(count):
        leader = kept[LEASE_GROUP, r]
        if leader != kept[LEASE_JOB, r] and freed[find(jobs, len(jobs), leader)]:
            for s in range(r, count):
                if kept[LEASE_GROUP, s] == leader:
                    kept[LEASE_GROUP, s] = kept[LEASE_JOB, r]
    return kept


@inner
def _advance_queue(
    block: Floats,
    leases: Ints,
    reason: Ints,
    actions: Actions,
    decided_s: float,
    events: Floats,
    job_gpus: Ints,
    job_accepts: Ints,
) -> tuple[Floats, Ints]:
    """Return the queue and the leases after *actions* at *decided_s* and *events*."""
    jobs, gone, freed = _find_ended(block, events)
    kept = _select_leases(leases, jobs, freed)
    before = block.shape[1]
    queued = count = 0  # of those that stay: jobs of the old queue, and all
    for i in range(len(gone)):
        count += not gone[i]
        queued += i < before and not gone[i]
    full = np.empty((QUEUE_ROWS, count))
    _copy_columns(block, gone[:before], full)
    at = 0
    for i in range(before):
        if not gone[i]:
            full[QUEUE_REASON, at] = reason[i]
            at += 1
    _apply_actions(full, queued, actions, decided_s)
    _apply_events(full, queued, events, job_gpus, job_accepts, gone)
    return full, kept


@inner
def _advance_nodes(
    node_gpus: Ints,
    was_up: Bools,
    was_idle_since_s: Floats,
    planned: Ints,
    leases: Ints,
    actions: Actions,
    events: Floats,
    now_s: float,
) -> tuple[Ints, Floats, bool, bool, bool]:
    """Return the free GPUs and the idle time of each node, given the *planned* and the remaining *leases*.

    Three flags follow: nodes were switched or changed between up and down, the meter was read, and the
    capacity of nodes has changed.
    """
    up = was_up.copy()
    switched = False
    metered = False
    resized = False
    for a in range(actions.shape[0]):
        if actions[a, ACTION_VERB] == POWER_OFF:
            up[actions[a, ACTION_NODE]] = False
        switched = switched or actions[a, ACTION_VERB] >= POWER_OFF
    for e in range(events.shape[0]):
        verb = events[e, EVENT_VERB]
        if verb == NODE_LOST or verb == NODE_BACK:
            up[int(events[e, EVENT_JOB])] = verb == NODE_BACK
            switched = True
        elif verb == METERED:
            metered = True
        elif verb == CAPACITY:
            resized = True
    free_gpus = np.zeros(len(node_gpus), dtype=np.int64)
    for n in range(len(node_gpus)):
        if up[n]:
            free_gpus[n] = node_gpus[n]
    for r in range(leases.shape[1]):
        node = leases[LEASE_NODE, r]
        if leases[LEASE_JOB, r] == leases[LEASE_GROUP, r] and up[node]:
            free_gpus[node] -= leases[LEASE_GPUS, r]
    idle_since_s = was_idle_since_s.copy()
    for r in range(planned.shape[1]):
        idle_since_s[planned[LEASE_NODE, r]] = now_s  # a lease may have started and ended since
    for n in range(len(node_gpus)):
        if free_gpus[n] < node_gpus[n] and up[n]:
            idle_since_s[n] = math.inf
        elif (up[n] and not was_up[n]) or idle_since_s[n] > now_s:
            idle_since_s[n] = now_s  # the jobs it was switched on for need time to start
    return free_gpus, idle_since_s, switched, metered, resized


@kernel(F2, I2, I1, I2, FLOAT, F2, I1, I1, I1, B1, F1, FLOAT)
def advance_state(
    block: Floats,
    planned: Ints,
    reason: Ints,
    actions: Actions,
    decided_s: float,
    events: Floats,
    job_gpus: Ints,
    job_accepts: Ints,
    node_gpus: Ints,
    was_up: Bools,
    was_idle_since_s: Floats,
    now_s: float,
) -> tuple[Floats, Ints, Ints, Floats, bool, bool, bool, bool]:
    """Return queue, leases, free GPUs and idle times of nodes, and the flags of `_advance_nodes`.

    The last flag is whether any job is protected.
    """
    full, leases = _advance_queue(block, planned, reason, actions, decided_s, events, job_gpus, job_accepts)
    free_gpus, idle_since_s, switched, metered, resized = _advance_nodes(
        node_gpus, was_up, was_idle_since_s, planned, leases, actions, events, now_s
    )
    may_protect = False
    for i in range(full.shape[1]):
        may_protect = may_protect or full[QUEUE_PROTECTED_UNTIL_S, i] > now_s
    return full, leases, free_gpus, idle_since_s, switched, metered, resized, may_protect
