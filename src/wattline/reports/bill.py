"""What a run cost: energy at its price, and being late."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wattline.core.events import ARRIVED, METERED
from wattline.core.table import Floats
from wattline.energy.prices import Price
from wattline.loop.runlog import Log
from wattline.models.cost import tardiness_cost
from wattline.reports.data.job_outcomes import Fates
from wattline.reports.data.timeline import Timeline


@dataclass(frozen=True)
class Money:
    """In the unit of the prices that were given; nan where no price was."""

    energy: float
    tardiness: float
    price: str

    @property
    def total(self) -> float:
        """All of it."""
        return self.energy + self.tardiness


def money(log: Log, jobs: Fates, line: Timeline, total_j: float) -> Money:
    """What the joules and the late jobs of *log* cost; *total_j* is what was used."""
    over_s = np.where(np.isnan(jobs.end_s), log.end_s, jobs.end_s)
    late = float(tardiness_cost(over_s, jobs.deadline_s, jobs.late_per_h / 3600).sum())
    words = log.header.get("price")
    if words is None:
        return Money(math.nan, late, "")
    price = Price.of(words)
    if not price.changes:
        return Money(total_j * price.at(0.0)[0], late, str(price))
    at_s, energy_j = _used(log, line)
    return Money(price.cost(at_s, energy_j) if len(at_s) else math.nan, late, str(price))


def _used(log: Log, line: Timeline) -> tuple[Floats, Floats]:
    """Moments, and the joules that the cluster had used by each: what was read, or of a simulated cluster
    what it drew."""
    verb, who, at_s = log.events[:, 0], log.events[:, 1], log.events[:, 2]
    readings = (verb == METERED) & (who < 0)
    first_s = at_s[verb == ARRIVED].min(initial=math.inf)
    last_s = at_s[readings].max(initial=-math.inf)
    if not readings.any():
        return np.empty(0), np.empty(0)
    if log.header.get("backend") != "sim" or not first_s < last_s:
        return np.append(min(first_s, last_s), at_s[readings]), np.append(0.0, log.events[readings, 5])
    edges_s = np.concatenate(([first_s], line.at_s[(line.at_s > first_s) & (line.at_s < last_s)], [last_s]))
    row = np.searchsorted(line.at_s, edges_s[:-1], side="right") - 1
    return edges_s, np.append(0.0, np.cumsum(line.power_w[row] * np.diff(edges_s)))
