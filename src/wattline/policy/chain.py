"""Composition of policies: stages rewrite a plan, one after the other."""

from __future__ import annotations

import math
from dataclasses import dataclass, is_dataclass, replace
from typing import Protocol

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_ACCEPTED_KINDS, QUEUE_REQUESTED_GPUS
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError
from wattline.jit import B1, F1, F2, I1, inner, kernel
from wattline.knob_parser import format_knobs

NEVER, RUNS, WAITS = range(3)
"""Outcomes of `classify_entries`."""

_TYPED = ("wattline.policy.", "wattline.placement.", "wattline.papers.")  # modules of what users can type
_TYPED_DEFAULTS = {"backfill": "easy"}  # of every placer that is typed, whatever the default of its class


class Stage(Protocol):
    """Rewriting of a plan; without one it starts from `plan_as_requested`, so a stage is a policy too."""

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the new plan."""
        ...


def plan_as_requested(snapshot: Snapshot) -> Plan:
    """Return the plan that every chain starts from: all jobs in order of submission, as requested."""
    rows = np.arange(len(snapshot.queue), dtype=np.int64)
    return Plan(row=rows, gpus=snapshot.queue.requested_gpus, group=rows, stable=True)


def can_all_run(snapshot: Snapshot) -> bool:
    """Return whether all jobs of the queue can run at once, so that their order makes no difference.

    Policies with costly ranks ask this first: on most clusters it is true most of the time.
    """
    if len(snapshot.nodes.kind.names) > 1:
        return False
    return _fits_at_once(snapshot.queue.block, snapshot.nodes.gpus, snapshot.up, snapshot.boot_done_s)


@kernel(F2, I1, B1, F1)
def _fits_at_once(block: Floats, node_gpus: Ints, up: Bools, boot_done_s: Floats) -> bool:
    """Return whether the nodes that are up or can be switched on have all the GPUs that are requested."""
    room = 0.0
    for n in range(len(node_gpus)):
        if up[n] or boot_done_s[n] > -np.inf:
            room += node_gpus[n]
    requested = 0.0
    for i in range(block.shape[1]):
        requested += block[QUEUE_REQUESTED_GPUS, i]
    return requested <= room


def rank_rows(
    snapshot: Snapshot,
    plan: Plan | None,
    key: Floats,
    *,
    non_preemptive: bool = False,
    next_decision_s: float = math.inf,
) -> Plan:
    """Return *plan* with the smallest *key* (one per row of the queue) first; ties keep their order."""
    plan = plan_as_requested(snapshot) if plan is None else plan
    order = np.argsort(key[plan.row], kind="stable")
    return reorder(plan, order, non_preemptive=non_preemptive, next_decision_s=next_decision_s)


def reorder(
    plan: Plan, order: Ints, *, non_preemptive: bool = False, next_decision_s: float = math.inf
) -> Plan:
    """Return *plan* with its entries in this order."""
    next_s = min(plan.next_decision_s, next_decision_s)
    return plan.take(order, non_preemptive=non_preemptive, next_decision_s=next_s)


def keep_reasons(plan: Plan, rows: Ints, reason: Ints) -> Ints:
    """Return *reason* with the reasons of *plan* for jobs that an earlier stage has left out of *rows*."""
    if plan.reason is None:
        return reason
    out = np.ones(len(reason), dtype=np.bool_)
    out[rows] = False
    return np.where(out, plan.reason, reason)


def predict_running(snapshot: Snapshot, plan: Plan) -> tuple[Bools, Bools, bool]:
    """Return which entries of the plan will run, which will wait, and whether that is certain.

    Only the number of GPUs is looked at. It is certain when the first entries take every GPU of a cluster
    of one kind, so that no job can overtake; else jobs that fit behind them may run too. A job that
    requests more than the cluster has neither runs nor waits. Policies with ranks that change with time
    choose by this when they want to decide again.
    """
    nodes, block = snapshot.nodes, snapshot.queue.block
    outcome, filled = _classify_entries(
        plan.row, plan.gpus, plan.group, block, nodes.kind.codes, nodes.gpus, snapshot.usable
    )
    runs = outcome == RUNS
    return runs, outcome == WAITS, filled and bool(runs.any()) and len(nodes.kind.names) == 1


@inner
def classify_entries(
    plan_row: Ints,
    plan_gpus: Ints,
    plan_group: Ints,
    block: Floats,
    node_kind: Ints,
    node_gpus: Ints,
    up: Bools,
) -> tuple[Ints, bool]:
    """Return NEVER, RUNS or WAITS for each entry, and whether no GPU is left for the first that waits."""
    room = np.zeros(64, dtype=np.int64)
    total = np.zeros(64, dtype=np.int64)
    for n in range(len(node_gpus)):
        total[node_kind[n]] += node_gpus[n]
        if up[n]:
            room[node_kind[n]] += node_gpus[n]
    outcome = np.zeros(len(plan_row), dtype=np.int64)
    filled = True
    waiting = False
    for p in range(len(plan_row)):
        accepts = int(block[QUEUE_ACCEPTED_KINDS, plan_row[p]])
        for k in range(64):
            if total[k] >= plan_gpus[p] and (accepts >> k) & 1:
                outcome[p] = WAITS
                if room[k] >= plan_gpus[p] or plan_group[p] != plan_row[p]:
                    outcome[p] = RUNS
                    if plan_group[p] == plan_row[p]:
                        room[k] -= plan_gpus[p]
                    break
        if outcome[p] == WAITS and not waiting:
            waiting = True
            filled = room.sum() == 0
    return outcome, filled


@kernel(I1, I1, I1, F2, I1, I1, B1)
def _classify_entries(
    plan_row: Ints,
    plan_gpus: Ints,
    plan_group: Ints,
    block: Floats,
    node_kind: Ints,
    node_gpus: Ints,
    up: Bools,
) -> tuple[Ints, bool]:
    return classify_entries(plan_row, plan_gpus, plan_group, block, node_kind, node_gpus, up)


def decide_again(plan: Plan, at_s: float) -> Plan:
    """Return *plan* with its next decision at *at_s* at the latest."""
    if at_s >= plan.next_decision_s:
        return plan
    # Twice as fast as `replace`, and in every round.
    return Plan(
        plan.row,
        plan.gpus,
        plan.group,
        plan.non_preemptive,
        at_s,
        plan.stable,
        plan.cap_w,
        plan.batch,
        plan.reason,
        plan.needs_meter,
        plan.host,
        plan.kind,
        plan.node,
        plan.gap,
        plan.precedence,
        plan.note,
        plan.prices,
        plan.move_cost,
    )


@dataclass(frozen=True)
class Chain:
    """A policy made of stages; its text is what `--policy` accepts."""

    stages: tuple[Stage, ...]

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`."""
        for stage in self.stages:
            note = None if plan is None else plan.note
            plan = stage(snapshot, models, plan)
            if note is not None and plan.note is None:
                plan = replace(plan, note=note)
        return plan_as_requested(snapshot) if plan is None else plan

    @property
    def needs_usage(self) -> bool:
        """True if a stage reads `Snapshot.usage`."""
        return any(getattr(stage, "needs_usage", False) for stage in self.stages)

    def __str__(self) -> str:
        return "+".join(spell(stage) for stage in self.stages)


