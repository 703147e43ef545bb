"""Cost of a run: energy at its price, and tardiness."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wattline.core.events import ARRIVED, EVENT_AT_S, EVENT_ENERGY_J, EVENT_JOB, EVENT_VERB, METERED
from wattline.core.table import Floats
from wattline.energy.prices import Price
from wattline.loop.runlog import Log
from wattline.models.cost import tardiness_cost
from wattline.reports.data.job_outcomes import JobOutcomes
from wattline.reports.data.timeline import Timeline


@dataclass(frozen=True)
class Bill:
    """Cost in the currency of the price; nan = no price given."""

    energy: float
    tardiness: float
    price: str

    @property
    def total(self) -> float:
        """Cost of energy and tardiness."""
        return self.energy + self.tardiness


def compute_bill(log: Log, outcomes: JobOutcomes, timeline: Timeline, total_j: float) -> Bill:
    """Return the cost of *total_j*, the energy of the run, and of the late jobs of *log*."""
    end_s = np.where(np.isnan(outcomes.end_s), log.end_s, outcomes.end_s)
    late = float(tardiness_cost(end_s, outcomes.deadline_s, outcomes.late_per_h / 3600).sum())
    fields = log.header.get("price")
    if fields is None:
        return Bill(math.nan, late, "")
    price = Price.from_dict(fields)
    if not price.is_variable:
        return Bill(total_j * price.at(0.0)[0], late, str(price))
    at_s, energy_j = _list_energy_readings(log, timeline)
    return Bill(price.cost(at_s, energy_j) if len(at_s) else math.nan, late, str(price))


def _list_energy_readings(log: Log, timeline: Timeline) -> tuple[Floats, Floats]:
    """Return times and the cluster's energy in joules up to each: meter readings, or the power that a
    simulated cluster drew, integrated.
    """
    verb, subject = log.events[:, EVENT_VERB], log.events[:, EVENT_JOB]
    at_s, energy_j = log.events[:, EVENT_AT_S], log.events[:, EVENT_ENERGY_J]
    readings = (verb == METERED) & (subject < 0)  # readings of teams have subject >= 0
    first_s = at_s[verb == ARRIVED].min(initial=math.inf)
    last_s = at_s[readings].max(initial=-math.inf)
    if not readings.any():
        return np.empty(0), np.empty(0)
    if log.header.get("backend") != "sim" or not first_s < last_s:
        return np.append(min(first_s, last_s), at_s[readings]), np.append(0.0, energy_j[readings])
    inside = (timeline.at_s > first_s) & (timeline.at_s < last_s)
    edges_s = np.concatenate(([first_s], timeline.at_s[inside], [last_s]))
    row = np.searchsorted(timeline.at_s, edges_s[:-1], side="right") - 1
    return edges_s, np.append(0.0, np.cumsum(timeline.power_w[row] * np.diff(edges_s)))
