"""Nodes at light load, chosen together with sizes by the programme of ANDREAS.

Where GPUs are plenty their price is nearly 0, and what is left to decide is which jobs share a node that is
paid for as a whole. Prices say little about that, but the programme is small then, and can be solved.
"""

from __future__ import annotations

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.policy.andreas import Andreas
from wattline.policy.market.decision import MarketDecision

_LIGHT_LOAD = 0.25  # most work left, over what all GPUs can do until the jobs are due


def plan_exact_nodes(
    snapshot: Snapshot,
    models: Models,
    plan: Plan | None,
    programme: Andreas,
    decision: MarketDecision,
    load: float,
) -> Plan | None:
    """Return the plan of *programme* if the load is light; None: a job waits, or *load* is not light.

    Nothing is light while a job waits in *decision* or in that plan, and fused arrays are not known there.
    Where durations are estimates, a job that waits in *decision* for cheaper GPUs starts all the same: it may
    turn out to be long, and be late then.
    """
    scene = decision.scene
    row = np.arange(len(scene.leader))
    waits = snapshot.estimates is None and (decision.kind < 0).any()
    if load > _LIGHT_LOAD or waits or (scene.leader != row).any():
        return None
    found = programme(snapshot, models, plan)
    return found if len(found.row) == len(snapshot.queue) else None
