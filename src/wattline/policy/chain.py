"""Composition: stages rewrite a plan, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from wattline.errors import ConfigError
from wattline.types import Floats, Models, Plan, Snapshot


class Stage(Protocol):
    """Rewrites a plan; without one it starts from what everyone asked, and so is a policy too."""

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """The new plan."""
        ...


def asked(snapshot: Snapshot) -> Plan:
    """The plan every chain starts from: everyone, in order of submission, gets what they asked."""
    rows = np.arange(len(snapshot.queue), dtype=np.int64)
    return Plan(row=rows, gpus=snapshot.queue.gpus, group=rows, lasts=True)


def ranked(
    snapshot: Snapshot, plan: Plan | None, key: Floats, *, keeps: bool = False, tick_s: float = np.inf
) -> Plan:
    """*plan* with the smallest *key* (one per row of the queue) first; ties stay in order."""
    plan = asked(snapshot) if plan is None else plan
    order = np.argsort(key[plan.row], kind="stable")
    return Plan(
        row=plan.row[order],
        gpus=plan.gpus[order],
        group=plan.group[order],
        keeps=keeps,
        tick_s=min(plan.tick_s, tick_s),
        lasts=plan.lasts,
    )


@dataclass(frozen=True)
class Chain:
    """A policy made of stages; prints itself as it is written on the command line."""

    stages: tuple[Stage, ...]

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
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
