"""Offer of one job in a policy that may have other stages beside the market."""

from __future__ import annotations

from wattline.core.plan import Plan
from wattline.core.protocols import Models, Policy
from wattline.core.snapshot import Snapshot
from wattline.policy.chain import Chain
from wattline.policy.market.explanation import MarketExplanation
from wattline.policy.market.policy import Market


def explain_offer(policy: Policy, snapshot: Snapshot, models: Models, row: int) -> MarketExplanation | None:
    """Return the prices and the offer of one row of the queue; None: *policy* does not decide by prices.

    Stages before the market choose the jobs that take part, so they decide first.
    """
    if isinstance(policy, Market):
        return policy.explain(snapshot, models, None, row)
    if not isinstance(policy, Chain) or not any(isinstance(stage, Market) for stage in policy.stages):
        return None
    plan: Plan | None = None
    for stage in policy.stages:
        if isinstance(stage, Market):
            return stage.explain(snapshot, models, plan, row)
        plan = stage(snapshot, models, plan)
    return None
