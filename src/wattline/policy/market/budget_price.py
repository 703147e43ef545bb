"""Prices of budgets: the least ones of a joule at which they hold, then a check of every single job."""

from __future__ import annotations

import math

import numpy as np

from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.policy.budget_limits import JOULES, compute_idle_w
from wattline.policy.elastic.budget_allocation import LimitArrays
from wattline.policy.market.budgets import Wanted, admit_within, build_power_table, find_forced, raise_caps
from wattline.policy.market.choice import MarketChoice, MarketTerms, choose
from wattline.policy.market.rounding import NEVER
from wattline.policy.market.scene import Scene

_CLUSTER = -1  # in the place of a team
_RISES, _HALVINGS = 7, 4  # steps of the search for the price of a budget
_RISE = 5.0
_CLOSE = 1.02  # times a limit is close enough: the rest is settled job by job
_JOULE_MARGIN = 1.05  # a job that runs must never be stopped because others were too hopeful


def find_budget_prices(
    snapshot: Snapshot, scene: Scene, terms: MarketTerms, first: Ints, factor: Floats, choice: MarketChoice
) -> tuple[MarketChoice, Floats]:
    """Return the choice at the least further prices of a joule at which limits hold, and the price by row.

    A team with limits of its own has a price of its own; then all jobs have one for those of the cluster.
    """
    team = snapshot.jobs.team.codes[snapshot.queue.job]
    extra = np.zeros(len(scene.work_s))
    for scope in (*np.unique(terms.limits.team[terms.limits.team >= 0]).tolist(), _CLUSTER):
        pays = np.ones(len(extra), dtype=np.bool_) if scope == _CLUSTER else team == scope
        choice, extra = _raise_price(snapshot, scene, terms, first, factor, choice, extra, scope, pays)
    return choice, extra


def _raise_price(
    snapshot: Snapshot,
    scene: Scene,
    terms: MarketTerms,
    first: Ints,
    factor: Floats,
    choice: MarketChoice,
    extra: Floats,
    scope: int,
    pays: Bools,
) -> tuple[MarketChoice, Floats]:
    """Return the choice if rows that it *pays* have the least price at which the limits of *scope* hold."""
    limits = terms.limits
    arrays = LimitArrays(limits.amount, limits.unit, limits.team)
    table, cluster = build_power_table(scene, snapshot)
    own = limits.team == scope if scope != _CLUSTER else limits.team < 0

    def measure(found: MarketChoice) -> float:
        """Return the largest part of a limit that is wanted."""
        wanted = _want(snapshot, scene, factor, found.order, found.kind, found.size, found.cap)
        used = admit_within(wanted, cluster, table, arrays, False)[3]
        is_total = (limits.unit == JOULES) & (limits.team < 0)
        used = np.where(is_total, np.maximum(used, found.prices.energy_j), used)
        used = np.where(limits.unit == JOULES, _JOULE_MARGIN * used, used)
        counts = own & (limits.amount > 0) & np.isfinite(limits.amount)
        return float((used / np.where(counts, limits.amount, 1.0))[counts].max(initial=0.0))

    def choose_at(price: float, start: MarketChoice) -> MarketChoice:
        return choose(snapshot, scene, terms, first, factor, extra + np.where(pays, price, 0.0), start.prices)

    if measure(choice) <= _CLOSE:
        return choice, extra
    low, best, price = 0.0, choice, 0.0
    weight = float((terms.times.weight + 0.1 * terms.times.late).mean())
    high = 0.01 * weight / float(snapshot.nodes.busy_w.max())  # 1 % of the time of a job that draws so much
    for _ in range(_RISES):
        best, price = choose_at(high, best), high
        if measure(best) <= _CLOSE:
            break
        low, high = high, _RISE * high
    else:
        return best, extra + np.where(pays, price, 0.0)
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high) if low > 0 else 0.5 * high
        found = choose_at(middle, best)
        if measure(found) <= _CLOSE:
            high, best, price = middle, found, middle
        else:
            low = middle
    return best, extra + np.where(pays, price, 0.0)


