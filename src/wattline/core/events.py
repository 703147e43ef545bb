"""What happened."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

ARRIVED: Final = 0  # a job was submitted
RAN: Final = 1  # a job had done `steps` at `at_s` and goes on at `rate` steps/s, drawing `energy_j` J/s
STOPPED: Final = 2  # a job that was told to stop has stopped, `steps` are saved
LOST: Final = 3  # a job lost its GPUs without being told to stop; `steps` are saved; it queues again
FINISHED: Final = 4  # a job has done all its steps
FAILED: Final = 5  # a job ended without doing all its steps, and will not be tried again
NODE_LOST: Final = 6  # node number `job` is down
NODE_BACK: Final = 7  # node number `job` is up again, or has booted
METERED: Final = 8  # the cluster (`job` -1) or team number `job` has used `energy_j` since the start
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
EVERY_EVENT: Final = frozenset(range(METERED))
"""All that can wake somebody. Who names `METERED` too wants the meter read before each answer."""
ENDS: Final = (STOPPED, LOST, FINISHED, FAILED)
"""Ends of leases: these tell what a lease has used."""
NEWS: Final = frozenset((ARRIVED, LOST, NODE_LOST, NODE_BACK))
"""What may make somebody start who could not before, other than GPUs that became free."""


class Event(NamedTuple):
    """One thing that happened. `energy_j` is what a lease that ended has used; see `RAN`, `METERED`."""

    verb: int
    job: int
    at_s: float
    steps: float = 0.0
    rate: float = 0.0
    energy_j: float = 0.0


EVENT_VERB, EVENT_JOB, EVENT_AT_S, EVENT_STEPS, EVENT_RATE, EVENT_ENERGY_J = range(6)
EVENT_COLUMNS: Final = 6

Events = NDArray[np.float64]
"""One row per event, in the columns of `Event`, in the order in which things happened."""


def rows(*events: Event) -> Events:
    """*events* as one array."""
    table = np.array(events, dtype=np.float64).reshape(-1, EVENT_COLUMNS)
    table.setflags(write=False)
    return table


def each(events: Events) -> list[Event]:
    """The rows of *events*, one by one."""
    return [Event(int(row[0]), int(row[1]), *row[2:]) for row in events.tolist()]
