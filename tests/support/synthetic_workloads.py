"""Workloads with known coefficients, and synthetic measurements of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from wattline.core.table import Labels
from wattline.measurement.points import MEASURED, Profile
from wattline.measurement.settings import KNOBS, Settings
from wattline.models.array_speed import ArrayModel
from wattline.models.demand import DemandModel
from wattline.models.power.curves import Curves, caps_from_laws, clocks_from_laws
from wattline.models.power.throttle import Throttle
from wattline.models.speed import Speed
from wattline.models.workload import Workload

SPEED = Speed(0.02, 0.001, 0.0, 0.012, 0.003, 0.02, 0.005)
DEMAND = DemandModel(0.0, 0.02, 0.01, 200.0)
ARRAY = ArrayModel(0.4, 1.5, 2.5)
CAPS_W = np.arange(100.0, 401.0, 25.0)
CLOCKS_MHZ = np.arange(600.0, 1401.0, 50.0)
KNEE_MHZ = 1010.0


def cap_curves(*sizes: float) -> Curves:
    """Return curves over power caps: a cap has an effect between 120 and 300 W; watts grow with the batch."""
    sizes = sizes or (32.0,)
    rate = np.array([[0.4, 0.6 / 180, 120.0, 300.0, 20.0]] * len(sizes))
    watts = np.array([[90.0, 0.95 + 0.05 * row, 110.0, 310.0, 20.0] for row in range(len(sizes))])
    ends, free = (CAPS_W[0], CAPS_W[-1]), np.ones(len(sizes))
    return _normalise(caps_from_laws(np.array(sizes), *ends, free, rate, watts))


def clock_curves(*sizes: float) -> Curves:
    """Return curves over clocks: watts have a knee at `KNEE_MHZ`, the speed always rises."""
    sizes = sizes or (32.0,)
    rate = np.array([[0.25, 0.75 * 1400.0, 3000.0, 20.0]] * len(sizes))
    watts = np.array([[60.0, 0.1 + 0.01 * row, KNEE_MHZ, 1e-3] for row in range(len(sizes))])
    ends, free = (CLOCKS_MHZ[0], CLOCKS_MHZ[-1]), np.ones(len(sizes))
    return _normalise(clocks_from_laws(np.array(sizes), *ends, free, rate, watts))


def _normalise(curves: Curves) -> Curves:
    top, _ = curves.at(curves.batch, np.full(len(curves.batch), curves.last))
    return curves.scale_rates(1.0 / top)


def build_throttle(**curves: Curves) -> Throttle:
    """Return a throttle that draws 280 W without a cap, or follows *curves*."""
    return Throttle("a100", np.array([32.0]), np.array([280.0]), **curves)


def build_workload(**parts: Any) -> Workload:
    """Return a workload with known coefficients."""
    parts = {
        "throttle": build_throttle(),
        "usual_batch": 32.0,
        "waiting_power": 0.5,
        "metered": True,
        **parts,
    }
    return Workload("made-up", "a100", parts.pop("speed", SPEED), **parts)


def combine_knobs(**knobs: Any) -> dict[str, np.ndarray]:
    """Return all combinations of the values of *knobs*, as columns."""
    rows = itertools.product(*(np.atleast_1d(values).tolist() for values in knobs.values()))
    return dict(zip(knobs, np.array(list(rows)).T, strict=True))


def measure(
    truth: Workload, *, noise: float = 0.0, seed: int = 0, watts: bool = True, **knobs: Any
) -> Profile:
    """Return measurements of *truth* at these settings, with relative *noise*."""
    settings = Settings.of(**knobs)
    true = truth.extrapolate(settings)
    rng = np.random.default_rng(seed)
    errors = np.exp(noise * rng.standard_normal((2, len(settings))))
    return Profile.of(
        model=truth.model,
        gpu=truth.gpu,
        samples_s=true.samples_s * errors[0],
        watts=true.watts * errors[1] if watts else np.nan,
        **{name: getattr(settings, name) for name in KNOBS},
    )


def join_profiles(*profiles: Profile) -> Profile:
    """Return all rows of *profiles* as one profile."""
    rows = {
        field.name: np.concatenate([getattr(p, field.name) for p in profiles])
        for field in fields(Profile)
        if field.name in (*KNOBS, *MEASURED)
    }
    words = {name: [w for p in profiles for w in getattr(p, name).words()] for name in ("model", "gpu")}
    return Profile.of(**words, **rows)


def rename_model(profile: Profile, model: str, gpu: str = "") -> Profile:
    """Return the same measurements under another model name."""
    gpus = Labels.repeat(gpu, len(profile)) if gpu else profile.gpu
    return replace(profile, model=Labels.repeat(model, len(profile)), gpu=gpus)


def max_relative_error(values: Iterable[float], true: Iterable[float]) -> float:
    """Return the largest relative error."""
    return float(np.max(np.abs(np.asarray(values) / np.asarray(true) - 1.0)))
