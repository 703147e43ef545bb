"""What ANDREAS is held against: one after the other, each in its own best way, and nobody is moved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.energy.prices import Price
from wattline.errors import ConfigError, did_you_mean
from wattline.optimize.from_snapshot import Moment, Terms, moment, plan_of
from wattline.optimize.instance import POSTPONED, Schedule
from wattline.policy.andreas import USUAL_PRICE
from wattline.policy.chain import asked

_ORDERS = ("fifo", "edf", "priority")
_HELD, _OUTRANKED, _NO_NODE = (
    REASONS.index(reason) for reason in (Reason.HELD, Reason.OUTRANKED, Reason.NO_NODE)
)


def _usual_price() -> Price:
    return USUAL_PRICE


@dataclass(frozen=True)
class FirstPrinciple:
    """Each in turn takes the cheapest way to be in time, or else the fastest, and keeps it to its end.

    *order* is `fifo`, `edf` or `priority` (who pays most for being late). With *exclusive* 1 a job has its
    node for itself, and waits for one of the kind that it wants; else nodes are shared, and who finds no room
    takes its next best way (the two baselines of ANDREAS' authors). *off*: whether nodes that nobody uses are
    switched off, see `wattline.optimize.from_snapshot.Terms`.
    """

    order: str = "fifo"
    exclusive: int = 0
    off: int = 1
    price: Price = field(default_factory=_usual_price, repr=False)  # the header of a log has it

    names_nodes: ClassVar[bool] = True  # its plans say which

    def __post_init__(self) -> None:
        if self.order not in _ORDERS:
            raise ConfigError(
                f"order must be one of {', '.join(_ORDERS)}, got {self.order!r}",
                did_you_mean(self.order, _ORDERS),
            )
        for name in ("exclusive", "off"):
            if getattr(self, name) not in (0, 1):
                raise ConfigError(f"{name} must be 0 or 1, got {getattr(self, name)}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """The plan; see `wattline.policy.chain.Stage`."""
        from wattline.optimize.greedy import ranked  # takes long to compile the first time

        plan = asked(snapshot) if plan is None else plan
        rows = np.sort(plan.row)
        if not len(rows):
            return plan
        at = moment(snapshot, models, rows, Terms(self.price, 0.0, bool(self.off), False, 10.0, 3.0))
        ranks, _ = ranked(at.event)
        key = self._key(snapshot, rows, at)
        config, node = self._seated(at, ranks, np.lexsort((rows, key)))
        reason = np.full(len(snapshot.queue), _HELD, dtype=np.int64)
        reason[rows] = np.where(config != POSTPONED, 0, np.where(at.ever, _OUTRANKED, _NO_NODE))
        return replace(plan_of(at, rows, Schedule(config, node), reason), tick_s=plan.tick_s)

    def _key(self, snapshot: Snapshot, rows: Ints, at: Moment) -> Floats:
        if self.order == "fifo":
            return rows.astype(np.float64)
        return at.event.due_s if self.order == "edf" else -at.event.late

    def _seated(self, at: Moment, ranks: Ints, order: Ints) -> tuple[Ints, Ints]:
        """Who runs goes on; the others in turn, each on the node with the fewest free GPUs that suffice."""
        event = at.event
        config, node = at.config.copy(), at.node.copy()
        free = [np.full(int(n), g) for n, g in zip(event.nodes, event.gpus.tolist(), strict=True)]
        for job in np.flatnonzero(config != POSTPONED).tolist():
            free[event.config_sort[config[job]]][node[job]] -= event.config_gpus[config[job]]
        for job in order[config[order] == POSTPONED].tolist():
            for c in ranks[job, : 1 if self.exclusive else None].tolist():
                if c < 0:
                    break
                sort, need = event.config_sort[c], event.config_gpus[c]
                room = free[sort]
                fits = np.flatnonzero(room >= (event.gpus[sort] if self.exclusive else need))
                if len(fits):
                    config[job], node[job] = c, fits[np.argmin(room[fits])]
                    room[node[job]] -= need
                    break
        return config, node
