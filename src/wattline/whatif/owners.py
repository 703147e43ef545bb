"""Changes that a policy would have made for teams, and for one user."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.table import Bools, Labels
from wattline.reports.summary import finite_or_none
from wattline.whatif.digest import ScheduleDigest

_MOST_TEAMS = 8
_CHANGE = 0.05  # a job ends earlier or later if its JCT changes by more than this


@dataclass(frozen=True)
class OwnerChange:
    """Mean JCT of the jobs of one team or user in the baseline, and under each policy relative to it."""

    name: str
    jobs: int
    gpu_hours: float
    jct_mean_s: float
    ratios: tuple[float, ...]
    earlier: tuple[float, ...]  # share of the jobs that end sooner by more than 5 % of their JCT
    later: tuple[float, ...]

    def as_dict(self, policies: Sequence[str]) -> dict[str, Any]:
        """Return the change for JSON, by policy."""
        columns = zip(policies, self.ratios, self.earlier, self.later, strict=True)
        return {
            "name": self.name,
            "jobs": self.jobs,
            "gpu_hours": self.gpu_hours,
            "jct_mean_s": finite_or_none(self.jct_mean_s),
            "policies": {
                policy: {"jct_ratio": finite_or_none(ratio), "earlier": early, "later": late}
                for policy, ratio, early, late in columns
            },
        }


def compare_owners(
    owner: Labels,
    jobs: Jobs,
    counted: Bools,
    baseline: ScheduleDigest,
    others: Sequence[ScheduleDigest],
    only: str | None = None,
) -> tuple[OwnerChange, ...]:
    """Return the change for each owner, those with most GPU time first and at most eight; or for one."""
    names = [name for name in owner.names if name] if only is None else [only]
    found = []
    for name in names:
        codes = [code for code, word in enumerate(owner.names) if word == name]
        rows = counted & np.isin(owner.codes, codes)
        if rows.any():
            found.append(_compare_rows(name, jobs, rows, baseline, others))
    found.sort(key=lambda change: -change.gpu_hours)
    return tuple(found[:_MOST_TEAMS])


def _compare_rows(
    name: str, jobs: Jobs, rows: Bools, baseline: ScheduleDigest, others: Sequence[ScheduleDigest]
) -> OwnerChange:
    was_s = baseline.end_s - jobs.submit_s
    ratios, earlier, later = [], [], []
    for other in others:
        both = rows & np.isfinite(was_s) & np.isfinite(other.end_s)
        before_s, after_s = was_s[both], (other.end_s - jobs.submit_s)[both]
        known = bool(both.any()) and float(before_s.sum()) > 0
        ratios.append(float(after_s.sum() / before_s.sum()) if known else math.nan)
        earlier.append(float((after_s < (1 - _CHANGE) * before_s).mean()) if known else 0.0)
        later.append(float((after_s > (1 + _CHANGE) * before_s).mean()) if known else 0.0)
    ended = rows & np.isfinite(was_s)
    return OwnerChange(
        name=name,
        jobs=int(rows.sum()),
        gpu_hours=float((jobs.gpus * jobs.duration_s)[rows].sum()) / 3600,
        jct_mean_s=float(was_s[ended].mean()) if ended.any() else math.nan,
        ratios=tuple(ratios),
        earlier=tuple(earlier),
        later=tuple(later),
    )
