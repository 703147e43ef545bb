"""The policy of the service under its budgets, and the bounds of power caps that follow from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from wattline.core.protocols import Policy
from wattline.core.quotas import NO_QUOTAS, Quotas
from wattline.energy.budgets import parse_budget
from wattline.errors import ConfigError
from wattline.policy.knobs import build_budget_error, get_knob, has_knob, insert_quota, set_knob
from wattline.policy.parser import parse_policy

DEFAULT_POLICY = "priority+fairshare+market:energy_price=1e-3"
"""The policy `auto`, with and without budgets. A second is worth 1 kJ: at light load jobs are capped where
that slows them down little, and in a queue, where a GPU is worth more, not."""
ETA_POLICY = "priority+fairshare+powerflow+fuse"
"""The policy `auto` with a budget of eta, which only powerflow knows."""


def build_policy(
    text: str, budgets: Sequence[str], overshoot: float | None, set_s: float, quotas: Quotas = NO_QUOTAS
) -> Policy:
    """Return the policy *text* under budgets set at *set_s*; raise `ConfigError` if it cannot hold them.

    With quotas that limit a user or team, the stage `quota` is part of it.

    Meters are late, so the sum of power caps is bounded by budgets of watts, too: by *overshoot* times their
    amount, or if that is None by the policy's own knob, else by the amount itself.
    """
    parsed = [parse_budget(budget) for budget in budgets]
    if text == "auto":
        text = ETA_POLICY if any(budget.unit == "eta" for budget in parsed) else DEFAULT_POLICY
    policy = parse_policy(text)
    if quotas.limits:
        policy = insert_quota(policy)
    if not budgets:
        return policy
    if not has_knob(policy, "budgets"):
        raise build_budget_error(text, "wattline serve")
    # A horizon is a time of day here: it counts from when the budgets were set.
    policy = set_knob(
        policy, "budgets", tuple(replace(budget, horizon_s=set_s + budget.horizon_s) for budget in parsed)
    )
    if not any(budget.is_power for budget in parsed):
        return policy
    if not has_knob(policy, "overshoot"):
        raise ConfigError(
            f"{text} cannot bound the sum of power caps, which a budget of watts needs",
            f"wattline serve --policy {DEFAULT_POLICY}",
        )
    own = float(get_knob(policy, "overshoot"))
    return set_knob(policy, "overshoot", overshoot or (own if math.isfinite(own) else 1.0))


def check_metered(budgets: Sequence[str], method: str) -> None:
    """Raise `ConfigError` for a budget of energy if energy is not measured."""
    for text in budgets:
        budget = parse_budget(text)
        if method == "unmetered" and not budget.is_power and budget.unit != "eta":
            raise ConfigError(
                f"budget {text!r} cannot be held: the energy of these GPUs is not metered",
                "expected a budget of watts, as in 12kW",
            )


def read_overshoot(policy: Policy) -> float | None:
    """Return the bound of the sum of power caps, as a multiple of each budget of watts; None: none."""
    value = float(get_knob(policy, "overshoot")) if has_knob(policy, "overshoot") else math.inf
    return value if math.isfinite(value) else None


def bound_caps(policy: Policy, budgets: Sequence[str]) -> dict[str, float]:
    """Return the bound of the sum of power caps by team, and under "" that of the whole cluster."""
    overshoot, watts = read_overshoot(policy), dict[str, float]()
    for budget in map(parse_budget, budgets):
        if budget.is_power and overshoot is not None:
            watts[budget.team] = min(overshoot * budget.amount, watts.get(budget.team, math.inf))
    return watts
