"""Cost functions of a run: energy against time, tardiness, and the price of energy."""

from __future__ import annotations

import numpy as np

from wattline.core.table import Floats
from wattline.errors import ConfigError


def energy_time_cost(energy_j: Floats, time_s: Floats, *, eta: float, max_w: float) -> Floats:
    """Return Zeus' cost in joules, with time priced at the largest power draw: η·E + (1 − η)·P_max·T.

    Zeus (NSDI'23). *eta* 1: only energy counts; 0: only time. *max_w* is the sum over all GPUs.
    """
    _check(eta, max_w)
    return np.asarray(eta * np.asarray(energy_j) + (1.0 - eta) * max_w * np.asarray(time_s))


def sample_cost(samples_s: Floats, watts: Floats, *, eta: float, max_w: float) -> Floats:
    """Return the energy-time cost of one sample in joules: (η·P + (1 − η)·P_max) / throughput.

    Zeus' cost of an epoch is this times its number of samples, so both have the same cheapest cap.
    """
    _check(eta, max_w)
    return np.asarray((eta * np.asarray(watts) + (1.0 - eta) * max_w) / np.asarray(samples_s))


def tardiness_cost(finish_s: Floats, deadline_s: Floats, weight: Floats) -> Floats:
    """Return ANDREAS' tardiness cost, weight · max(0, finish − deadline).

    *weight* is per second of delay; a deadline of inf never costs anything.
    """
    late_s = np.maximum(np.asarray(finish_s) - np.asarray(deadline_s), 0.0)
    return np.asarray(np.asarray(weight) * late_s)


def energy_cost(energy_j: Floats, *, price_kwh: float, pue: float = 1.0) -> Floats:
    """Return the price of *energy_j* joules at *price_kwh* per kWh, multiplied by the facility's *pue*."""
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
