"""How much of the host a job should have beside its GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.core.table import Ints
from wattline.errors import ConfigError
from wattline.models.sensitivity import needs, saturating
from wattline.policy.chain import asked


@dataclass(frozen=True)
class Demand:
    """Stage: every job demands the least cores and memory with which it has *keep* of its best speed.

    Policies behind it reckon with the speed that jobs have then (Mohan et al., OSDI 2022, "Synergy").
    Whether they get it is up to the placer: `greedy` and `tune-published` go by it, `tune` knows better,
    and `pack` and `buddy` give everybody its proportional share.
    """

    keep: float = 0.98

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ConfigError(f"keep must be above 0 and at most 1, got {self.keep}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """The plan; see `wattline.policy.chain.Stage`."""
        plan = asked(snapshot) if plan is None else plan
        # Who has less than it demands may get more when somebody ends.
        return replace(plan, host=demanded(plan, snapshot, models, self.keep), lasts=False)


def demanded(plan: Plan, snapshot: Snapshot, models: Models, keep: float) -> Ints:
    """The least of the host with which each entry of the plan has *keep* of its best speed."""
    known = needs(models, snapshot.jobs, snapshot.nodes)
    sets = known.sets[snapshot.queue.job[plan.row], 0]
    return np.asarray(np.take(known.host, saturating(known, keep)[sets], axis=1))
