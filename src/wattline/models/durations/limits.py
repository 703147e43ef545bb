"""Estimates that are there when a job is submitted: time limits, and the estimates of a run log."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wattline.core.table import Floats
from wattline.models.durations.history import History


class TimeLimits:
    """The time limit of each job; where there is none, the estimate of *otherwise*."""

    name = "limit"

    def __init__(self, limit_s: Floats, otherwise: History) -> None:
        self._limit_s: list[float] = np.asarray(limit_s).tolist()
        self._otherwise = otherwise

    def predict_s(self, job: int) -> float:
        """Return the time limit of *job*."""
        limit_s = self._limit_s[job]
        return limit_s if math.isfinite(limit_s) and limit_s > 0 else self._otherwise.predict_s(job)

    def learn(self, job: int) -> None:
        """Take note that *job* has ended."""
        self._otherwise.learn(job)


class LoggedEstimates:
    """The estimates that a run log holds."""

    def __init__(self, name: str, estimate_s: Sequence[float | None]) -> None:
        self.name = name
        self._estimate_s = estimate_s

    def predict_s(self, job: int) -> float:
        """Return the estimate of *job* in the log."""
        return float(self._estimate_s[job] or 0.0)

    def learn(self, job: int) -> None:
        """Do nothing: the log is complete."""
