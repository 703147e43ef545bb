"""State of a cluster on which all jobs wait."""

from __future__ import annotations

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.snapshot import Snapshot
from wattline.loop.state import advance, build_empty_decision, build_empty_state


def queue_up(jobs: Jobs, nodes: Nodes, now_s: float = 0.0) -> Snapshot:
    """Return the state in which all jobs have come and none has started."""
    state = build_empty_state(jobs, nodes)
    came = np.zeros((len(jobs), 6))
    came[:, 1], came[:, 2] = np.arange(len(jobs)), jobs.submit_s
    kinds = nodes.accepted_kinds(jobs.gpu_kind)
    return advance(state, build_empty_decision(state), now_s, came, jobs, kinds)
