"""The loop's initial state when jobs exist already and some of them hold leases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from wattline.backend.engine.job_record import JobRecord
from wattline.core.events import ARRIVED, Event, build_events
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.plan import Placement
from wattline.core.queue import (
    QUEUE_FIRST_START_S,
    QUEUE_RESTART_S,
    QUEUE_RESTARTS,
    QUEUE_SERVICE_GPU_S,
    QUEUE_SERVICE_S,
    QUEUE_SINCE_S,
    QUEUE_STARTUP_S,
    Queue,
)
from wattline.core.snapshot import Snapshot
from wattline.loop.reconcile import reconcile
from wattline.loop.state import Decision, advance, build_empty_decision, build_empty_state


def set_lease_starts(state: Snapshot, since_s: Mapping[int, float]) -> Snapshot:
    """Return *state* with the start of each lease, by row: the time since then counts as service."""
    block = state.queue.block.copy()
    for row, start_s in since_s.items():
        block[QUEUE_SINCE_S, row] = min(start_s, state.now_s)
    return replace(state, queue=Queue(block))


def build_initial_state(
    jobs: Jobs,
    nodes: Nodes,
    now_s: float,
    queued: Sequence[JobRecord],
    leases: Leases,
    running: Sequence[Event],
    seed: int,
) -> Snapshot:
    """Return the snapshot of a table with *queued* as rows, some of them with *leases*.

    *running* has one `RAN` event per lease holder, with its steps and rate.
    """
    state = build_empty_state(jobs, nodes, seed)
    accepts = nodes.accepted_kinds(jobs.gpu_kind)
    arrived = build_events(*(Event(ARRIVED, record.row, record.submit_s) for record in queued))
    state = advance(state, build_empty_decision(state), now_s, arrived, jobs, accepts)
    reason = np.zeros(len(queued), dtype=np.int64)
    held = Decision(Placement(leases, reason, 0), reconcile(state.leases, leases))
    state = advance(state, held, now_s, build_events(*running), jobs, accepts)
    block = state.queue.block.copy()
    for record in queued:
        block[QUEUE_FIRST_START_S, record.row] = record.first_start_s
        block[QUEUE_RESTARTS, record.row] = max(record.starts - 1, 0)
        block[QUEUE_STARTUP_S, record.row] = record.startup_s or math.nan
        block[QUEUE_RESTART_S, record.row] = record.restart_s or math.nan
        block[QUEUE_SERVICE_S, record.row] = record.service_s
        block[QUEUE_SERVICE_GPU_S, record.row] = record.service_s * float(jobs.gpus[record.row])
    return replace(state, queue=Queue(block))
