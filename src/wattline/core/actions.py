"""Actions: what the loop orders a backend to do."""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

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


class Action(NamedTuple):
    """One action with all its nodes."""

    verb: int
    job: int
    group: int
    nodes: list[int]
    gpus: list[int]  # by node
    settings: tuple[int, ...]  # cap_w, batch, host resources per GPU


def list_actions(actions: Actions) -> list[Action]:
    """Return the rows of *actions* as `Action` tuples: a start has one row per node, and becomes one."""
    if len(actions) == 1:
        ((verb, job, group, node, gpus, *settings),) = actions.tolist()
        return [Action(verb, job, group, [node], [gpus], tuple(settings))]
    verbs, jobs = actions[:, ACTION_VERB], actions[:, ACTION_JOB]
    begins = (verbs[1:] != START) | (verbs[:-1] != START) | (jobs[1:] != jobs[:-1])
    first = [0, *(np.flatnonzero(begins) + 1).tolist()] if len(actions) else []
    nodes, gpus = actions[:, ACTION_NODE].tolist(), actions[:, ACTION_GPUS].tolist()
    heads, ranges = actions[first].tolist(), pairwise((*first, len(actions)))
    return [
        Action(verb, job, group, nodes[start:end], gpus[start:end], tuple(settings))
        for (verb, job, group, _, _, *settings), (start, end) in zip(heads, ranges, strict=True)
    ]
