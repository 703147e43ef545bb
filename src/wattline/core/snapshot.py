"""Everything a policy may know at one moment."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.queue import DONE, GPU_SERVICE, HELD, MARK, RATE, SERVICE, SINCE, Queue
from wattline.core.table import Bools, Floats, Ints


@dataclass(frozen=True, eq=False, slots=True)
class Meter:
    """What was read of the energy meter so far: one row of *energy_j* per reading, since the start.

    Column 0 is the whole cluster, column 1 + t what the jobs of team t used.
    """

    at_s: Floats
    energy_j: Floats  # 2-D

    @classmethod
    def unread(cls) -> Meter:
        """Before the first reading."""
        return cls(np.empty(0), np.empty((0, 1)))

    def used_j(self, column: int, since_s: float = -math.inf) -> float:
        """Joules from *since_s* to the last reading; 0 while nothing was read."""
        if not len(self.at_s) or column >= self.energy_j.shape[1]:
            return 0.0
        energy_j = self.energy_j[:, column]
        return float(
            energy_j[-1] - (np.interp(since_s, self.at_s, energy_j) if since_s > self.at_s[0] else 0.0)
        )


@dataclass(frozen=True, eq=False, slots=True)
class Snapshot:
    """All that a policy may know at `now_s`; nothing in it can be written to."""

    now_s: float
    jobs: Jobs  # by row; a simulation's rows beyond the queue's are the future: not for policies
    nodes: Nodes
    queue: Queue
    leases: Leases
    free: Ints  # GPUs per node that nobody holds; 0 on a node that is down
    up: Bools
    wakes_s: Floats  # when a node that was switched off has booted; inf: it stays off, -inf: it is not off
    quiet_s: Floats  # since when nobody holds GPUs of a node; inf: somebody does
    meter: Meter
    seed: int = 0  # randomness is a function of this and now_s

    @property
    def usable(self) -> Bools:
        """Nodes that are up, or would be if they were switched on."""
        return np.asarray(self.up | (self.wakes_s > -math.inf))

    @property
    def steps_done(self) -> Floats:
        """Steps each queued job has done by now."""
        block = self.queue.block
        return np.asarray(block[DONE] + block[RATE] * np.maximum(0.0, self.now_s - block[MARK]))

    @property
    def steps_left(self) -> Floats:
        """Steps each queued job still has to do."""
        return np.maximum(0.0, self.jobs.steps[self.queue.job] - self.steps_done)

    @property
    def service_s(self) -> Floats:
        """Seconds each queued job has held GPUs."""
        block = self.queue.block
        return np.asarray(block[SERVICE] + np.where(block[HELD] > 0, self.now_s - block[SINCE], 0.0))

    @property
    def service_gpu_s(self) -> Floats:
        """GPU-seconds each queued job has held."""
        block = self.queue.block
        return np.asarray(block[GPU_SERVICE] + block[HELD] * (self.now_s - block[SINCE]))
