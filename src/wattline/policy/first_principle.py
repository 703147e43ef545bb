"""Baselines of ANDREAS: jobs one after the other, each in its own best configuration."""

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
from wattline.optimize.from_snapshot import SnapshotInstance, Terms, build_instance, build_plan
from wattline.optimize.instance import POSTPONED, Assignment, Instance
from wattline.policy.andreas import DEFAULT_PRICE
from wattline.policy.chain import keep_reasons, plan_as_requested

_ORDERS = ("fifo", "edf", "priority")
_HELD, _OUTRANKED, _NO_NODE = (
    REASONS.index(reason) for reason in (Reason.HELD, Reason.OUTRANKED, Reason.NO_NODE)
)


def _default_price() -> Price:
    return DEFAULT_PRICE


@dataclass(frozen=True)
class FirstPrinciple:
    """Cheapest configuration that meets the deadline, else the fastest, chosen job by job and kept.

    *order* is `fifo`, `edf` or `priority` (highest cost of tardiness first). With *exclusive* 1 a job has
    its node for itself, and waits for one of the kind that it prefers; else nodes are shared, and a job
    that finds no room takes its next best configuration (the two baselines of ANDREAS' authors). *off*:
    whether idle nodes are switched off, see `wattline.optimize.from_snapshot.Terms`.
    """

    order: str = "fifo"
    exclusive: int = 0
    off: int = 1
    price: Price = field(default_factory=_default_price, repr=False)  # the header of a log has it

    names_nodes: ClassVar[bool] = True  # its plans choose the nodes

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
        """Return the plan; see `wattline.policy.chain.Stage`."""
        from wattline.optimize.greedy import rank_configurations  # takes long to compile the first time

        plan = plan_as_requested(snapshot) if plan is None else plan
        rows = np.sort(plan.row)
        if not len(rows):
            return plan
        terms = Terms(self.price, 0.0, bool(self.off), False, 10.0, 3.0)
        problem = build_instance(snapshot, models, rows, terms)
        ranks, _ = rank_configurations(problem.instance)
        key = self._compute_key(rows, problem.instance)
        config, node = self._assign(problem, ranks, np.lexsort((rows, key)))
        reason = np.full(len(snapshot.queue), _HELD, dtype=np.int64)
        reason[rows] = np.where(
            config != POSTPONED, 0, np.where(problem.fits_somewhere, _OUTRANKED, _NO_NODE)
        )
        reason = keep_reasons(plan, rows, reason)
        return replace(
            build_plan(problem, rows, Assignment(config, node), reason), next_decision_s=plan.next_decision_s
        )

    def _compute_key(self, rows: Ints, instance: Instance) -> Floats:
        if self.order == "fifo":
            return rows.astype(np.float64)
        return instance.due_s if self.order == "edf" else -instance.late_per_s

    def _assign(self, problem: SnapshotInstance, ranks: Ints, order: Ints) -> tuple[Ints, Ints]:
        """Return configuration and node of each job.

        Running jobs go on; the others in turn, each on the node with the fewest free GPUs that suffice.
        """
        instance = problem.instance
        config, node = problem.config.copy(), problem.node.copy()
        free = [np.full(int(n), g) for n, g in zip(instance.node_counts, instance.gpus.tolist(), strict=True)]
        for job in np.flatnonzero(config != POSTPONED).tolist():
            free[instance.config_node_type[config[job]]][node[job]] -= instance.config_gpus[config[job]]
        for job in order[config[order] == POSTPONED].tolist():
            for c in ranks[job, : 1 if self.exclusive else None].tolist():
                if c < 0:
                    break
                node_type, need = instance.config_node_type[c], instance.config_gpus[c]
                room = free[node_type]
                fits = np.flatnonzero(room >= (instance.gpus[node_type] if self.exclusive else need))
                if len(fits):
                    config[job], node[job] = c, fits[np.argmin(room[fits])]
                    room[node[job]] -= need
                    break
        return config, node
