"""Synthetic recurring jobs for tests of batch-size tuners."""

from __future__ import annotations

import math

import numpy as np

from wattline.batch_size.bandit import TuningTask
from wattline.batch_size.replay import TuningCase
from wattline.core.table import Floats


def build_random_case(seed: int, eta: float = 0.5) -> TuningCase:
    """Return a random job: epochs to target have a minimum over log batch size, time per epoch falls with it.

    The epochs to target follow E·(1 + b/B)^a·(1 + (L/b)^p): a large batch wastes samples, a small one is
    unstable. The time of an epoch has a part per sample and a part per step. Idle time draws less power;
    a cap slows the GPU down. All parameters are random, including the default batch size, so that some jobs
    leave nothing to gain.
    """
    rng = np.random.default_rng((seed, 2))
    batches = _draw_batch_sizes(rng)
    x = np.log2(np.array(batches, float))
    while True:
        mean = _draw_epochs(rng, x)
        noise = float(rng.choice((0.0, rng.uniform(0.02, 0.2))))
        runs = [
            np.maximum(1.0, np.rint(each * np.exp(noise * rng.standard_t(5, rng.integers(4, 11)))))
            for each in mean
        ]
        seconds, watts, caps_w = _draw_epoch_costs(rng, x)
        max_w = float(caps_w[-1])
        cost = np.array([r.mean() for r in runs]) * ((eta * watts + (1 - eta) * max_w) * seconds).min(axis=1)
        near = np.flatnonzero(cost <= rng.choice((1.0, 1.2, 1.5, 3.0)) * cost.min())
        default = int(rng.choice(near))
        max_epochs = math.ceil(rng.uniform(1.5, 4.0) * float(runs[default].max()))
        if mean[default] < 300:
            break
    task = TuningTask(batches, batches[default], max_epochs)
    recorded = tuple(np.where(r <= max_epochs, r, np.inf) for r in runs)
    return TuningCase("made-up", f"made-up-{seed}", task, recorded, caps_w, seconds, watts, max_w, eta)


def _draw_batch_sizes(rng: np.random.Generator) -> tuple[int, ...]:
    count = int(rng.integers(4, 16))
    lowest, steps = rng.uniform(1, 6), rng.uniform(0.3, 1.0) if rng.random() < 0.5 else 1.0
    return tuple(sorted({round(2 ** (lowest + steps * k)) for k in range(count)}))


def _draw_epochs(rng: np.random.Generator, x: Floats) -> Floats:
    low, high = x[0], x[-1]
    knee, large = rng.uniform(low, high + 4), rng.uniform(0.7, 1.5)
    foot, small = rng.uniform(low - 5, (low + high) / 2), rng.uniform(1, 4)
    bumps = rng.uniform(0, 0.15) * np.interp(x, np.linspace(low, high, 5), rng.standard_normal(5))
    least = 2 ** rng.uniform(1.5, 6)
    found = least * (1 + 2 ** (x - knee)) ** large * (1 + 2 ** (small * (foot - x))) * np.exp(bumps)
    return np.asarray(np.minimum(found, 1e6))


def _draw_epoch_costs(rng: np.random.Generator, x: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the seconds and watts of an epoch by batch size and cap, and the caps."""
    max_w = float(rng.choice((180, 250, 300, 400)))
    caps_w = np.linspace(rng.uniform(0.33, 0.5) * max_w, max_w, int(rng.integers(5, 10)))
    half = rng.uniform(
        x[0] - 4, x[-1] + 1
    )  # log2 batch size at which the fixed part of a step equals that of its samples
    share = 1 / (1 + 2 ** (half - x))
    crowded = 1 + (rng.uniform(0, 1) if rng.random() < 0.3 else 0.0) * 2.0 ** (x - x[-1])
    idle_w, busy_w = rng.uniform(0.1, 0.25) * max_w, rng.uniform(0.6, 1.1) * max_w
    demand_w = idle_w + share * (busy_w - idle_w)
    drawn = np.minimum(demand_w[:, None], caps_w[None, :])
    speed = ((drawn - idle_w) / (demand_w[:, None] - idle_w)) ** rng.uniform(0.3, 0.7)
    busy = share[:, None] / speed + 1 - share[:, None]
    jitter = 1 + rng.uniform(0, 0.03) * rng.standard_normal(drawn.shape)
    scale = 2 ** rng.uniform(0, 12)
    return scale * (busy * (crowded / share)[:, None]) * jitter, drawn, caps_w
