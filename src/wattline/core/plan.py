"""What a policy and a placer return."""

from __future__ import annotations

import math
from dataclasses import dataclass

from wattline.core.leases import Leases
from wattline.core.nodes import HOST
from wattline.core.table import INT64, Bools, Ints, check_array
from wattline.errors import PlanError


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """Who should run, first come first: what a policy answers.

    *row* counts in `Snapshot.queue`; a job left out is held back. Rows with the same *group* (the
    row of the first of them) run as one on the same GPUs. *keeps*: nobody who runs is stopped for
    somebody else. *tick_s*: when the policy wants to be asked again if nothing happens before.
    *lasts*: once everybody has what the plan grants, jobs that end are no reason to ask again
    (true of policies that only order; not of those that give freed GPUs to who runs already).
    *cap_w* is the power cap of each GPU (0: none), *batch* that of the whole job (0: as asked), *host* what
    each GPU should have beside it, rows as in `HOST`; None: so for all. *reason* says, by row of the queue,
    why a job is left out. *meters*: the policy wants the energy meter read before it is asked again.
    *kind* is the only kind of GPU that an entry may have, *node* the only node (-1: any); a plan that names
    nodes is for placers that leave them alone, such as `Pack`. *gap*: how far from the best decision this one
    may be, relative to what it costs; inf: nobody knows, nan: the policy does not look for the best.
    """

    row: Ints
    gpus: Ints
    group: Ints
    keeps: bool = False
    tick_s: float = math.inf
    lasts: bool = False
    cap_w: Ints | None = None
    batch: Ints | None = None
    reason: Ints | None = None
    meters: bool = False
    host: Ints | None = None
    kind: Ints | None = None
    node: Ints | None = None
    gap: float = math.nan

    def __post_init__(self) -> None:
        check_array("Plan.row", self.row, INT64, 1, PlanError)
        check_array("Plan.gpus", self.gpus, INT64, 1, PlanError)
        check_array("Plan.group", self.group, INT64, 1, PlanError)
        if not len(self.row) == len(self.gpus) == len(self.group):
            lengths = f"{len(self.row)}, {len(self.gpus)} and {len(self.group)}"
            raise PlanError(f"a plan's row, gpus and group have {lengths} entries, expected as many of each")
        for name in ("cap_w", "batch", "kind", "node"):
            column = getattr(self, name)
            if column is not None:
                check_array(f"Plan.{name}", column, INT64, 1, PlanError)
                if len(column) != len(self.row):
                    raise PlanError(f"a plan's {name} has {len(column)} entries, expected {len(self.row)}")
        if self.reason is not None:
            check_array("Plan.reason", self.reason, INT64, 1, PlanError)
        if self.host is not None:
            check_array("Plan.host", self.host, INT64, 2, PlanError)
            if self.host.shape != (len(HOST), len(self.row)):
                expected = (len(HOST), len(self.row))
                raise PlanError(f"a plan's host has the shape {self.host.shape}, expected {expected}")

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, eq=False, slots=True)
class Placement:
    """What a placer answers: the leases, and for every row of the queue why it has none.

    *waiting* says how many have none. *on* says which nodes should be switched on; None: leave them
    as they are. *tick_s*: when the placer wants to be asked again if nothing happens before. *unsettled*:
    somebody who runs could use more of the host, so that jobs that end are a reason to ask again.
    """

    leases: Leases
    reason: Ints  # numbers of `REASONS`
    waiting: int
    on: Bools | None = None
    tick_s: float = math.inf
    unsettled: bool = False

    def __post_init__(self) -> None:
        check_array("Placement.reason", self.reason, INT64, 1, PlanError)