def chain(*stages: Stage) -> Chain:
    """Return the policy in which each stage rewrites the plan of those before it."""
    if not stages:
        raise ConfigError("chain got no stages, expected at least one")
    return Chain(stages)


def spell(decider: object) -> str:
    """Return the text of a policy, stage or placer as `--policy` and `--place` accept it.

    That is its name, and behind a `:` the knobs that differ from their defaults: `las:quantum=60s+keep`,
    `buddy+power:spare=8`. `parse_policy` and `parse_placer` are the inverse. Budgets are written as
    `--budget` accepts them, and a price is left out: both have options of their own. A class that is not
    part of Wattline is written as it writes itself.
    """
    name = getattr(decider, "__name__", None)
    if name is not None:
        return str(name).replace("_", "-") if _is_typed(decider) else str(name)
    if not is_dataclass(decider) or isinstance(decider, Chain) or not _is_typed(type(decider)):
        return str(decider)
    name = getattr(decider, "typed_name", type(decider).__name__.casefold())
    knobs = format_knobs(decider, _TYPED_DEFAULTS)
    inner_placer = getattr(decider, "place", None)
    before = "" if inner_placer is None else f"{spell(inner_placer)}+"
    return f"{before}{name}:{knobs}" if knobs else f"{before}{name}"


def _is_typed(thing: object) -> bool:
    return str(getattr(thing, "__module__", "")).startswith(_TYPED)
