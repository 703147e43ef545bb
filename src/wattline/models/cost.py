"""What running a job costs: energy against time, and being late. Pure functions, units in their names."""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats
from wattline.errors import ConfigError


def energy_time_cost(energy_j: Floats, time_s: Floats, *, eta: float, max_w: float) -> Floats:
    """Joules, with time at the price of the GPUs' largest power draw: η·E + (1 − η)·P_max·T.

    Zeus (NSDI'23). *eta* 1: only energy counts; 0: only time. *max_w* of all GPUs together.
    """
    _check(eta, max_w)
    return np.asarray(eta * np.asarray(energy_j) + (1.0 - eta) * max_w * np.asarray(time_s))


def sample_cost(samples_s: Floats, watts: Floats, *, eta: float, max_w: float) -> Floats:
    """The energy-time cost of one sample, in joules: (η·P + (1 − η)·P_max) / throughput.

    Zeus' cost of an epoch is this times its samples; which cap is cheapest does not depend on that.
    """
    _check(eta, max_w)
    return np.asarray((eta * np.asarray(watts) + (1.0 - eta) * max_w) / np.asarray(samples_s))


def tardiness_cost(finish_s: Floats, deadline_s: Floats, weight: Floats) -> Floats:
    """weight · max(0, finish − deadline), with *weight* per second; a deadline of inf never costs.

    ANDREAS: what being late costs, beside energy.
    """
    late_s = np.maximum(np.asarray(finish_s) - np.asarray(deadline_s), 0.0)
    return np.asarray(np.asarray(weight) * late_s)


def energy_cost(energy_j: Floats, *, price_kwh: float, pue: float = 1.0) -> Floats:
    """Money for energy: joules at a price per kWh, times what cooling and conversion add (*pue*)."""
    if not price_kwh >= 0:
        raise ConfigError(f"price_kwh must be at least 0, got {price_kwh}")
    if not 1 <= pue < np.inf:
        raise ConfigError(f"pue must be at least 1 and finite, got {pue}")
    return np.asarray(np.asarray(energy_j) / 3.6e6 * price_kwh * pue)


def _check(eta: float, max_w: float) -> None:
    if not 0 <= eta <= 1:
        raise ConfigError(f"eta must be between 0 and 1, got {eta}")
    if not 0 < max_w < np.inf:
        raise ConfigError(f"max_w must be above 0 and finite, got {max_w}")
