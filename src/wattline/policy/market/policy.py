"""Market: the policy in which all resources have prices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from wattline.core.energy_knob import EnergyKnob
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_LAST_GPUS
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats
from wattline.energy.budgets import Budget
from wattline.energy.prices import Price
from wattline.errors import ConfigError, did_you_mean
from wattline.policy.andreas import DEFAULT_PRICE, Andreas
from wattline.policy.budget_limits import BudgetLimits, compute_limits
from wattline.policy.market.ageing import Overdue, compute_age_weights, find_overdue
from wattline.policy.market.choice import MarketTerms
from wattline.policy.market.decision import MarketDecision, decide
from wattline.policy.market.exact_nodes import plan_exact_nodes
from wattline.policy.market.explanation import MarketExplanation, explain_decision
from wattline.policy.market.plan_builder import build_plan
from wattline.policy.market.scene import Scene, build_scene
from wattline.policy.market.time_values import value_completion, value_lateness

_DECISIONS = 20  # in the remaining run time of the shortest job

AIMS = ("jct", "cost")
"""Values of `Market.aim`."""

NODE_CHOICES = ("placer", "exact")
"""Values of `Market.nodes`."""


def _default_price() -> Price:
    return DEFAULT_PRICE


class _Decided(NamedTuple):
    """A decision, and what it followed from."""

    limits: BudgetLimits
    decision: MarketDecision
    overdue: Overdue
    load: float  # of the aim `cost`, see `time_values`; 0: not known


@dataclass(frozen=True)
class Market:
    """Least mean completion time, or least cost of energy and lateness, by prices.

    Every GPU has a price at every time, and every joule has one: each job takes the kind and number of GPUs,
    the power cap and the batch size that are best at these prices, and prices move until no more GPUs are
    wanted than there are (see `prices`). Then whole GPUs go, one step after the other, where they are worth
    most per GPU (see `rounding`). A job waits if no way of running is worth its price.

    With *aim* `jct` a second of any job costs 1, and a joule *energy_price* seconds. With `cost` energy costs
    *price*, and a late job pays as in `Andreas`, with the same *urgency* and *patience*. *budgets* are kept
    besides, by measured watts where there are any; *overshoot* and *interval_s* are those of `PowerFlow`.
    Another number or kind of GPUs costs a start-up and the work since the last checkpoint, which must pay
    within *horizon_s* or the rest of the job, and under budgets within *interval_s*. The start-up is the
    measured one (see `compute_restart_s`), and *restart_s* until one is measured. Jobs of a sweep are
    fused where that costs them less (see `arrays`). With the aim `jct` no job waits longer than *wait_limit*
    times its wait in order of submission, and an hour (see `ageing`); inf: there is no such limit, and mean
    completion times are shorter where jobs cannot share GPUs by shrinking.
    With *nodes* `exact` and the aim `cost`, a plan at light load also names the nodes (see `exact_nodes`),
    which needs the placer `pack`.
    With *explore* a job gets one GPU at first and then at most so many times those that it had last, every
    *interval_s*, for jobs of which no speed is known where they have not run. Nothing is remembered between
    decisions.
    """

    aim: Literal["jct", "cost"] = "jct"
    energy_price: float = 0.0
    budgets: tuple[Budget, ...] = ()
    restart_s: float = 30.0
    horizon_s: float = 3600.0
    interval_s: float = 300.0
    overshoot: float = math.inf
    urgency: float = 10.0
    patience: float = 3.0
    wait_limit: float = 5.0
    explore: float = 0.0
    nodes: Literal["placer", "exact"] = "placer"
    price: Price = field(default_factory=_default_price, repr=False)  # the header of a log has it

    ENERGY_KNOB: ClassVar[EnergyKnob] = EnergyKnob(
        "energy_price", fastest=0.0, cheapest=math.inf, scale="log", start=1e-4, unit="s/J"
    )

    def __post_init__(self) -> None:
        for name, known in (("aim", AIMS), ("nodes", NODE_CHOICES)):
            word = str(getattr(self, name))
            if word not in known:
                raise ConfigError(
                    f"{name} must be one of {', '.join(known)}, got {word!r}", did_you_mean(word, known)
                )
        if self.nodes == "exact" and self.aim != "cost":
            raise ConfigError(
                f"nodes=exact is for aim=cost, got aim={self.aim}", hint="market:aim=cost,nodes=exact@pack"
            )
        least = {
            "energy_price": 0,
            "restart_s": 0,
            "horizon_s": 1,
            "interval_s": 1,
            "urgency": 0,
            "patience": 1,
        }
        for name, bound in least.items():
            if not bound <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be at least {bound} and finite, got {getattr(self, name)}")
        if self.explore != 0 and not 1 < self.explore < math.inf:
            raise ConfigError(f"explore must be 0, or above 1 and finite, got {self.explore}")
        if not self.wait_limit >= 0:
            raise ConfigError(f"wait_limit must be at least 0, got {self.wait_limit}")
        if not self.overshoot >= 1:
            raise ConfigError(f"overshoot must be at least 1, got {self.overshoot}")
        if any(budget.unit == "eta" for budget in self.budgets):
            raise ConfigError(
                "market has no eta, got a budget of eta", hint="market:energy_price=1e-4, or powerflow"
            )
        if self.aim == "cost" and self.energy_price:
            raise ConfigError(
                f"energy_price is for aim=jct, got {self.energy_price} with aim=cost",
                hint="--price sets the price of a kWh",
            )

    @property
    def names_nodes(self) -> bool:
        """True if its plans may choose the nodes."""
        return self.nodes == "exact"

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`.

        Of an earlier *plan* only the choice of jobs and their precedence count.
        """
        limits, decision, overdue, load = self._decide(snapshot, models, plan)
        scene = decision.scene
        waits = (decision.kind[scene.leader] < 0) | ~snapshot.queue.running
        next_s = min(limits.next_decision_s, overdue.find_next_s(snapshot.now_s, waits))
        if not len(snapshot.leases) and (decision.kind < 0).all():
            next_s = limits.next_idle_decision_s
        if self.explore and _grows(snapshot, scene, decision):
            next_s = min(next_s, snapshot.now_s + self.interval_s)
        if self.aim == "cost" and len(scene.work_s):
            next_s = min(next_s, snapshot.now_s + self._wait_s(scene))
        if self.price.is_variable and len(scene.work_s):
            next_s = min(next_s, self.price.at(snapshot.now_s)[1])
        fills_gaps = self.aim == "jct" and self.energy_price == 0 and not len(limits.amount)
        built = build_plan(snapshot, decision, limits, plan, next_s, fills_gaps)
        if self.nodes == "exact" and not len(limits.amount) and len(scene.work_s):
            exact = plan_exact_nodes(snapshot, models, plan, self._programme, decision, load)
            if exact is not None:
                next_s = exact.next_decision_s
                if snapshot.estimates is None:  # else more decisions would only follow their errors
                    next_s = min(next_s, built.next_decision_s)
                return replace(exact, next_decision_s=next_s, prices=built.prices)
        return built

    @property
    def _programme(self) -> Andreas:
        return Andreas(
            restart_s=self.restart_s, urgency=self.urgency, patience=self.patience, price=self.price
        )

    def explain(
        self, snapshot: Snapshot, models: Models, plan: Plan | None = None, row: int | None = None
    ) -> MarketExplanation:
        """Return the prices of the decision, and what each job offers, or only that of *row*; as data."""
        return explain_decision(snapshot, self._decide(snapshot, models, plan).decision, row)

    def _decide(self, snapshot: Snapshot, models: Models, plan: Plan | None) -> _Decided:
        scene = build_scene(snapshot, models, plan, self.restart_s, self.explore, self.aim)
        limits = compute_limits(self.budgets, snapshot, self.interval_s, self.overshoot)
        overdue = Overdue(np.empty(0, dtype=np.int64), np.full(len(scene.work_s), math.inf))
        if self.aim == "jct":
            if self.wait_limit < math.inf:
                overdue = find_overdue(snapshot, scene, self.wait_limit, limits)
            times = value_completion(scene)
            times = times._replace(weight=times.weight * compute_age_weights(snapshot, scene))
        else:
            times = value_lateness(snapshot, scene, self.price.mean_per_j, self.urgency, self.patience)
            if self.price.is_variable:  # no hour is worth waiting for after the due date
                late = np.flatnonzero((times.due_s < 0) & (scene.open_to > 0))
                overdue = overdue._replace(rows=late)
        # A budget has another price at every decision, so a change must pay until the next one.
        horizon_s = min(self.horizon_s, self.interval_s) if len(limits.amount) else self.horizon_s
        terms = MarketTerms(
            times, self._price_energy(snapshot.now_s), limits, horizon_s, not self.price.is_variable
        )
        return _Decided(limits, decide(snapshot, models, scene, terms, overdue.rows), overdue, times.load)

    def _wait_s(self, scene: Scene) -> float:
        """Return the time to the next decision if due dates come near and nothing else happens."""
        return max(self.interval_s, float(scene.work_s.min()) / _DECISIONS)

    def _price_energy(self, now_s: float) -> Callable[[Floats], Floats]:
        """Return the price of a joule by the seconds from now; it follows a price that changes over time."""
        if self.aim == "jct" and not self.price.is_variable:
            return lambda at_s: np.full(len(at_s), self.energy_price)
        scale = 1.0 if self.aim == "cost" else self.energy_price / self.price.mean_per_j
        return lambda at_s: np.array([scale * self.price.at(now_s + s)[0] for s in at_s.tolist()])


def _grows(snapshot: Snapshot, scene: Scene, decision: MarketDecision) -> bool:
    """Return whether a job gets more GPUs than it had last, so that it may soon have more."""
    gpus = scene.count_gpus(decision.kind, decision.size)
    return bool((gpus > snapshot.queue.block[QUEUE_LAST_GPUS]).any())
