"""State of the cluster that a policy decides on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wattline.core.estimates import Estimates
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.queue import (
    QUEUE_HELD_GPUS,
    QUEUE_PROGRESS_AT_S,
    QUEUE_PROTECTED_UNTIL_S,
    QUEUE_SAVED_AT_S,
    QUEUE_SAVED_STEPS,
    QUEUE_SERVICE_GPU_S,
    QUEUE_SERVICE_S,
    QUEUE_SINCE_S,
    QUEUE_STEPS_DONE,
    QUEUE_STEPS_PER_S,
    Queue,
)
from wattline.core.quotas import NO_QUOTAS, Quotas
from wattline.core.table import Bools, Floats, Ints
from wattline.core.usage import Usage


@dataclass(frozen=True, eq=False, slots=True)
class MeterReadings:
    """Readings of the energy meter: one row of *energy_j* per reading, counted from the start of the run.

    Column 0 is the whole cluster, column 1 + t the jobs of team t.
    """

    at_s: Floats
    energy_j: Floats  # 2-D

    @classmethod
    def empty(cls) -> MeterReadings:
        """Return readings without rows."""
        return cls(np.empty(0), np.empty((0, 1)))

    def used_j(self, column: int, since_s: float = -math.inf) -> float:
        """Return the joules from *since_s* to the last reading, interpolated; 0 without readings."""
        if not len(self.at_s) or column >= self.energy_j.shape[1]:
            return 0.0
        energy_j = self.energy_j[:, column]
        return float(
            energy_j[-1] - (np.interp(since_s, self.at_s, energy_j) if since_s > self.at_s[0] else 0.0)
        )


@dataclass(frozen=True, eq=False, slots=True)
class Snapshot:
    """State of the cluster at `now_s`, the only input of a policy besides its models; read-only."""

    now_s: float
    jobs: Jobs  # rows submitted after now_s, in a simulation, have not arrived: policies must not read them
    nodes: Nodes  # with the GPUs, cores and memory that jobs of others leave
    queue: Queue
    leases: Leases
    free_gpus: Ints  # GPUs per node without a lease; 0 on a node that is down
    up: Bools
    boot_done_s: Floats  # end of booting of a node that was switched off; inf: stays off, -inf: is not off
    idle_since_s: Floats  # since when a node has no lease; inf: it has one
    meter: MeterReadings
    seed: int = 0  # random choices depend on this and now_s only
    usage: Usage | None = None  # GPU time of users and teams; None: not recorded in this run
    quotas: Quotas = NO_QUOTAS
    note: object | None = None  # `Plan.note` of the last decision; None at first, and after a restart
    estimates: Estimates | None = None  # of durations; None: they are known

    @property
    def usable(self) -> Bools:
        """Mask of the nodes that are up or can be switched on."""
        return np.asarray(self.up | (self.boot_done_s > -math.inf))

    @property
    def steps_done(self) -> Floats:
        """Steps that each queued job has done by now, extrapolated from its last progress event."""
        block = self.queue.block
        return np.asarray(
            block[QUEUE_STEPS_DONE]
            + block[QUEUE_STEPS_PER_S] * np.maximum(0.0, self.now_s - block[QUEUE_PROGRESS_AT_S])
        )

    @property
    def steps_left(self) -> Floats:
        """Steps that each queued job still has to do."""
        return np.maximum(0.0, self.jobs.steps[self.queue.job] - self.steps_done)

    @property
    def protected(self) -> Bools:
        """Mask of the running jobs that must not be stopped for others now; see `loop.protection`."""
        block = self.queue.block
        return np.asarray((block[QUEUE_PROTECTED_UNTIL_S] > self.now_s) & (block[QUEUE_HELD_GPUS] > 0))

    @property
    def lost_work_s(self) -> Floats:
        """Seconds of running that each queued job would lose if it was stopped now; 0 if it waits."""
        if not self.jobs.can_lose_work:
            return np.zeros(len(self.queue))
        running = self.queue.running
        return np.where(running, np.maximum(self.now_s - self._last_saved_s, 0.0), 0.0)

    @property
    def unsaved(self) -> Bools:
        """Mask of the running jobs that would lose all that they have done since their last start.

        A policy in which jobs take turns must not stop these: they would start over in every turn.
        """
        queue = self.queue
        ran_s = (
            self.now_s - queue.block[QUEUE_SINCE_S] - np.fmax(np.nan_to_num(queue.startup_s), queue.restart_s)
        )
        can_lose = self.jobs.checkpoint_s[queue.job] != 0
        return np.asarray(queue.running & can_lose & (self.lost_work_s >= ran_s - 1e-6))

    @property
    def lost_steps(self) -> Floats:
        """Steps that each queued job would lose if it was stopped now; 0 if it waits."""
        if not self.jobs.can_lose_work:
            return np.zeros(len(self.queue))
        block, saved_s = self.queue.block, self._last_saved_s
        last_s, since_s = np.minimum(saved_s, self.now_s), block[QUEUE_PROGRESS_AT_S]
        at_last = block[QUEUE_STEPS_DONE] + block[QUEUE_STEPS_PER_S] * np.maximum(last_s - since_s, 0.0)
        # Of a checkpoint before the last progress event the rate is not known any more.
        counts = np.isinf(saved_s) | ((self.jobs.checkpoint_s[self.queue.job] > 0) & (last_s >= since_s))
        saved = np.where(counts, at_last, block[QUEUE_SAVED_STEPS])
        return np.where(self.queue.running, np.maximum(self.steps_done - saved, 0.0), 0.0)

    @property
    def _last_saved_s(self) -> Floats:
        """Time of each job's last checkpoint; inf: it saves at every stop."""
        every_s = self.jobs.checkpoint_s[self.queue.job]
        saved_s = self.queue.block[QUEUE_SAVED_AT_S]
        periods = np.maximum(np.floor((self.now_s - saved_s) / np.where(every_s > 0, every_s, 1.0)), 0.0)
        saved_s = np.where(every_s > 0, saved_s + periods * every_s, saved_s)
        return np.where(every_s == 0, np.inf, saved_s)

    @property
    def service_s(self) -> Floats:
        """Seconds that each queued job has held GPUs."""
        block = self.queue.block
        return np.asarray(
            block[QUEUE_SERVICE_S]
            + np.where(block[QUEUE_HELD_GPUS] > 0, self.now_s - block[QUEUE_SINCE_S], 0.0)
        )

    @property
    def service_gpu_s(self) -> Floats:
        """GPU-seconds that each queued job has held."""
        block = self.queue.block
        return np.asarray(
            block[QUEUE_SERVICE_GPU_S] + block[QUEUE_HELD_GPUS] * (self.now_s - block[QUEUE_SINCE_S])
        )
