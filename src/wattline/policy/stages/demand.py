"""Stage that sets the cores and memory that a job should have beside its GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.core.table import Ints
from wattline.errors import ConfigError
from wattline.models.sensitivity import build_sensitivity, find_saturation_points
from wattline.policy.chain import plan_as_requested


@dataclass(frozen=True)
class Demand:
    """Stage: demand the least cores and memory with which each job has *keep* of its best speed.

    Later stages count with the speed that jobs then have (Mohan et al., OSDI 2022, "Synergy"). The placer
    decides whether jobs get it: `greedy` and `tune-published` use the demand, `tune` finds better shares
    itself, and `pack` and `buddy` give each job its proportional share.
    """

    keep: float = 0.98

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ConfigError(f"keep must be above 0 and at most 1, got {self.keep}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`."""
        plan = plan_as_requested(snapshot) if plan is None else plan
        # A job that has less than it demands may get more when another ends, so the plan is not stable.
        return replace(plan, host=compute_demand(plan, snapshot, models, self.keep), stable=False)


def compute_demand(plan: Plan, snapshot: Snapshot, models: Models, keep: float) -> Ints:
    """Return the least of the host with which each entry of the plan has *keep* of its best speed."""
    sensitivity = build_sensitivity(models, snapshot.jobs, snapshot.nodes)
    sets = sensitivity.point_sets[snapshot.queue.job[plan.row], 0]
    return np.asarray(np.take(sensitivity.host, find_saturation_points(sensitivity, keep)[sets], axis=1))
