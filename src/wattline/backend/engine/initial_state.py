"""The loop's initial state when jobs exist already and some of them hold leases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wattline.backend.engine.job_record import JobRecord
from wattline.core.events import ARRIVED, Event, rows
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.plan import Placement
from wattline.core.queue import FIRST, GPU_SERVICE, RESTARTS, SERVICE, Queue
from wattline.core.snapshot import Snapshot
from wattline.loop.reconcile import reconcile
from wattline.loop.state import Decision, advance, begin, decide_nothing


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
    state = begin(jobs, nodes, seed)
    accepts = nodes.accepts(jobs.gpu_kind)
    arrived = rows(*(Event(ARRIVED, record.row, record.submit_s) for record in queued))
    state = advance(state, decide_nothing(state), now_s, arrived, jobs, accepts)
    reason = np.zeros(len(queued), dtype=np.int64)
    held = Decision(Placement(leases, reason, 0), reconcile(state.leases, leases))
    state = advance(state, held, now_s, rows(*running), jobs, accepts)
    block = state.queue.block.copy()
    for record in queued:
        block[FIRST, record.row] = record.first_start_s
        block[RESTARTS, record.row] = max(record.starts - 1, 0)
        block[SERVICE, record.row] = record.service_s
        block[GPU_SERVICE, record.row] = record.service_s * float(jobs.gpus[record.row])
    return replace(state, queue=Queue(block))
