"""Estimates of durations that a run has made, and how far off they were."""

from __future__ import annotations

from dataclasses import dataclass

from wattline.core.table import Floats


@dataclass(frozen=True, eq=False, slots=True)
class Estimates:
    """Estimated durations of jobs, while `Jobs.steps` changes in place as jobs run and end; read-only."""

    at_arrival_s: Floats  # by row of `Jobs`; nan: it has not arrived
    ratio: Floats  # duration over estimate of the jobs that ended last, ascending
