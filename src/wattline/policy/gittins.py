"""Gittins: the job first that is likeliest to end for the service it takes, learnt from ended jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError, did_you_mean
from wattline.policy.chain import can_all_run, decide_again, plan_as_requested, predict_running, reorder
from wattline.policy.gittins_index import compute_best_index, compute_index
from wattline.policy.starvation import check_queues, find_starved

_INDEX = ("queue", "best")


@dataclass(frozen=True)
class Gittins:
    """Two-dimensional Gittins index (Gu et al., NSDI 2019, "Tiresias"): likeliest to end soon first.

    The index (`wattline.policy.gittins_index`) follows from the GPU-seconds of the *last* jobs that have
    ended in this run. With *index* `queue`, jobs move through the queues of *thresholds_gpu_s* as in
    `tiresias`, and within a queue the largest index goes first, its Δ the service between the thresholds of
    that queue. With `best` there are no queues: the largest index over all Δ of at least *quantum_s* on the
    GPUs of a job goes first. Of equal indices, and before any job has ended, the least attained service
    goes first. *promote* is that of `tiresias`. Decides again every *quantum_s* while jobs wait.
    *Deviates:* the original is given the distribution; here it is learnt from the note of the last plan,
    so it is lost when a service restarts, and long jobs are missing in it until the first of them have
    ended. A job that ends is taken to have run since the last decision; jobs that fail count as ended.
    """

    thresholds_gpu_s: tuple[float, ...] = (3600.0, 36000.0)
    promote: float = 8.0
    quantum_s: float = 300.0
    index: Literal["queue", "best"] = "queue"
    last: int = 1000

    def __post_init__(self) -> None:
        check_queues(self.thresholds_gpu_s, self.promote)
        if not 1 <= self.quantum_s < math.inf:
            raise ConfigError(f"quantum_s must be at least 1 and finite, got {self.quantum_s}")
        if self.index not in _INDEX:
            raise ConfigError(
                f"index must be one of {', '.join(_INDEX)}, got {self.index!r}",
                did_you_mean(str(self.index), _INDEX),
            )
        if not self.last >= 1:
            raise ConfigError(f"last must be at least 1, got {self.last}")

    def __call__(self, snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        """Return the plan; see `wattline.policy.chain.Stage`."""
        note = self._update_note(snapshot)
        if plan is None and can_all_run(snapshot):
            # Every end is needed for the distribution, so the plan is not stable.
            return replace(plan_as_requested(snapshot), stable=False, note=note)
        plan = plan_as_requested(snapshot) if plan is None else plan
        # Service that a stop would lose does not count.
        served = note.served_gpu_s - snapshot.queue.held_gpus * snapshot.lost_work_s
        starved = find_starved(snapshot, self.promote)
        level, index = self._rank(snapshot, served, starved.now, np.sort(note.ended_gpu_s))
        rows = plan.row
        order = np.lexsort((served[rows], -index[rows], level[rows]))
        plan = replace(reorder(plan, order), stable=False, note=note)
        _, waits, _ = predict_running(snapshot, plan)
        return decide_again(plan, snapshot.now_s + self.quantum_s) if waits.any() else plan

    def _rank(self, snapshot: Snapshot, served: Floats, starved: Bools, ended: Floats) -> tuple[Ints, Floats]:
        """Return the queue and the index of each row; starved jobs are in the first queue."""
        if self.index == "best":
            least = np.asarray(self.quantum_s * snapshot.queue.requested_gpus, dtype=np.float64)
            return np.where(starved, 0, 1), compute_best_index(served, least, ended)
        ends = np.array((*self.thresholds_gpu_s, math.inf))
        begins = np.concatenate(([0.0], ends[:-1]))
        level = np.where(starved, 0, np.searchsorted(ends, served, side="right"))
        return level, compute_index(served, (ends - begins)[level], ended)

    def _update_note(self, snapshot: Snapshot) -> ServiceNote:
        """Return the note of this decision: the last one, and the jobs that have ended since."""
        queue, served = snapshot.queue, snapshot.service_gpu_s
        held = np.where(queue.running, queue.held_gpus, queue.requested_gpus)
        note, ended = snapshot.note, np.empty(0)
        if isinstance(note, ServiceNote):
            now = np.append(queue.job, -1)  # both are ascending
            gone = np.flatnonzero(now[np.searchsorted(queue.job, note.job)] != note.job)
            ended = note.ended_gpu_s
            if len(gone):
                new = note.served_gpu_s[gone] + note.gpus[gone] * (snapshot.now_s - note.at_s)
                ended = np.concatenate((ended, new[new > 0]))[-self.last :]
        return ServiceNote(snapshot.now_s, queue.job, served, held, ended)


@dataclass(frozen=True, eq=False)
class ServiceNote:
    """Note of a decision: the service of all jobs until *at_s*, and of those that have ended before."""

    at_s: float
    job: Ints  # rows of `Jobs` that were queued
    served_gpu_s: Floats  # their service until then
    gpus: Floats  # that each holds, or will hold if it starts
    ended_gpu_s: Floats  # whole service of the jobs that ended last, in the order of their ends
