"""MarketChoice at given prices of energy: prices of GPUs, and whole GPUs for whole jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.policy.budget_limits import BudgetLimits, find_always_on
from wattline.policy.market.arrays import count_members
from wattline.policy.market.gap import compute_bound
from wattline.policy.market.nodes_on import choose_nodes
from wattline.policy.market.prices import Prices, clear
from wattline.policy.market.response import MarketRows
from wattline.policy.market.rounding import NowRows, compute_worth
from wattline.policy.market.scene import Scene
from wattline.policy.market.time_values import TimeValues
from wattline.policy.market.watt_profile import FLAT, WattProfile

_PAUSE = 0.1  # of a job's weight: the mean time of its work undervalues that a job ends


@dataclass(frozen=True, eq=False, slots=True)
class MarketTerms:
    """Prices of time and energy, and limits, that a decision is made under."""

    times: TimeValues
    price_at: Callable[[Floats], Floats]  # of a joule, so many seconds from now
    limits: BudgetLimits
    horizon_s: float
    keeps_busy: bool  # GPUs are never all idle while a job waits
    profile: WattProfile = FLAT  # prices of budgets over time


class MarketChoice(NamedTuple):
    """A decision before budgets are held job by job."""

    prices: Prices
    now: NowRows
    worth: Floats
    none: Floats
    kind: Ints
    size: Ints
    cap: Ints
    caps: Ints
    order: Ints
    gap: float
    bound: float
    node_price: float  # of a watt of a node for a second, that every job pays for; 0: nodes stay on


def choose(
    snapshot: Snapshot,
    scene: Scene,
    terms: MarketTerms,
    first: Ints,
    factor: Floats,
    extra: Floats,
    start: Prices | None,
) -> MarketChoice:
    """Return the choice at the prices of *terms*, and *extra* (by row) for every joule."""
    prices = find_prices(scene, terms, extra, start)
    per_j = float(terms.price_at(np.zeros(1))[0])
    per_w = per_j + float(extra[scene.open_to > 0].min())  # what every job pays for: nodes
    now = NowRows(
        scene.job_class,
        scene.open_to,
        scene.work_s,
        prices.work_value,
        scene.held,
        scene.held_kind,
        scene.restart_s,
        scene.protected.astype(np.int64),
        scene.most_gpus,
        per_j + extra,
        factor,
        np.asarray(find_pause(scene, terms.times) * count_members(scene), dtype=np.float64),
    )
    worth, caps, none = compute_worth(now, scene.sizes, scene.room, terms.horizon_s)
    gpu_price = np.ascontiguousarray(prices.gpu[:, 0])
    # Where nodes stay on without jobs, their draw is no reason to leave a job waiting, or to move it.
    node_price = 0.0 if find_always_on(snapshot).any() else per_w
    found = choose_nodes(
        scene, snapshot.nodes, now, first, worth, none, gpu_price, per_w, node_price, terms.keeps_busy
    )
    kind, size = found.kind, found.size
    if terms.keeps_busy and (kind < 0).all():
        row, k, s = np.unravel_index(int(np.argmax(worth)), worth.shape)  # GPUs are never all idle
        kind[row], size[row] = k, s
    bound = compute_bound(now, scene.sizes, found.on, found.worth, none, gpu_price)
    gap = max(0.0, (bound - found.total) / abs(found.total)) if found.total else 0.0
    at = np.arange(len(kind))
    cap = np.where(kind >= 0, caps[at, np.maximum(kind, 0), np.maximum(size, 0)], -1)
    order = _order_by_worth(scene, found.worth, none, kind, size, first)
    return MarketChoice(prices, now, worth, none, kind, size, cap, caps, order, gap, bound, node_price)


def find_prices(scene: Scene, terms: MarketTerms, extra: Floats, start: Prices | None) -> Prices:
    """Return the prices at which the market clears, with *extra* (by row) for every joule."""
    times = terms.times
    # Jobs of one class that pay different prices of energy are classes of their own.
    level, paid = np.unique(extra, return_inverse=True)
    key, group = np.unique(scene.job_class * len(level) + paid.reshape(-1), return_inverse=True)
    code, own = key // len(level), level[key % len(level)]
    group = np.where(scene.open_to > 0, group.reshape(-1), -1)
    accepts = np.zeros(len(code), dtype=np.int64)
    accepts[group[group >= 0]] = scene.open_to[group >= 0]
    rows = MarketRows(scene.work_s, times.weight, times.late, times.due_s, group)
    pause = np.asarray(find_pause(scene, times) * (code // scene.alone_classes + 1), dtype=np.float64)
    return clear(
        rows,
        scene.columns,
        code,
        accepts,
        scene.room,
        pause,
        own,
        terms.price_at,
        terms.profile,
        start,
    )


def find_pause(scene: Scene, times: TimeValues) -> float:
    """Return h for a job that runs alone: a part of the mean weight of jobs."""
    is_open = scene.open_to > 0
    return _PAUSE * float(times.weight[is_open].sum() / count_members(scene, is_open).sum())


def _order_by_worth(scene: Scene, worth: Floats, none: Floats, kind: Ints, size: Ints, first: Ints) -> Ints:
    """Return the rows with GPUs: those of *first*, then by what their GPUs are worth each."""
    gpus = np.maximum(scene.count_gpus(kind, size), 1)
    at = np.arange(len(kind))
    each = (worth[at, np.maximum(kind, 0), np.maximum(size, 0)] - none) / gpus
    rank = np.full(len(kind), len(kind), dtype=np.int64)
    rank[first] = np.arange(len(first))
    order = np.lexsort((-each, rank))
    return np.ascontiguousarray(order[kind[order] >= 0])
