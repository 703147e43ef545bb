"""Events: what backends report to the loop."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

ARRIVED: Final = 0  # a job was submitted
RAN: Final = 1  # a job had done `steps` at `at_s` and goes on at `rate` steps/s, drawing `energy_j` J/s
STOPPED: Final = 2  # a job has stopped after a STOP action; `steps` are saved
LOST: Final = 3  # a job lost its GPUs without a STOP action; `steps` are saved; it queues again
FINISHED: Final = 4  # a job has done all its steps
FAILED: Final = 5  # a job ended before its last step and is not retried
NODE_LOST: Final = 6  # node number `job` is down
NODE_BACK: Final = 7  # node number `job` is up again, or has booted
METERED: Final = 8  # the cluster (`job` -1) or team number `job` has used `energy_j` since the start
PROTECTED: Final = 9  # a running job has saved `steps` and is not stopped before `rate`; see `Event`
CAPACITY: Final = 10  # others leave `steps` GPUs, `rate` cores and `energy_j` GiB of node number `job`
READY: Final = 11  # a job has made its first progress, `rate` seconds after it was started
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
    "protected",
    "capacity",
    "ready",
)
WAKE_EVENTS: Final = frozenset((*range(METERED), PROTECTED, CAPACITY))
"""Events that can end `Backend.wait`. With `METERED` added, the meter is read before each return."""
LEASE_END_EVENTS: Final = (STOPPED, LOST, FINISHED, FAILED)
"""Events that end a lease and carry the energy that it has used."""
START_EVENTS: Final = frozenset((ARRIVED, LOST, NODE_LOST, NODE_BACK, CAPACITY))
"""Events after which a waiting job may be able to start, other than those that free GPUs."""


class Event(NamedTuple):
    """One event.

    `job` is a row of `Jobs`, except for node events and `METERED`. `energy_j` is the energy of a lease that
    ended; watts for `RAN`; a meter reading for `METERED`. For `PROTECTED`, `rate` is the time before which
    the job is not stopped for others (inf: not before another event), and `energy_j` the time of its last
    checkpoint (inf: a stop saves all that it has done). `CAPACITY` replaces an earlier one of the same node.
    """

    verb: int
    job: int
    at_s: float
    steps: float = 0.0
    rate: float = 0.0
    energy_j: float = 0.0


EVENT_VERB, EVENT_JOB, EVENT_AT_S, EVENT_STEPS, EVENT_RATE, EVENT_ENERGY_J = range(6)
EVENT_COLUMNS: Final = 6

Events = NDArray[np.float64]
"""One row per event, columns as in `Event`, in order of occurrence."""


def build_events(*events: Event) -> Events:
    """Return *events* as one read-only array."""
    table = np.array(events, dtype=np.float64).reshape(-1, EVENT_COLUMNS)
    table.setflags(write=False)
    return table


def list_events(events: Events) -> list[Event]:
    """Return the rows of *events* as `Event` tuples."""
    return [Event(int(verb), int(job), *rest) for verb, job, *rest in events.tolist()]
