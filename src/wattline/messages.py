"""The verbs: what happened (events), and what to do (actions).

Both are rows of numbers, because a round may carry thousands. An event is a named tuple; actions are
one integer array. The words of a log are in `EVENT_WORDS` and `ACTION_WORDS`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

ARRIVED: Final = 0  # a job was submitted
RAN: Final = 1  # a job had done `steps` at `at_s` and goes on at `rate` steps per second
STOPPED: Final = 2  # a job that was told to stop has stopped, `steps` are saved
LOST: Final = 3  # a job lost its GPUs without being told to stop; `steps` are saved; it queues again
FINISHED: Final = 4  # a job has done all its steps
FAILED: Final = 5  # a job ended without doing all its steps, and will not be tried again
NODE_LOST: Final = 6  # node number `job` is down
NODE_BACK: Final = 7  # node number `job` is up again
METERED: Final = 8  # the whole cluster has used `energy_j` since the start
EVENT_WORDS: Final = (
    "arrived",
    "ran",
    "stopped",
    "lost",
    "finished",
    "failed",
    "node_lost",
    "node_back",
    "metered",
)


class Event(NamedTuple):
    """One thing that happened. `energy_j` is what the lease that just ended has used."""

    verb: int
    job: int
    at_s: float
    steps: float = 0.0
    rate: float = 0.0
    energy_j: float = 0.0


START: Final = 0  # run the job on `gpus` of `node`; several rows when it spans nodes
STOP: Final = 1  # let it save its work and give its GPUs back
ACTION_WORDS: Final = ("start", "stop")

Actions = NDArray[np.int64]
"""Columns verb, job, group, node, gpus; the rows of one job's start follow each other."""

NO_ACTIONS: Final[Actions] = np.empty((0, 5), dtype=np.int64)
NO_ACTIONS.setflags(write=False)
