"""Plans of policies and placements of placers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattline.core.leases import Leases
from wattline.core.nodes import HOST_RESOURCES
from wattline.core.resource_prices import ResourcePrices
from wattline.core.table import FLOAT64, INT64, Bools, Floats, Ints, check_array
from wattline.errors import PlanError


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """Jobs that should run, in order of precedence: the result of a policy.

    A queued job that is not in the plan waits. Entries with the same *group* share their GPUs (packed or
    fused).
    """

    row: Ints  # column of `Snapshot.queue`
    gpus: Ints
    group: Ints  # row of the first member; a job that runs alone has its own row
    non_preemptive: bool = False  # a running job is never stopped for another
    next_decision_s: float = math.inf  # time of the next decision if no event comes before
    # Once every entry runs, jobs that end need no new decision. True of policies that only order jobs, false
    # of those that give freed GPUs to running jobs.
    stable: bool = False
    cap_w: Ints | None = None  # power cap of each GPU; 0 or None: no cap
    batch: Ints | None = None  # batch size of the whole job; 0 or None: as requested
    reason: Ints | None = None  # by column of the queue, why a job is not in the plan; index in `REASONS`
    needs_meter: bool = False  # read the energy meter before the next decision
    host: Ints | None = (
        None  # host resources per GPU, rows as in `HOST_RESOURCES`; 0 or None: proportional share
    )
    kind: Ints | None = None  # the only GPU kind allowed; -1 or None: any
    node: Ints | None = None  # the only node allowed; -1 or None: any; needs a placer that obeys it (`Pack`)
    gap: float = math.nan  # relative optimality gap; inf: unknown, nan: the policy does not optimise
    # Class of each entry for a policy that chooses the number of GPUs: those of a smaller one are admitted
    # first. None: that policy chooses. Only ordering needs none.
    precedence: Ints | None = None
    note: object | None = None  # a value that the policy finds as `Snapshot.note` at its next decision
    prices: ResourcePrices | None = None  # of this decision; None: the policy sets no prices
    # What moving the job of each entry costs, in parts of what a node saves that is switched off. None: no
    # job is moved for that. Placers that never move jobs ignore it.
    move_cost: Floats | None = None

    def __post_init__(self) -> None:
        check_array("Plan.row", self.row, INT64, 1, PlanError)
        check_array("Plan.gpus", self.gpus, INT64, 1, PlanError)
        check_array("Plan.group", self.group, INT64, 1, PlanError)
        if not len(self.row) == len(self.gpus) == len(self.group):
            lengths = f"{len(self.row)}, {len(self.gpus)} and {len(self.group)}"
            raise PlanError(
                f"Plan.row, Plan.gpus and Plan.group have {lengths} entries, expected equal lengths"
            )
        if not (self.cap_w is self.batch is self.kind is self.node is self.precedence is None):
            self._check_optional_columns()
        if self.reason is not None:
            check_array("Plan.reason", self.reason, INT64, 1, PlanError)
        if self.move_cost is not None:
            check_array("Plan.move_cost", self.move_cost, FLOAT64, 1, PlanError)
            if len(self.move_cost) != len(self.row):
                raise PlanError(f"Plan.move_cost has {len(self.move_cost)} entries, expected {len(self.row)}")
        if self.host is not None:
            check_array("Plan.host", self.host, INT64, 2, PlanError)
            if self.host.shape != (len(HOST_RESOURCES), len(self.row)):
                expected = (len(HOST_RESOURCES), len(self.row))
                raise PlanError(f"Plan.host has the shape {self.host.shape}, expected {expected}")

    def _check_optional_columns(self) -> None:
        for name in ("cap_w", "batch", "kind", "node", "precedence"):
            column = getattr(self, name)
            if column is not None:
                check_array(f"Plan.{name}", column, INT64, 1, PlanError)
                if len(column) != len(self.row):
                    raise PlanError(f"Plan.{name} has {len(column)} entries, expected {len(self.row)}")

    def take(self, entries: Ints, **changes: Any) -> Plan:
        """Return a plan of these *entries*, in this order, and with *changes* of other fields."""
        fields: dict[str, Any] = {
            "row": self.row[entries],
            "gpus": self.gpus[entries],
            "group": self.group[entries],
            "non_preemptive": self.non_preemptive,
            "next_decision_s": self.next_decision_s,
            "stable": self.stable,
            "cap_w": None if self.cap_w is None else self.cap_w[entries],
            "batch": None if self.batch is None else self.batch[entries],
            "reason": self.reason,
            "needs_meter": self.needs_meter,
            "host": None if self.host is None else np.take(self.host, entries, axis=1),
            "kind": None if self.kind is None else self.kind[entries],
            "node": None if self.node is None else self.node[entries],
            "gap": self.gap,
            "precedence": None if self.precedence is None else self.precedence[entries],
            "note": self.note,
            "prices": self.prices,
            "move_cost": None if self.move_cost is None else self.move_cost[entries],
        }
        return Plan(**(fields | changes))

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, eq=False, slots=True)
class Placement:
    """Leases for a plan: the result of a placer."""

    leases: Leases
    reason: Ints  # by column of the queue, why a job has no lease; index in `REASONS`
    waiting: int  # number of queued jobs without a lease
    powered_on: Bools | None = None  # mask of the nodes that should be switched on; None: no change
    next_decision_s: float = math.inf  # time of the next decision if no event comes before
    host_limited: bool = (
        False  # a running job could use more of its host, so a job that ends needs a new decision
    )

    def __post_init__(self) -> None:
        check_array("Placement.reason", self.reason, INT64, 1, PlanError)
