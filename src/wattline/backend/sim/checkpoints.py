"""Checkpoints of simulated jobs: what a stop or a failure loses, and until when a job is protected."""

from __future__ import annotations

import math
from typing import Protocol

from wattline.backend.sim.faults import compact
from wattline.core.events import PROTECTED
from wattline.core.jobs import PREEMPTIBLE_ALWAYS, PREEMPTIBLE_NEVER, Jobs
from wattline.core.queue import QUEUE_PROTECTED_UNTIL_S, QUEUE_SAVED_AT_S, QUEUE_SAVED_STEPS
from wattline.core.table import Floats


class CheckpointedRun(Protocol):
    """The part of a simulated run that checkpoints depend on."""

    saved: float  # steps at its last checkpoint
    base: float  # steps at progress_at_s
    rate: float
    progress_at_s: float
    checkpoints_from_s: float  # periodic checkpoints count from here
    saves_at_stop: bool
    protected_until_s: float


class SimCheckpoints:
    """Checkpoints of each job, by its columns *checkpoint_s*, *preemptible* and *min_runtime_s*.

    A job with *checkpoint_s* 0 loses nothing at a stop, and at a failure what it has done since its last
    checkpoint, of which there is one every *failure_every_s*.
    """

    def __init__(self, jobs: Jobs, failure_every_s: float) -> None:
        self._every_s = compact(jobs.checkpoint_s)
        self._preemptible: list[int] = jobs.preemptible.tolist()
        self._min_runtime_s = compact(jobs.min_runtime_s)
        self._failure_every_s = failure_every_s
        usual = (
            (jobs.preemptible == PREEMPTIBLE_ALWAYS) & (jobs.checkpoint_s == 0) & (jobs.min_runtime_s == 0)
        )
        self.is_reported: list[bool] = (~usual).tolist()
        """By job, whether its checkpoints and its protection are reported: only where they are not usual."""

    def begin(self, job: int, run: CheckpointedRun, now_s: float) -> None:
        """Set whether a job that starts saves at stops, and until when it is protected."""
        every_s, preemptible = self._every_s[job], self._preemptible[job]
        run.saves_at_stop = every_s == 0
        run.protected_until_s = now_s + self._min_runtime_s[job]
        once_saved = preemptible not in (PREEMPTIBLE_ALWAYS, PREEMPTIBLE_NEVER)
        if preemptible == PREEMPTIBLE_NEVER or (once_saved and every_s < 0):
            run.protected_until_s = math.inf
        elif once_saved and every_s > 0:
            run.protected_until_s = max(run.protected_until_s, run.checkpoints_from_s + every_s)

    def take_over(self, run: CheckpointedRun, column: Floats, now_s: float) -> None:
        """Give a run the checkpoint and the protection of a *column* of a queue's block."""
        saved_s = float(column[QUEUE_SAVED_AT_S])
        run.saves_at_stop = run.saves_at_stop or saved_s == math.inf
        run.protected_until_s = max(float(column[QUEUE_PROTECTED_UNTIL_S]), now_s)
        run.saved = run.base if run.saves_at_stop else float(column[QUEUE_SAVED_STEPS])
        run.checkpoints_from_s = run.progress_at_s if run.saves_at_stop else saved_s

    def event(self, job: int, run: CheckpointedRun, now_s: float) -> tuple[float, ...]:
        """Return the `PROTECTED` event of a run."""
        saved_s = math.inf if run.saves_at_stop else self._last_s(job, run, now_s)
        return PROTECTED, job, now_s, run.saved, run.protected_until_s, saved_s

    def saved_steps(self, job: int, run: CheckpointedRun, now_s: float) -> float:
        """Return the steps that a job would keep if its lease failed now."""
        last_s = self._last_s(job, run, now_s)
        if last_s <= run.checkpoints_from_s or last_s < run.progress_at_s:
            return run.saved  # the rate was another before progress_at_s
        return max(run.saved, run.base + run.rate * (last_s - run.progress_at_s))

    def _last_s(self, job: int, run: CheckpointedRun, now_s: float) -> float:
        """Return the time of the last periodic checkpoint, or from when they count."""
        every_s = self._every_s[job] or self._failure_every_s
        ran_s = now_s - run.checkpoints_from_s
        if ran_s <= 0 or every_s < 0:
            return run.checkpoints_from_s
        return run.checkpoints_from_s + math.floor(ran_s / every_s) * every_s
