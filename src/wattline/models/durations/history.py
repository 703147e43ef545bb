"""Estimates of durations from similar jobs that have ended: of the same user, name, model or size."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from statistics import fmean, median

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.table import Ints, Labels

FIRST_ESTIMATE_S = 3600.0
"""Estimate before any job has ended."""

_LAST = 5  # ended jobs of a group that count
_LEAST = 2  # ended jobs that a group needs
_LAST_ERRORS = 50  # of each way to group jobs that count
_LEAST_ERRORS = 3  # that it needs; until then the more specific way is taken to be the better one


class History:
    """Median duration of the last five jobs that ended in the job's group; jobs are grouped in the best way.

    The ways to group them, from the most specific: user and recurrence key; user, name and GPUs; user and
    name; user, model and GPUs; user and GPUs; user; model and GPUs; model; GPUs; team; all jobs. A column
    that is empty for a job makes no group of it. Every way estimates every job when it arrives, and the way
    with the least mean |log(estimate / duration)| of its last fifty counts: which columns tell something
    about durations differs between clusters. Tumanov et al. (CMU-PDL-16-104, 2016, "JamaisVu") choose among
    such groups, too; Tsafrir, Etsion and Feitelson (TPDS 2007) take the mean of a user's last two jobs.
    """

    name = "history"

    def __init__(self, jobs: Jobs, job_name: Labels | None = None) -> None:
        self._duration_s: list[float] = jobs.duration_s.tolist()
        self._groups = [groups.tolist() for groups in _list_groups(jobs, job_name)]
        self._ended: list[defaultdict[int, deque[float]]] = [
            defaultdict(lambda: deque(maxlen=_LAST)) for _ in self._groups
        ]
        self._errors: list[deque[float]] = [deque(maxlen=_LAST_ERRORS) for _ in self._groups]
        self._estimates: dict[int, list[float]] = {}  # of jobs that have not ended, by way; nan: none

    def predict_s(self, job: int) -> float:
        """Return the estimated duration of *job* from what has ended so far."""
        estimates = self._estimates[job] = [
            self._find_median_s(way, groups[job]) for way, groups in enumerate(self._groups)
        ]
        usable = [way for way, estimate in enumerate(estimates) if not math.isnan(estimate)]
        if usable:
            return estimates[min(usable, key=self._find_error)]  # the first, so most specific, of equals
        every = self._ended[-1].get(0)
        return max(median(every), 1.0) if every else FIRST_ESTIMATE_S

    def learn(self, job: int) -> None:
        """Take note that *job* has ended."""
        duration_s = self._duration_s[job]
        for errors, estimate in zip(self._errors, self._estimates.pop(job, ()), strict=False):
            if not math.isnan(estimate):
                errors.append(abs(math.log(estimate / max(duration_s, 1.0))))
        for groups, ended in zip(self._groups, self._ended, strict=True):
            if groups[job] >= 0:
                ended[groups[job]].append(duration_s)

    def _find_median_s(self, way: int, group: int) -> float:
        """Return the estimate of a group; nan: too few of its jobs have ended, or there is none."""
        ended = self._ended[way].get(group, ()) if group >= 0 else ()
        return max(median(ended), 1.0) if len(ended) >= _LEAST else math.nan

    def _find_error(self, way: int) -> float:
        """Return the mean error of a way to group jobs; -1: not known yet."""
        errors = self._errors[way]
        return fmean(errors) if len(errors) >= _LEAST_ERRORS else -1.0


def _list_groups(jobs: Jobs, job_name: Labels | None) -> list[Ints]:
    """Return the number of each job's group by way to group jobs, from the most specific; -1: none."""
    user, team, key, model = (_code(labels) for labels in (jobs.user, jobs.team, jobs.key, jobs.model))
    name = np.full(len(jobs), -1, dtype=np.int64) if job_name is None else _code(job_name)
    everything = np.zeros(len(jobs), dtype=np.int64)
    ways: tuple[tuple[Ints, ...], ...] = (
        (user, key),
        (user, name, jobs.gpus),
        (user, name),
        (user, model, jobs.gpus),
        (user, jobs.gpus),
        (user,),
        (model, jobs.gpus),
        (model,),
        (jobs.gpus,),
        (team,),
    )
    return [*map(_combine, ways), everything]


def _code(labels: Labels) -> Ints:
    """Return the codes of *labels*, and -1 for the empty word."""
    empty = np.array([word == "" for word in labels.names] or [False])
    return np.where(empty[labels.codes], -1, labels.codes) if len(labels) else labels.codes


def _combine(columns: Sequence[Ints]) -> Ints:
    """Return one number for each distinct row of *columns*; -1 where one of them is -1."""
    table = np.stack(columns, axis=1)
    if not len(table):
        return np.empty(0, dtype=np.int64)
    number = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return np.where((table < 0).any(axis=1), -1, number)