def hold_limits(
    snapshot: Snapshot,
    scene: Scene,
    terms: MarketTerms,
    factor: Floats,
    choice: MarketChoice,
    free: MarketChoice,
) -> tuple[Ints, Ints, Ints, Bools]:
    """Return kind, size and cap of each row so that no limit is broken, and rows for which one is.

    What the choice leaves of the limits goes to the rows that lose least by running at its prices, and what
    is left then to higher caps, where it pays.
    """
    limits = terms.limits
    arrays = LimitArrays(limits.amount, limits.unit, limits.team)
    table, cluster = build_power_table(scene, snapshot)
    kind, size, cap = choice.kind.copy(), choice.size.copy(), choice.cap.copy()
    rest = np.flatnonzero((kind < 0) & (scene.open_to > 0))
    rest = rest[np.argsort(_want_besides(scene, factor, choice, rest, kind, size, cap), kind="stable")]
    order = np.concatenate((choice.order, rest))
    if (limits.unit == JOULES).any():
        # What runs has its joules reserved, and where they are scarce the least.
        if choice is not free:
            cap = _find_cheapest_caps(scene, snapshot, kind, size)
        order = order[np.argsort(scene.held[order] == 0, kind="stable")]
    forced = find_forced(snapshot, scene)
    order = np.ascontiguousarray(order[np.argsort(~forced[order], kind="stable")])
    wanted = _want(snapshot, scene, factor, order, kind, size, cap)
    size, cap, breaks, used = admit_within(wanted, cluster, table, arrays, True)
    if np.isfinite(limits.max_ever_w).all():  # watts that are not used now are lost, unlike joules
        per_j = float(terms.price_at(np.zeros(1))[0])
        cap = raise_caps(wanted, table, arrays, size, cap, used, choice.now.work_value, per_j)
    return np.where(size >= 0, kind, -1), size, cap, breaks


def _want_besides(
    scene: Scene, factor: Floats, choice: MarketChoice, rows: Ints, kind: Ints, size: Ints, cap: Ints
) -> Floats:
    """Write the best way of running *rows*, which the choice leaves out; return what a watt loses by it."""
    _, kinds, sizes = choice.worth.shape
    worth = choice.worth[rows].reshape(len(rows), kinds * sizes)
    best = worth.argmax(axis=1)
    worth = worth[np.arange(len(rows)), best]
    kind[rows], size[rows] = np.divmod(best, sizes)
    cap[rows] = choice.caps[rows, kind[rows], size[rows]]
    drawn_w = scene.configs.watts[scene.find_class(kind[rows], rows), size[rows], cap[rows]] * factor[rows]
    none = worth <= NEVER  # what they have is not among the configurations
    kind[rows[none]], size[rows[none]], cap[rows[none]] = _find_first_kinds(scene.open_to[rows[none]]), 0, 0
    return np.where(none, math.inf, (choice.none[rows] - worth) / np.maximum(drawn_w, 1e-9))


def _want(
    snapshot: Snapshot, scene: Scene, factor: Floats, order: Ints, kind: Ints, size: Ints, cap: Ints
) -> Wanted:
    restarts = (scene.count_gpus(kind, size) != scene.held) | (kind != scene.held_kind)
    left_s = np.maximum(scene.work_s, 1.0)
    speed_factor = np.where(restarts, left_s / (left_s + scene.restart_s), 1.0)
    return Wanted(
        order,
        kind,
        np.maximum(size, 0),
        np.maximum(cap, 0),
        scene.find_class(kind),
        scene.work_s,
        speed_factor,
        factor,
        np.ascontiguousarray(snapshot.jobs.team.codes[snapshot.queue.job]),
        scene.protected.astype(np.int64),
        find_forced(snapshot, scene),
    )


def _find_cheapest_caps(scene: Scene, snapshot: Snapshot, kind: Ints, size: Ints) -> Ints:
    """Return the cap of each row with which it, and the nodes without jobs, need least energy in all."""
    configs, of, at = scene.configs, scene.find_class(kind), np.maximum(size, 0)
    idle_w = configs.idle_w[of] * configs.gpus[of, at]
    draw_w = configs.watts[of, at] - idle_w[:, None] + compute_idle_w(snapshot)
    speed = configs.speed[of, at]
    needs_j = np.where(speed > 0, draw_w / np.where(speed > 0, speed, 1.0), math.inf)
    return np.asarray(needs_j.argmin(axis=1))


def _find_first_kinds(open_to: Ints) -> Ints:
    """Return the first kind of each bit mask."""
    return np.array([(mask & -mask).bit_length() - 1 for mask in open_to.tolist()], dtype=np.int64)
