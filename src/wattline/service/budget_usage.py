"""Use of the budgets in force: what was used, what is left, and when it is exhausted at the present rate.

The policy reads the meter when it decides. From its last reading to now the power samples of the GPUs count,
which are stored every 10 s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

from wattline.energy.budgets import DAY_S, Budget, parse_budget
from wattline.energy.time_series import KWH_J
from wattline.service.storage.queries import StoreReader
from wattline.service.view import ControllerView

RATE_WINDOW_S = 900.0
"""The present rate is the mean power over this time."""
_FRESH_S = 60.0  # age up to which a power sample is the present power
_ALL_TEAMS = "*"


@dataclass(frozen=True)
class BudgetUsage:
    """Use of one budget. Units are joules, or watts for budgets of power; None: unknown or not applicable."""

    budget: str  # as `parse_budget` reads it
    team: str  # empty: the whole cluster
    unit: str  # J, W or eta
    limit: float
    used: float | None
    left: float | None
    rate_w: float | None  # mean power over `RATE_WINDOW_S`
    resets_s: float | None  # when used energy counts from 0 again; None: never
    exhausted_s: float | None  # when nothing is left at this rate; None: not before it resets, or unknown
    as_of_s: float | None  # time of the last reading

    @property
    def ratio(self) -> float | None:
        """Used over limit; None: unknown."""
        if self.used is None or self.limit <= 0:
            return None
        return self.used / self.limit


class _TeamPower(NamedTuple):
    """Power of a team, or of the cluster; the mean since the sample before."""

    at_s: float
    power_w: float


def read_budget_usage(store: StoreReader, view: ControllerView) -> list[BudgetUsage]:
    """Return the use of all budgets, in their order."""
    if not view.budgets:
        return []
    now_s = view.clock()
    set_s = float(store.setting("budgets_s") or now_s)
    return [_measure(store, view, parse_budget(text), text, now_s, set_s) for text in view.budgets]


def _measure(
    store: StoreReader, view: ControllerView, budget: Budget, text: str, now_s: float, set_s: float
) -> BudgetUsage:
    if budget.unit == "eta":
        return BudgetUsage(text, budget.team, "eta", budget.amount, None, None, None, None, None, None)
    resets_s, since_s, limit = None, set_s, budget.amount
    if budget.unit == "kwh_per_day":
        day_s = math.floor(now_s / DAY_S) * DAY_S
        since_s, resets_s, limit = max(set_s, day_s), day_s + DAY_S, budget.amount * KWH_J
    if budget.over_time is not None:
        limit, until_s = budget.over_time.at(now_s)
        resets_s = until_s if math.isfinite(until_s) else None
    unit = "W" if budget.is_power else "J"
    if view.energy_method == "unmetered":
        return BudgetUsage(text, budget.team, unit, limit, None, None, None, resets_s, None, None)
    readings = _read_meter(store, budget.team, set_s, since_s)
    samples = _read_power(store, budget.team, min(now_s - RATE_WINDOW_S, readings[-1][0]))
    recent = [one for one in samples if one.at_s > now_s - RATE_WINDOW_S]
    rate_w = _mean_power_w(recent)
    if budget.is_power:
        fresh = [one for one in recent if one.at_s >= now_s - _FRESH_S]
        used = fresh[-1].power_w if fresh else None
        left = None if used is None else limit - used
        as_of_s = fresh[-1].at_s if fresh else None
        return BudgetUsage(text, budget.team, unit, limit, used, left, rate_w, resets_s, None, as_of_s)
    curve = _extend(readings, samples)
    used_j = curve[-1][1] - _joules_at(curve, since_s)
    left_j, as_of_s = limit - used_j, curve[-1][0]
    exhausted_s: float | None = None
    if left_j <= 0:
        exhausted_s = as_of_s
    elif rate_w:
        at_s = as_of_s + left_j / rate_w
        exhausted_s = at_s if resets_s is None or at_s < resets_s else None
    return BudgetUsage(text, budget.team, unit, limit, used_j, left_j, rate_w, resets_s, exhausted_s, as_of_s)


def _read_meter(store: StoreReader, team: str, set_s: float, since_s: float) -> list[tuple[float, float]]:
    """Return time and joules of the meter: when the budgets were set, around *since_s*, and at last."""
    name = team or _ALL_TEAMS
    found = store.read_rows(
        "SELECT at_s, joules FROM meter WHERE team = ?1"
        " AND (at_s = (SELECT max(at_s) FROM meter WHERE team = ?1)"
        " OR at_s = (SELECT max(at_s) FROM meter WHERE team = ?1 AND at_s <= ?2)"
        " OR at_s = (SELECT min(at_s) FROM meter WHERE team = ?1 AND at_s > ?2)) ORDER BY at_s, joules",
        (name, since_s),
    )
    readings = [(float(at_s), float(joules)) for at_s, joules in found]
    return [(min(set_s, readings[0][0]) if readings else set_s, 0.0), *readings]


def _read_power(store: StoreReader, team: str, since_s: float) -> list[_TeamPower]:
    """Return the power of a team after a time; the watts of a shared GPU are divided among its jobs.

    Samples in which a GPU could not be read are left out.
    """
    rows = store.read_rows(
        "SELECT at_s, power_w, jobs FROM power_sample WHERE at_s > ? ORDER BY at_s", (since_s,)
    )
    own = {job for (job,) in store.read_rows("SELECT id FROM job WHERE team = ? AND starts > 0", (team,))}
    samples = []
    for at_s, gpus in groupby(rows, key=lambda row: row[0]):
        total_w: float | None = 0.0
        for _, power_w, names in gpus:
            jobs = names.split(",") if names else []
            share = 1.0 if not team else sum(job in own for job in jobs) / max(len(jobs), 1)
            if share and (power_w is None or total_w is None):
                total_w = None
            elif share and total_w is not None:
                total_w += share * power_w
        if total_w is not None:
            samples.append(_TeamPower(float(at_s), total_w))
    return samples


def _extend(
    readings: Sequence[tuple[float, float]], samples: Sequence[_TeamPower]
) -> list[tuple[float, float]]:
    """Return the readings, continued by the power samples after the last of them."""
    curve = list(readings)
    for sample in samples:
        at_s, joules = curve[-1]
        if sample.at_s > at_s:
            curve.append((sample.at_s, joules + sample.power_w * (sample.at_s - at_s)))
    return curve


def _joules_at(curve: Sequence[tuple[float, float]], at_s: float) -> float:
    """Return the joules at a time, interpolated."""
    for (before_s, before_j), (after_s, after_j) in pairwise(curve):
        if before_s <= at_s < after_s:
            return before_j + (after_j - before_j) * (at_s - before_s) / (after_s - before_s)
    return curve[0][1] if at_s <= curve[0][0] else curve[-1][1]


def _mean_power_w(samples: Sequence[_TeamPower]) -> float | None:
    """Return the mean power over time; None: there are no samples."""
    if len(samples) < 2:
        return samples[0].power_w if samples else None
    joules = sum(after.power_w * (after.at_s - before.at_s) for before, after in pairwise(samples))
    return joules / (samples[-1].at_s - samples[0].at_s)
