"""Elimination of power caps: configurations that differ in the cap only become one.

The cost of a job depends on its GPUs, the type of its node and the busy GPUs there. So the best cap for each
of these can be chosen before anything else is decided, and caps make no programme larger.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import F2, F3, I1, INT, kernel
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
        for node_type, busy in enumerate(used):
            of_type = self.instance.config_node_type[assignment.config] == node_type
            job = np.flatnonzero(of_type & (assignment.config != POSTPONED))
            config[job] = self.best[job, assignment.config[job], busy[assignment.node[job]]]
        return replace(assignment, config=config)


def eliminate_caps(instance: Instance, charges: Charges) -> CaplessInstance:
    """Return *instance* with one configuration for each number of GPUs of a node type."""
    wide = int(instance.config_gpus.max(initial=0)) + 1
    pairs = instance.config_node_type * wide + instance.config_gpus
    unique, merged = np.unique(pairs, return_inverse=True)
    merged = merged.astype(np.int64)
    run_cost, left_s, best = _merge(
        np.ascontiguousarray(charges.run_cost), np.ascontiguousarray(instance.left_s), merged, len(unique)
    )
    capless = replace(
        instance,
        config_node_type=unique // wide,
        config_gpus=unique % wide,
        left_s=left_s,
        own_cost_per_s=np.empty(0),
        pause_s=np.empty(0),
    )
    return CaplessInstance(capless, replace(charges, run_cost=run_cost), merged, best)


@kernel(F3, F2, I1, INT)
def _merge(run_cost: Floats, left_s: Floats, merged: Ints, count: int) -> tuple[Floats, Floats, Ints]:
    """Return cost, least remaining time and cheapest configuration of each of *count* merged ones."""
    jobs, configs, wide = run_cost.shape
    least, shortest = np.full((jobs, count, wide), np.inf), np.full((jobs, count), np.inf)
    best = np.full((jobs, count, wide), -1, dtype=np.int64)
    for j in range(jobs):
        for c in range(configs):
            k = merged[c]
            shortest[j, k] = min(shortest[j, k], left_s[j, c])
            for u in range(wide):
                if best[j, k, u] < 0 or run_cost[j, c, u] < least[j, k, u]:
                    least[j, k, u] = run_cost[j, c, u]
                    best[j, k, u] = c
    return least, shortest, best
