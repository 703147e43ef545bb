"""Estimates of durations from the jobs of the same user, name and kind that have ended."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from statistics import median

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.table import Ints, Labels

FIRST_ESTIMATE_S = 3600.0
"""Estimate before any job has ended."""

_LAST = 5  # ended jobs of a group that count
_LEAST = 2  # ended jobs that a group needs


class History:
    """Median duration of the last five jobs that ended in the most specific group with at least two.

    The groups, from the most specific: user and recurrence key; user, name and GPUs; user and name; user and
    GPUs; user; team; all jobs. A column that is empty for a job makes no group of it. Tsafrir,
    Etsion and Feitelson (TPDS 2007) take the mean of the last two jobs of a user.
    """

    name = "history"

    def __init__(self, jobs: Jobs, job_name: Labels | None = None) -> None:
        self._duration_s: list[float] = jobs.duration_s.tolist()
        self._groups = [groups.tolist() for groups in _list_groups(jobs, job_name)]
        self._ended: list[defaultdict[int, deque[float]]] = [
            defaultdict(lambda: deque(maxlen=_LAST)) for _ in self._groups
        ]

    def predict_s(self, job: int) -> float:
        """Return the estimated duration of *job* from what has ended so far."""
        for groups, ended in zip(self._groups, self._ended, strict=True):
            group = groups[job]
            if group >= 0 and group in ended and len(ended[group]) >= _LEAST:
                return max(median(ended[group]), 1.0)
        every = self._ended[-1].get(0)
        return max(median(every), 1.0) if every else FIRST_ESTIMATE_S

    def learn(self, job: int) -> None:
        """Take note that *job* has ended."""
        for groups, ended in zip(self._groups, self._ended, strict=True):
            if groups[job] >= 0:
                ended[groups[job]].append(self._duration_s[job])


def _list_groups(jobs: Jobs, job_name: Labels | None) -> list[Ints]:
    """Return the number of each job's group at each level, from the most specific; -1: none."""
    user, team, key = _code(jobs.user), _code(jobs.team), _code(jobs.key)
    name = np.full(len(jobs), -1, dtype=np.int64) if job_name is None else _code(job_name)
    everything = np.zeros(len(jobs), dtype=np.int64)
    levels = ((user, key), (user, name, jobs.gpus), (user, name), (user, jobs.gpus), (user,), (team,))
    return [*map(_combine, levels), everything]


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
