"""Elimination of power caps: configurations that differ in the cap only become one.

The cost of a job depends on its GPUs, the type of its node and the busy GPUs there. So the best cap for each
of these can be chosen before anything else is decided, and caps make no programme larger.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wattline.core.table import Ints
from wattline.optimize.instance import POSTPONED, Assignment, Instance, count_busy_gpus
from wattline.optimize.objective import Charges


@dataclass(frozen=True, eq=False)
class CaplessInstance:
    """An instance and its charges without caps."""

    instance: Instance
    charges: Charges
    merged: Ints  # by configuration with cap: that without
    best: Ints  # by job, configuration without cap and busy GPUs: the best configuration with cap

    def remove_caps(self, assignment: Assignment) -> Assignment:
        """Return *assignment* of the instance with caps as one of this instance."""
        waits = assignment.config == POSTPONED
        return replace(assignment, config=np.where(waits, POSTPONED, self.merged[assignment.config]))

    def add_caps(self, assignment: Assignment) -> Assignment:
        """Return *assignment* of this instance with the best caps."""
        used = count_busy_gpus(self.instance, assignment)
        config = assignment.config.copy()
        for job in np.flatnonzero(config != POSTPONED).tolist():
            c = config[job]
            config[job] = self.best[job, c, used[self.instance.config_node_type[c]][assignment.node[job]]]
        return replace(assignment, config=config)


def eliminate_caps(instance: Instance, charges: Charges) -> CaplessInstance:
    """Return *instance* with one configuration for each number of GPUs of a node type."""
    wide = int(instance.config_gpus.max(initial=0)) + 1
    pairs = instance.config_node_type * wide + instance.config_gpus
    unique, merged = np.unique(pairs, return_inverse=True)
    merged = merged.astype(np.int64)
    groups = [np.flatnonzero(merged == k) for k in range(len(unique))]
    shape = (instance.jobs, len(groups), instance.cost_per_s.shape[1])
    run_cost, best = np.empty(shape), np.empty(shape, dtype=np.int64)
    left_s = np.empty(shape[:2])
    for k, group in enumerate(groups):
        cheapest = np.argmin(charges.run_cost[:, group], axis=1)
        best[:, k] = group[cheapest]
        run_cost[:, k] = np.take_along_axis(charges.run_cost[:, group], cheapest[:, None], axis=1)[:, 0]
        left_s[:, k] = instance.left_s[:, group].min(axis=1)
    capless = replace(
        instance,
        config_node_type=unique // wide,
        config_gpus=unique % wide,
        left_s=left_s,
        own_cost_per_s=np.empty(0),
        pause_s=np.empty(0),
    )
    return CaplessInstance(capless, replace(charges, run_cost=run_cost), merged, best)
