"""ANDREAS: least cost of energy and tardiness on nodes of several kinds."""

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
from wattline.optimize.from_snapshot import SnapshotInstance, Terms, build_instance, build_plan
from wattline.optimize.instance import POSTPONED, Assignment, count_busy_gpus
from wattline.policy.chain import keep_reasons, plan_as_requested

_HELD, _NO_NODE, _OUTRANKED, _LATER = (
    REASONS.index(reason) for reason in (Reason.HELD, Reason.NO_NODE, Reason.OUTRANKED, Reason.CHEAPER_LATER)
)
_LEAST_S = 60.0  # between two decisions without an event
DEFAULT_PRICE = Price.flat(0.2)
"""Of a kWh without `--price`: about what households and small sites pay in euros or dollars."""


def _default_price() -> Price:
    return DEFAULT_PRICE


@dataclass(frozen=True)
class Andreas:
    """Least cost of energy and tardiness, decided anew whenever a job comes or goes.

    For every job the kind and number of GPUs, the power cap and the node are decided, or that it waits; a job
    runs on one node (Filippini et al., arXiv 2105.05080, "ANDREAS").
    *method* `exact` solves the decision to *gap*: the quicker methods are tried first, and a solver is called
    where none of them is within *gap* of a bound. It stops after *node_limit* nodes of its search tree, and
    the better of its result and that of `search` is taken; with more than *most* jobs × nodes, the assignment
    by prices of GPUs, with the gap that it has.
    `relink`, `search`, `randomised` and `greedy` have no bound on their gap.
    *objective* `rolling` assumes that a decision holds for a while, `to_the_end` that it holds until all jobs
    end. *tries* is the number of randomised starts. *restart_s*, *off*, *urgency* and *patience*: see
    `wattline.optimize.from_snapshot.Terms`.
    *Deviates:* the objective, power caps, restarts that take time, prices that change; the original's rules
    are the method `greedy`, its randomised greedy `randomised`.
    """

    method: str = "exact"
    objective: str = "rolling"
    tries: int = 100
    gap: float = 1e-3
    node_limit: int = 200
    most: int = 20_000
    restart_s: float = 30.0
    off: int = 1
    urgency: float = 10.0
    patience: float = 3.0
    price: Price = field(default_factory=_default_price, repr=False)  # the header of a log has it

    names_nodes: ClassVar[bool] = True  # its plans choose the nodes

    def __post_init__(self) -> None:
        for name, known in (("method", METHODS), ("objective", OBJECTIVES)):
            word = getattr(self, name)
            if word not in known:
                raise ConfigError(
                    f"{name} must be one of {', '.join(known)}, got {word!r}", did_you_mean(str(word), known)
                )
        for name, least in (
            ("tries", 1),
            ("gap", 0),
            ("node_limit", 1),
            ("most", 0),
            ("restart_s", 0),
            ("urgency", 0),
            ("patience", 1),
        ):
            if not least <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be at least {least} and finite, got {getattr(self, name)}")
        if self.off not in (0, 1):
            raise ConfigError(f"off must be 0 or 1, got {self.off}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`."""
        from wattline.optimize.decide import (  # takes long to compile the first time
            Effort,
            compute_charges,
            decide,
        )

        plan = plan_as_requested(snapshot) if plan is None else plan
        rows = np.sort(plan.row)
        if not len(rows):
            return plan
        terms = Terms(self.price, self.restart_s, bool(self.off), True, self.urgency, self.patience)
        problem = build_instance(snapshot, models, rows, terms)
        instance = problem.instance
        charges = compute_charges(instance, self.objective)
        effort = Effort(self.tries, snapshot.seed, self.gap, self.node_limit, self.most)
        assignment, _, gap = decide(
            instance, charges, self.method, problem.config, problem.node, effort, self.restart_s
        )
        until_s = min(self.price.at(snapshot.now_s)[1], snapshot.now_s + max(_LEAST_S, charges.valid_s))
        reason = _find_reasons(problem, rows, assignment, len(snapshot.queue), self.objective == "rolling")
        reason = keep_reasons(plan, rows, reason)
        chosen = build_plan(problem, rows, assignment, reason)
        return replace(
            chosen,
            next_decision_s=min(plan.next_decision_s, until_s),
            gap=math.inf if math.isnan(gap) else gap,
        )


def _find_reasons(
    problem: SnapshotInstance, rows: Ints, assignment: Assignment, queued: int, waits_for_prices: bool
) -> Ints:
    """Return by row of the queue the reason for which it waits; 0: it runs."""
    instance = problem.instance
    reason = np.full(queued, _HELD, dtype=np.int64)
    reason[rows] = np.where(problem.fits_somewhere, _OUTRANKED, _NO_NODE)
    if instance.later_price.size and waits_for_prices:
        used = count_busy_gpus(instance, assignment)
        free = [int((gpus - of).max(initial=0)) for gpus, of in zip(instance.gpus, used, strict=True)]
        fits = instance.possible & (instance.config_gpus <= np.array(free)[instance.config_node_type])
        reason[rows[(instance.later_price < 1.0) & fits.any(axis=1)]] = _LATER
    reason[rows[assignment.config != POSTPONED]] = 0
    return reason
