"""Unfinished jobs and their dynamic state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.table import Bools, Floats, Ints

# Rows of a queue's block: one 2-D array, so that the next state is one copy.
QUEUE_ROWS = 22
QUEUE_JOB = 0  # row in `Snapshot.jobs`
QUEUE_REQUESTED_GPUS = 1  # GPUs requested
QUEUE_ACCEPTED_KINDS = 2  # bit mask of the accepted GPU kinds, see `Nodes.accepted_kinds`
QUEUE_STEPS_DONE = 3  # steps done ...
QUEUE_PROGRESS_AT_S = 4  # ... at this time
QUEUE_STEPS_PER_S = 5  # steps per second since then; 0 = not running
QUEUE_SERVICE_S = 6  # seconds on GPUs, without the current lease
QUEUE_SERVICE_GPU_S = 7  # GPU-seconds, without the current lease
QUEUE_SINCE_S = 8  # time of the last start, stop or arrival
QUEUE_FIRST_START_S = 9  # time of the first start; nan = never started
QUEUE_RESTARTS = 10
QUEUE_HELD_GPUS = 11  # GPUs held now; 0 = waiting
QUEUE_REASON = 12  # index in `REASONS`
QUEUE_WATTS = 13  # draw of its GPUs when last measured under the last or current lease; 0 = unknown
QUEUE_LAST_GPUS = 14  # of the last or current lease: number of GPUs,
QUEUE_LAST_CAP_W = 15  # power cap of each,
QUEUE_LAST_NODE = 16  # first node
QUEUE_SAVED_STEPS = 17  # steps in its last checkpoint, ...
QUEUE_SAVED_AT_S = 18  # ... of this time, or the start of the lease; inf: a stop saves all steps
QUEUE_PROTECTED_UNTIL_S = 19  # a running job is not stopped for others before; -inf: it may be
QUEUE_STARTUP_S = 20  # time from its first start to its first progress; nan = not measured
QUEUE_RESTART_S = 21  # the same of the last restart for which it was measured; nan = of none


@dataclass(frozen=True, eq=False, slots=True)
class Queue:
    """Unfinished jobs, one column of *block* each, in order of submission."""

    block: Floats
    may_protect: bool = True  # False: no running job is protected; True: ask the block

    def __post_init__(self) -> None:
        self.block.setflags(write=False)

    def __len__(self) -> int:
        return int(self.block.shape[1])

    @property
    def job(self) -> Ints:
        """Row of each job in `Snapshot.jobs`."""
        row: Ints = self.block[QUEUE_JOB].astype(np.int64)
        return row

    @property
    def requested_gpus(self) -> Ints:
        """GPUs requested."""
        row: Ints = self.block[QUEUE_REQUESTED_GPUS].astype(np.int64)
        return row

    @property
    def since_s(self) -> Floats:
        """Time since when each job runs or waits."""
        row: Floats = self.block[QUEUE_SINCE_S]
        return row

    @property
    def first_start_s(self) -> Floats:
        """Time of the first start; nan: never started."""
        row: Floats = self.block[QUEUE_FIRST_START_S]
        return row

    @property
    def restarts(self) -> Floats:
        """Number of starts after the first."""
        row: Floats = self.block[QUEUE_RESTARTS]
        return row

    @property
    def held_gpus(self) -> Floats:
        """GPUs held now; 0: the job waits."""
        row: Floats = self.block[QUEUE_HELD_GPUS]
        return row

    @property
    def watts(self) -> Floats:
        """Draw of all its GPUs when last measured under its last or current lease; 0: unknown."""
        row: Floats = self.block[QUEUE_WATTS]
        return row

    @property
    def protected_until_s(self) -> Floats:
        """Time before which a running job is not stopped for others; inf: not before a new event."""
        row: Floats = self.block[QUEUE_PROTECTED_UNTIL_S]
        return row

    @property
    def startup_s(self) -> Floats:
        """Seconds from its first start to its first progress; nan: not measured."""
        row: Floats = self.block[QUEUE_STARTUP_S]
        return row

    @property
    def restart_s(self) -> Floats:
        """Seconds from its last restart to its next progress; nan: not measured after any restart."""
        row: Floats = self.block[QUEUE_RESTART_S]
        return row

    @property
    def running(self) -> Bools:
        """Mask of the jobs that hold GPUs."""
        row: Bools = self.block[QUEUE_HELD_GPUS] > 0
        return row
