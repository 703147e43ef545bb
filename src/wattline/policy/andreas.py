"""Energy and lateness in money, on nodes of several kinds (Filippini et al., arXiv 2105.05080, "ANDREAS")."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Ints
from wattline.energy.prices import Price
from wattline.errors import ConfigError, did_you_mean
from wattline.optimize import METHODS, OBJECTIVES
from wattline.optimize.from_snapshot import Moment, Terms, moment, plan_of
from wattline.optimize.instance import POSTPONED, Schedule, busy
from wattline.policy.chain import asked

_HELD, _NO_NODE, _OUTRANKED, _LATER = (
    REASONS.index(reason) for reason in (Reason.HELD, Reason.NO_NODE, Reason.OUTRANKED, Reason.CHEAPER_LATER)
)
_LEAST_S = 60.0  # between two decisions, if nothing happens
USUAL_PRICE = Price.flat(0.2)
"""Of a kWh, where nobody says: about what households and small sites pay in euros or dollars."""


def _usual_price() -> Price:
    return USUAL_PRICE


@dataclass(frozen=True)
class Andreas:
    """Energy and lateness at the least cost, decided anew for everybody whenever somebody comes or goes.

    What is decided is the kind and number of GPUs, the power cap and the node, or to wait.
    *method* `exact` solves the decision to *gap* (in *time_s*, else the best of `search` is taken); `relink`,
    `search`, `randomised` and `greedy` are quicker and say nothing of how good they are. *objective*
    `rolling` takes a decision to stand for a while, `to_the_end` to stand for ever. *tries* of chance come
    first. *restart_s*, *off*, *urgency* and *patience*: see `wattline.optimize.from_snapshot.Terms`. A job runs on
    one node.
    *Deviates:* the objective, power caps, restarts that cost something, prices that change; the original's
    rules are the method `greedy`, its randomised greedy `randomised`.
    """

    method: str = "exact"
    objective: str = "rolling"
    tries: int = 100
    gap: float = 1e-3
    time_s: float = 2.0
    restart_s: float = 30.0
    off: int = 1
    urgency: float = 10.0
    patience: float = 3.0
    price: Price = field(default_factory=_usual_price, repr=False)  # the header of a log has it

    names_nodes: ClassVar[bool] = True  # its plans say which

    def __post_init__(self) -> None:
        for name, known in (("method", METHODS), ("objective", OBJECTIVES)):
            word = getattr(self, name)
            if word not in known:
                raise ConfigError(
                    f"{name} must be one of {', '.join(known)}, got {word!r}", did_you_mean(str(word), known)
                )
        for name, least in (("tries", 1), ("gap", 0), ("restart_s", 0), ("urgency", 0), ("patience", 1)):
            if not least <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be at least {least} and finite, got {getattr(self, name)}")
        if not self.time_s > 0:
            raise ConfigError(f"time_s must be above 0, got {self.time_s}")
        if self.off not in (0, 1):
            raise ConfigError(f"off must be 0 or 1, got {self.off}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """The plan; see `wattline.policy.chain.Stage`."""
        from wattline.optimize.decide import (  # takes long to compile the first time
            Effort,
            charges_of,
            decide,
        )

        plan = asked(snapshot) if plan is None else plan
        rows = np.sort(plan.row)
        if not len(rows):
            return plan
        terms = Terms(self.price, self.restart_s, bool(self.off), True, self.urgency, self.patience)
        at = moment(snapshot, models, rows, terms)
        charges = charges_of(at.event, self.objective)
        effort = Effort(self.tries, snapshot.seed, self.gap, self.time_s)
        schedule, _, gap = decide(at.event, charges, self.method, at.config, at.node, effort, self.restart_s)
        until_s = min(self.price.at(snapshot.now_s)[1], snapshot.now_s + max(_LEAST_S, charges.stands_s))
        reason = _reasons(at, rows, schedule, len(snapshot.queue), self.objective == "rolling")
        found = plan_of(at, rows, schedule, reason)
        return replace(found, tick_s=min(plan.tick_s, until_s), gap=math.inf if math.isnan(gap) else gap)


def _reasons(at: Moment, rows: Ints, schedule: Schedule, queued: int, waits_for_prices: bool) -> Ints:
    """Why each row of the queue that waits does so."""
    reason = np.full(queued, _HELD, dtype=np.int64)
    reason[rows] = np.where(at.ever, _OUTRANKED, _NO_NODE)
    if at.event.later.size and waits_for_prices:
        used = busy(at.event, schedule)
        free = [int((gpus - of).max(initial=0)) for gpus, of in zip(at.event.gpus, used, strict=True)]
        fits = at.event.possible & (at.event.config_gpus <= np.array(free)[at.event.config_sort])
        reason[rows[(at.event.later < 1.0) & fits.any(axis=1)]] = _LATER
    reason[rows[schedule.config != POSTPONED]] = 0
    return reason
