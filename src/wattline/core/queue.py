"""The unfinished jobs and their dynamic state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.table import Bools, Floats, Ints

# Rows of a queue's block; one 2-D array, so that a new state is one copy.
QUEUE_ROWS = 17
JOB, ASKED, ACCEPTS, DONE, MARK, RATE, SERVICE = range(7)
GPU_SERVICE, SINCE, FIRST, RESTARTS, HELD, REASON, WATTS = range(7, 14)
LAST_GPUS, LAST_CAP, LAST_NODE = range(14, QUEUE_ROWS)  # on what it ran last, or runs: all, cap, the first


@dataclass(frozen=True, eq=False, slots=True)
class Queue:
    """The unfinished jobs, one column of *block* each, in order of submission."""

    block: Floats

    def __post_init__(self) -> None:
        self.block.setflags(write=False)

    def __len__(self) -> int:
        return int(self.block.shape[1])

    @property
    def job(self) -> Ints:
        """Row in `Snapshot.jobs`."""
        row: Ints = self.block[JOB].astype(np.int64)
        return row

    @property
    def gpus(self) -> Ints:
        """GPUs asked for."""
        row: Ints = self.block[ASKED].astype(np.int64)
        return row

    @property
    def since_s(self) -> Floats:
        """Since when it runs or waits."""
        row: Floats = self.block[SINCE]
        return row

    @property
    def first_s(self) -> Floats:
        """When it first started; nan: never."""
        row: Floats = self.block[FIRST]
        return row

    @property
    def restarts(self) -> Floats:
        """How often it was started again."""
        row: Floats = self.block[RESTARTS]
        return row

    @property
    def held(self) -> Floats:
        """GPUs it holds now; 0: it waits."""
        row: Floats = self.block[HELD]
        return row

    @property
    def watts(self) -> Floats:
        """What its GPUs drew when it was last measured, on what it ran last or runs; 0: nobody knows."""
        row: Floats = self.block[WATTS]
        return row

    @property
    def running(self) -> Bools:
        """Which jobs hold GPUs."""
        row: Bools = self.block[HELD] > 0
        return row
