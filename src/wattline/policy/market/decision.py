"""One decision: fused arrays, prices, whole GPUs, budgets, and why each job waits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from wattline.core.protocols import Models
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.policy.market.arrays import (
    compute_factors,
    find_families,
    find_running_arrays,
    form_arrays,
    merge_arrays,
    replace_by_leaders,
)
from wattline.policy.market.budget_price import find_budget_prices, hold_limits
from wattline.policy.market.budgets import build_power_table, mark_unaffordable
from wattline.policy.market.choice import MarketChoice, MarketTerms, choose, find_pause, find_prices
from wattline.policy.market.host_caps import lower_caps
from wattline.policy.market.nodes_on import compute_move_costs
from wattline.policy.market.prices import Prices
from wattline.policy.market.rounding import NEVER
from wattline.policy.market.scene import Scene
from wattline.policy.market.watt_profile import build_profile

_HELD, _NO_ROOM, _OUTRANKED, _OVER_BUDGET = (
    REASONS.index(reason) for reason in (Reason.HELD, Reason.NO_ROOM, Reason.OUTRANKED, Reason.OVER_BUDGET)
)


@dataclass(frozen=True, eq=False, slots=True)
class MarketDecision:
    """Kind, size and cap of each row of the queue (-1: none), and how it came about."""

    kind: Ints
    size: Ints
    cap: Ints
    reason: Ints
    prices: Prices | None
    energy_price: float  # of a joule now, budgets included
    budget_price: float  # of a joule, because of budgets; the highest of all teams
    gap: float
    bound: float  # the most that any allocation of these GPUs is worth per second
    worth: Floats  # by row, kind and size, per second; -inf: not open to it
    offer: Floats  # by row: the most that a GPU-second is worth to it; nan: nothing is open to it
    scene: Scene  # with the arrays that were formed
    move_cost: Floats | None  # by row, see `Plan.move_cost`


def decide(
    snapshot: Snapshot, models: Models, scene: Scene, terms: MarketTerms, overdue: Ints
) -> MarketDecision:
    """Return the decision; the rows *overdue* get GPUs first."""
    if not (scene.open_to > 0).any():
        return _decide_nothing(scene, terms)
    found = _solve_with_arrays(snapshot, scene, terms, overdue)
    scene, terms, choice = found.scene, found.terms, found.choice
    kind, size, cap = choice.kind, choice.size, choice.cap
    limits, breaks = terms.limits, None
    if len(limits.amount):
        kind, size, cap, breaks = hold_limits(snapshot, scene, terms, found.factor, choice, found.free)
    reason = _find_reasons(scene, kind, size, len(limits.amount) > 0)
    if breaks is not None:
        reason[breaks] = _OVER_BUDGET
        table = build_power_table(scene, snapshot)[0]
        mark_unaffordable(snapshot, scene, limits, table, found.factor, reason)
    cap = lower_caps(snapshot, models, scene, choice.now, kind, size, cap)
    worth = np.where(choice.worth > NEVER, choice.worth, -math.inf)
    budget_price = float(found.extra[scene.open_to > 0].max())
    return MarketDecision(
        kind=kind,
        size=size,
        cap=cap,
        reason=reason[scene.leader],
        prices=choice.prices,
        energy_price=float(terms.price_at(np.zeros(1))[0]) + budget_price,
        budget_price=budget_price,
        gap=choice.gap,
        bound=choice.bound,
        worth=worth,
        offer=_compute_offers(scene, worth),
        scene=scene,
        move_cost=compute_move_costs(snapshot.nodes, scene, choice.now, choice.node_price, kind, size, cap),
    )


def _decide_nothing(scene: Scene, terms: MarketTerms) -> MarketDecision:
    """Return the decision if no GPU is open to any row."""
    count = len(scene.work_s)
    none = np.full(count, -1, dtype=np.int64)
    return MarketDecision(
        kind=none,
        size=none.copy(),
        cap=none.copy(),
        reason=np.where(scene.outranked, _OUTRANKED, _NO_ROOM),
        prices=None,
        energy_price=float(terms.price_at(np.zeros(1))[0]),
        budget_price=0.0,
        gap=math.nan,
        bound=math.nan,
        worth=np.full((count, scene.kinds, 1), -math.inf),
        offer=np.full(count, math.nan),
        scene=scene,
        move_cost=None,
    )


class _Solution(NamedTuple):
    """A choice on a scene with its arrays, with and without a price for budgets."""

    scene: Scene
    terms: MarketTerms
    factor: Floats
    choice: MarketChoice
    extra: Floats  # price of a joule because of budgets, by row
    free: MarketChoice


def _solve_with_arrays(snapshot: Snapshot, scene: Scene, terms: MarketTerms, overdue: Ints) -> _Solution:
    """Return the choice after jobs that wait have formed arrays, if that costs them less at its prices."""
    running = find_running_arrays(snapshot) if scene.alone_classes < scene.classes else scene.leader
    merged, times = merge_arrays(scene, terms.times, running)
    merged_terms = replace(terms, times=times)
    families = find_families(snapshot, merged)
    if families:
        if len(terms.limits.amount):
            found = _solve(snapshot, merged, merged_terms, overdue, None)
            prices, extra = found.choice.prices, found.extra
        else:
            extra = np.zeros(len(merged.work_s))
            prices = find_prices(merged, merged_terms, extra, None)
        leader = form_arrays(merged, times, families, prices, find_pause(merged, times), extra)
        if not np.array_equal(leader, merged.leader):
            fused, times = merge_arrays(scene, terms.times, leader)
            return _solve(snapshot, fused, replace(terms, times=times), overdue, prices)
        if len(terms.limits.amount):
            return found
        return _solve(snapshot, merged, merged_terms, overdue, prices)
    return _solve(snapshot, merged, merged_terms, overdue, None)


def _solve(
    snapshot: Snapshot, scene: Scene, terms: MarketTerms, overdue: Ints, start: Prices | None
) -> _Solution:
    """Return the choice at the least price of a joule at which all limits hold, and that without limits."""
    first = np.concatenate((np.flatnonzero(scene.protected), overdue[~scene.protected[overdue]]))
    first = replace_by_leaders(scene.leader, first)
    first = first[scene.open_to[first] > 0]
    factor = np.ones(len(scene.work_s))
    if len(terms.limits.amount):
        factor = compute_factors(snapshot, scene)
        terms = replace(terms, profile=build_profile(snapshot, scene, terms.times, terms.limits))
    extra = np.zeros(len(scene.work_s))
    free = choice = choose(snapshot, scene, terms, first, factor, extra, start)
    if len(terms.limits.amount):
        choice, extra = find_budget_prices(snapshot, scene, terms, first, factor, free)
    return _Solution(scene, terms, factor, choice, extra, free)


def _find_reasons(scene: Scene, kind: Ints, size: Ints, is_limited: bool) -> Ints:
    """Return why each row has no GPUs: none fit, others pay more, or its price is too high."""
    free = scene.room - np.bincount(np.maximum(kind, 0), scene.count_gpus(kind, size), scene.kinds).astype(
        np.int64
    )
    # What protected jobs hold cannot go to others, whatever these offer.
    held = np.bincount(scene.held_kind[scene.protected], scene.held[scene.protected], scene.kinds)
    fits, has_room = np.zeros(len(kind), dtype=np.bool_), np.zeros(len(kind), dtype=np.bool_)
    for k in range(scene.kinds):
        least = scene.configs.gpus[scene.job_class + k * scene.classes, 0]
        is_open = (scene.open_to >> k) & 1 == 1
        fits |= is_open & (least <= free[k])
        has_room |= is_open & (least <= scene.room[k] - held[k])
    reason = np.where(has_room, _OUTRANKED, _NO_ROOM)
    reason[fits] = _OVER_BUDGET if is_limited else _HELD
    reason[kind >= 0] = 0
    return reason


def _compute_offers(scene: Scene, worth: Floats) -> Floats:
    """Return the most that a GPU-second is worth to each row; nan: nothing is open to it."""
    by_kind = scene.job_class[:, None] + np.arange(scene.kinds) * scene.classes
    best = (worth / scene.configs.gpus[by_kind]).reshape(len(worth), -1).max(axis=1, initial=-math.inf)
    return np.where(np.isfinite(best), best, math.nan)
