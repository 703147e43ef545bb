"""Work of jobs as policies see it, apart from the truth that the simulator runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from wattline.core.estimates import Estimates
from wattline.core.events import ARRIVED, EVENT_JOB, EVENT_VERB, FAILED, FINISHED, Events
from wattline.core.jobs import Jobs
from wattline.core.snapshot import Snapshot

_LEAST_LEFT_S = 60.0  # that a job which outlived its estimate is taken to go on at least
_LAST_RATIOS = 300  # of ended jobs that are in the record


class EstimateSource(Protocol):
    """Source of estimates; it learns from the jobs that end."""

    name: str

    def predict_s(self, job: int) -> float:
        """Return the estimated duration of *job* with its request."""
        ...

    def learn(self, job: int) -> None:
        """Take note that *job* has ended."""
        ...


class DurationEstimates:
    """Jobs of one run with estimated instead of true work.

    *jobs* are the jobs as policies and placers see them: their `steps` follow from the estimate that *source*
    makes when a job arrives. A job that outlives its estimate is taken to need twice what it has done
    (Tsafrir et al. 2007 extend estimates in growing steps, too), and one that has ended needed what it did.
    The column is written here only, between two decisions. *record* has the first estimates, and how far off
    those of ended jobs were.
    """

    def __init__(self, jobs: Jobs, source: EstimateSource) -> None:
        self._source = source
        self._step_s = jobs.step_s
        self._true_steps = jobs.steps
        self._steps = np.zeros(len(jobs))
        self._ratios: deque[float] = deque(maxlen=_LAST_RATIOS)
        self.at_arrival_s = np.full(len(jobs), np.nan)
        self.record = Estimates(self.at_arrival_s, np.empty(0))
        self.jobs = replace(jobs, steps=self._steps[:])  # a view: the table makes only this read-only

    def observe(self, events: Events) -> None:
        """Learn from jobs that ended, and estimate those that arrived."""
        verbs = events[:, EVENT_VERB]
        relevant = (verbs == ARRIVED) | (verbs == FINISHED) | (verbs == FAILED)
        for verb, job in events[relevant][:, (EVENT_VERB, EVENT_JOB)].astype(np.int64).tolist():
            if verb == ARRIVED:
                estimate_s = self.at_arrival_s[job] = self._source.predict_s(job)
                self._steps[job] = estimate_s / self._step_s[job]
            else:
                self._source.learn(job)
                self._steps[job] = self._true_steps[job]
                self._ratios.append(self._steps[job] * self._step_s[job] / max(self.at_arrival_s[job], 1.0))
        if (verbs[relevant] != ARRIVED).any():
            self.record = Estimates(self.at_arrival_s, np.sort(self._ratios))

    def extend(self, state: Snapshot) -> None:
        """Double the estimates of jobs in *state* that have outlived theirs."""
        job, done = state.queue.job, state.steps_done
        over = np.flatnonzero((done >= self._steps[job]) & (done > 0))
        if len(over):
            least = _LEAST_LEFT_S / self._step_s[job[over]]
            self._steps[job[over]] = done[over] + np.maximum(done[over], least)

    def describe(self) -> dict[str, Any]:
        """Return the entry of a log's header; None: the job did not arrive."""
        estimates = [None if value != value else value for value in self.at_arrival_s.tolist()]
        return {"name": self._source.name, "estimate_s": estimates}


EstimateBuilder = Callable[[Jobs], DurationEstimates]
"""Function that returns the estimates for the jobs of a backend; one is needed for each run."""
