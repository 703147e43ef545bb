"""The state in which a loop begins when jobs are there already, and hold what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wattline.backend.engine.job_record import Life
from wattline.core.events import ARRIVED, Event, rows
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.plan import Placement
from wattline.core.queue import FIRST, GPU_SERVICE, RESTARTS, SERVICE, Queue
from wattline.core.snapshot import Snapshot
from wattline.loop.reconcile import reconcile
from wattline.loop.state import Decision, advance, begin, decide_nothing


def there(
    jobs: Jobs,
    nodes: Nodes,
    now_s: float,
    queued: Sequence[Life],
    leases: Leases,
    running: Sequence[Event],
    seed: int,
) -> Snapshot:
    """Of a table whose rows are *queued*; *running* says how far those with leases are, and how fast."""
    state = begin(jobs, nodes, seed)
    accepts = nodes.accepts(jobs.gpu_kind)
    arrived = rows(*(Event(ARRIVED, life.row, life.submit_s) for life in queued))
    state = advance(state, decide_nothing(state), now_s, arrived, jobs, accepts)
    reason = np.zeros(len(queued), dtype=np.int64)
    held = Decision(Placement(leases, reason, 0), reconcile(state.leases, leases))
    state = advance(state, held, now_s, rows(*running), jobs, accepts)
    block = state.queue.block.copy()
    for life in queued:
        block[FIRST, life.row] = life.first_s
        block[RESTARTS, life.row] = max(life.starts - 1, 0)
        block[SERVICE, life.row] = life.service_s
        block[GPU_SERVICE, life.row] = life.service_s * float(jobs.gpus[life.row])
    return replace(state, queue=Queue(block))
