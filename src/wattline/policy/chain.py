"""Composition: stages rewrite a plan, one after the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.queue import ACCEPTS, ASKED
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError
from wattline.jit import B1, F2, I1, inner, kernel


class Stage(Protocol):
    """Rewrites a plan; without one it starts from what everyone asked, and so is a policy too."""

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """The new plan."""
        ...


def asked(snapshot: Snapshot) -> Plan:
    """The plan every chain starts from: everyone, in order of submission, gets what they asked."""
    rows = np.arange(len(snapshot.queue), dtype=np.int64)
    return Plan(row=rows, gpus=snapshot.queue.gpus, group=rows, lasts=True)


def all_fit(snapshot: Snapshot) -> bool:
    """Whether everybody can run at once, so that who goes first makes no difference.

    Policies whose ranks cost something look here first: on most clusters it is true most of the time.
    """
    if len(snapshot.nodes.kind.names) > 1:
        return False
    return bool(snapshot.queue.block[ASKED].sum() <= snapshot.nodes.gpus[snapshot.usable].sum())


def ranked(
    snapshot: Snapshot, plan: Plan | None, key: Floats, *, keeps: bool = False, tick_s: float = math.inf
) -> Plan:
    """*plan* with the smallest *key* (one per row of the queue) first; ties stay in order."""
    plan = asked(snapshot) if plan is None else plan
    return in_order(plan, np.argsort(key[plan.row], kind="stable"), keeps=keeps, tick_s=tick_s)


def in_order(plan: Plan, order: Ints, *, keeps: bool = False, tick_s: float = math.inf) -> Plan:
    """*plan* with its entries in this order."""
    return Plan(
        row=plan.row[order],
        gpus=plan.gpus[order],
        group=plan.group[order],
        keeps=keeps,
        tick_s=min(plan.tick_s, tick_s),
        lasts=plan.lasts,
        cap_w=None if plan.cap_w is None else plan.cap_w[order],
        batch=None if plan.batch is None else plan.batch[order],
        reason=plan.reason,
        meters=plan.meters,
        host=None if plan.host is None else np.take(plan.host, order, axis=1),
        kind=None if plan.kind is None else plan.kind[order],
        node=None if plan.node is None else plan.node[order],
        gap=plan.gap,
    )


def likely(snapshot: Snapshot, plan: Plan) -> tuple[Bools, Bools, bool]:
    """Which rows of the plan will run and which will wait if the number of GPUs is all that counts.

    Also whether that is certain: it is when the first of the plan take every GPU of a cluster of one
    kind, so that nobody can overtake; else those who fit behind may run too. Who asks for more than
    the cluster has does neither. Policies that rank by what changes with time say by this when they
    want to be asked again.
    """
    nodes, block = snapshot.nodes, snapshot.queue.block
    fate, filled = _walk(
        plan.row, plan.gpus, plan.group, block, nodes.kind.codes, nodes.gpus, snapshot.usable
    )
    runs = fate == 1
    return runs, fate == 2, filled and bool(runs.any()) and len(nodes.kind.names) == 1


@inner
def walk(
    plan_row: Ints,
    plan_gpus: Ints,
    plan_group: Ints,
    block: Floats,
    node_kind: Ints,
    node_gpus: Ints,
    up: Bools,
) -> tuple[Ints, bool]:
    """For each entry 0 can never run, 1 runs, 2 waits; and whether the first to wait finds nothing left."""
    room = np.zeros(64, dtype=np.int64)
    total = np.zeros(64, dtype=np.int64)
    for n in range(len(node_gpus)):
        total[node_kind[n]] += node_gpus[n]
        if up[n]:
            room[node_kind[n]] += node_gpus[n]
    fate = np.zeros(len(plan_row), dtype=np.int64)
    filled = True
    waiting = False
    for p in range(len(plan_row)):
        accepts = int(block[ACCEPTS, plan_row[p]])
        for k in range(64):
            if total[k] >= plan_gpus[p] and (accepts >> k) & 1:
                fate[p] = max(fate[p], 2)
                if room[k] >= plan_gpus[p] or plan_group[p] != plan_row[p]:
                    fate[p] = 1
                    if plan_group[p] == plan_row[p]:
                        room[k] -= plan_gpus[p]
                    break
        if fate[p] == 2 and not waiting:
            waiting = True
            filled = room.sum() == 0
    return fate, filled


@kernel(I1, I1, I1, F2, I1, I1, B1)
def _walk(
    plan_row: Ints,
    plan_gpus: Ints,
    plan_group: Ints,
    block: Floats,
    node_kind: Ints,
    node_gpus: Ints,
    up: Bools,
) -> tuple[Ints, bool]:
    return walk(plan_row, plan_gpus, plan_group, block, node_kind, node_gpus, up)


def asking_again(plan: Plan, tick_s: float) -> Plan:
    """*plan*, with a wish to be asked at *tick_s* at the latest."""
    if tick_s >= plan.tick_s:
        return plan
    # Twice as fast as `replace`, and in every round.
    return Plan(
        plan.row,
        plan.gpus,
        plan.group,
        plan.keeps,
        tick_s,
        plan.lasts,
        plan.cap_w,
        plan.batch,
        plan.reason,
        plan.meters,
        plan.host,
        plan.kind,
        plan.node,
        plan.gap,
    )


@dataclass(frozen=True)
class Chain:
    """A policy made of stages; prints itself as it is written on the command line."""

    stages: tuple[Stage, ...]

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """The plan; see `wattline.policy.chain.Stage`."""
        for stage in self.stages:
            plan = stage(snapshot, models, plan)
        return asked(snapshot) if plan is None else plan

    def __str__(self) -> str:
        return "+".join(spell(stage) for stage in self.stages)


def chain(*stages: Stage) -> Chain:
    """The policy that lets each stage rewrite the plan of those before it."""
    if not stages:
        raise ConfigError("chain needs at least one stage")
    return Chain(stages)


def spell(policy: object) -> str:
    """How a policy, a stage or a placer writes itself in logs and tables."""
    return str(getattr(policy, "__name__", policy))
