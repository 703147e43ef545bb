"""Unfinished jobs and their dynamic state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.table import Bools, Floats, Ints

# Rows of a queue's block: one 2-D array, so that the next state is one copy.
QUEUE_ROWS = 17
JOB = 0  # row in `Snapshot.jobs`
ASKED = 1  # GPUs requested
ACCEPTS = 2  # bit mask of the accepted GPU kinds, see `Nodes.accepted_kinds`
DONE = 3  # steps done ...
MARK = 4  # ... at this time
RATE = 5  # steps per second since then; 0 = not running
SERVICE = 6  # seconds on GPUs, without the current lease
GPU_SERVICE = 7  # GPU-seconds, without the current lease
SINCE = 8  # time of the last start, stop or arrival
FIRST = 9  # time of the first start; nan = never started
RESTARTS = 10
HELD = 11  # GPUs held now; 0 = waiting
REASON = 12  # index in `REASONS`
WATTS = 13  # draw of its GPUs when last measured under the last or current lease; 0 = unknown
LAST_GPUS = 14  # of the last or current lease: number of GPUs,
LAST_CAP = 15  # power cap of each,
LAST_NODE = 16  # first node


@dataclass(frozen=True, eq=False, slots=True)
class Queue:
    """Unfinished jobs, one column of *block* each, in order of submission."""

    block: Floats

    def __post_init__(self) -> None:
        self.block.setflags(write=False)

    def __len__(self) -> int:
        return int(self.block.shape[1])

    @property
    def job(self) -> Ints:
        """Row of each job in `Snapshot.jobs`."""
        row: Ints = self.block[JOB].astype(np.int64)
        return row

    @property
    def gpus(self) -> Ints:
        """GPUs requested."""
        row: Ints = self.block[ASKED].astype(np.int64)
        return row

    @property
    def since_s(self) -> Floats:
        """Time since when each job runs or waits."""
        row: Floats = self.block[SINCE]
        return row

    @property
    def first_s(self) -> Floats:
        """Time of the first start; nan: never started."""
        row: Floats = self.block[FIRST]
        return row

    @property
    def restarts(self) -> Floats:
        """Number of starts after the first."""
        row: Floats = self.block[RESTARTS]
        return row

    @property
    def held(self) -> Floats:
        """GPUs held now; 0: the job waits."""
        row: Floats = self.block[HELD]
        return row

    @property
    def watts(self) -> Floats:
        """Draw of all its GPUs when last measured under its last or current lease; 0: unknown."""
        row: Floats = self.block[WATTS]
        return row

    @property
    def running(self) -> Bools:
        """Mask of the jobs that hold GPUs."""
        row: Bools = self.block[HELD] > 0
        return row
