"""Promotion of jobs that have waited many times as long as they have run, as in Tiresias."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats
from wattline.errors import ConfigError


class Starved(NamedTuple):
    """Jobs that are starved, by row of the queue."""

    now: Bools
    since_s: Floats  # nan: it is not
    changes_in_s: float  # until a job gets starved by waiting, or ceases to be by running; inf: never


def find_starved(snapshot: Snapshot, promote: float) -> Starved:
    """Return the jobs that have waited *promote* times as long as they have run (0: none).

    A running job stays starved until that ratio is halved. A job that has not run yet is not starved.
    """
    count = len(snapshot.queue)
    if promote <= 0:
        return Starved(np.zeros(count, dtype=np.bool_), np.full(count, math.nan), math.inf)
    ran_s = snapshot.service_s
    submit_s = snapshot.jobs.submit_s[snapshot.queue.job]
    waited_s = snapshot.now_s - submit_s - ran_s
    ratio = np.where(snapshot.queue.running, promote / 2, promote)
    starved = (waited_s >= ratio * ran_s) & (ran_s > 0)
    since_s = np.where(starved, submit_s + (1 + promote) * ran_s, math.nan)
    caught_up_s = waited_s / (promote / 2) - ran_s
    starves_s = promote * ran_s - waited_s
    to_change_s = np.where(starved, caught_up_s, starves_s)
    return Starved(starved, since_s, float(to_change_s[to_change_s > 0].min(initial=math.inf)))


def check_queues(thresholds_gpu_s: Sequence[float], promote: float) -> None:
    """Raise `ConfigError` if the thresholds of queues do not rise, or *promote* is negative."""
    if list(thresholds_gpu_s) != sorted(set(thresholds_gpu_s)) or min(thresholds_gpu_s, default=0.0) <= 0:
        raise ConfigError(f"thresholds_gpu_s must rise from above 0, got {tuple(thresholds_gpu_s)}")
    if not promote >= 0:
        raise ConfigError(f"promote must be at least 0, got {promote}")
