"""Figures of one schedule, of the jobs and the time that count."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.table import Bools, Floats
from wattline.reports.summary import finite_or_none
from wattline.whatif.digest import Blocks, ScheduleDigest

_GRACE_S = 60.0  # beyond its limit that a job may run: Slurm counts limits in minutes


@dataclass(frozen=True)
class ScheduleMetrics:
    """Waits and completion times of the counted jobs that ended, and use of the cluster; nan: none."""

    jobs: int
    unfinished: int
    wait_mean_s: float
    wait_p50_s: float
    wait_p99_s: float
    jct_mean_s: float
    jct_p50_s: float
    jct_p99_s: float
    gpu_utilisation: float
    gpu_hours: float
    energy_j: float
    deadline_misses: int
    stops: int
    over_limit: int  # jobs that held GPUs for longer than their time limit; a real scheduler would kill them

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {name: finite_or_none(value) for name, value in asdict(self).items()}


def measure_schedule(
    digest: ScheduleDigest,
    jobs: Jobs,
    counted: Bools,
    gpus: int,
    blocks: Blocks,
    limit_s: Floats | None = None,
) -> ScheduleMetrics:
    """Return the figures of *digest* on a cluster of *gpus* GPUs; *limit_s* are the time limits of jobs."""
    ended = counted & np.isfinite(digest.end_s)
    wait_s, jct_s = digest.wait_s[ended], (digest.end_s - jobs.submit_s)[ended]
    lasts_s = digest.until_s - blocks.edges_s[0]
    due = counted & np.isfinite(jobs.deadline_s)
    late = due & ~(digest.end_s <= jobs.deadline_s)
    return ScheduleMetrics(
        jobs=int(counted.sum()),
        unfinished=int((counted & ~ended).sum()),
        wait_mean_s=_mean(wait_s),
        wait_p50_s=_percentile(wait_s, 50),
        wait_p99_s=_percentile(wait_s, 99),
        jct_mean_s=_mean(jct_s),
        jct_p50_s=_percentile(jct_s, 50),
        jct_p99_s=_percentile(jct_s, 99),
        gpu_utilisation=float(digest.gpu_s.sum()) / (gpus * lasts_s) if lasts_s > 0 else math.nan,
        gpu_hours=float(digest.gpu_s.sum()) / 3600,
        energy_j=float(digest.energy_j.sum()),
        deadline_misses=int(late.sum()),
        stops=digest.stops,
        over_limit=0 if limit_s is None else int((jct_s - wait_s > limit_s[ended] + _GRACE_S).sum()),
    )


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan


def _percentile(values: Floats, percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else math.nan
