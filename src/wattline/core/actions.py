"""Actions: what the loop orders a backend to do."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

START: Final = 0  # run the job on `gpus` of `node`; one row per node
STOP: Final = 1  # save a checkpoint and release the GPUs
RETUNE: Final = 2  # continue with another `cap_w` or host share
POWER_OFF: Final = 3  # switch `node` off
POWER_ON: Final = 4  # switch `node` on; NODE_BACK follows when it has booted
ACTION_WORDS: Final = ("start", "stop", "retune", "power_off", "power_on")
Actions = NDArray[np.int64]
"""Columns verb, job, group, node, gpus, cap_w, batch, mcpus, mem_mib, read_mib_s.

The rows of one job's start are adjacent.

`cap_w` is per GPU; 0: no cap. `batch` is of the whole job; 0: as requested. The last three are host resources
per GPU; 0: the proportional share.
"""
ACTION_VERB, ACTION_JOB, ACTION_GROUP, ACTION_NODE, ACTION_GPUS = range(5)
ACTION_CAP_W, ACTION_BATCH, ACTION_HOST = range(5, 8)  # ACTION_HOST: the first of the three host columns
ACTION_COLUMNS: Final = 10
NO_ACTIONS: Final[Actions] = np.empty((0, ACTION_COLUMNS), dtype=np.int64)
NO_ACTIONS.setflags(write=False)


def find_action_ranges(actions: Actions) -> list[tuple[int, int]]:
    """Return the first row of each action and the row after its last: a start has one row per node."""
    count = len(actions)
    if count < 2:
        return [(0, count)] if count else []
    verb, job = actions[:, ACTION_VERB], actions[:, ACTION_JOB]
    first = np.flatnonzero((verb[1:] != START) | (verb[:-1] != START) | (job[1:] != job[:-1])) + 1
    edges = [0, *first.tolist(), count]
    return list(pairwise(edges))
