"""What a backend should do."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

START: Final = 0  # run the job on `gpus` of `node`; several rows when it spans nodes
STOP: Final = 1  # let it save its work and give its GPUs back
RETUNE: Final = 2  # go on under another `cap_w`, with another share of the host
POWER_OFF: Final = 3  # switch `node` off
POWER_ON: Final = 4  # switch `node` on; it is back when it has booted
ACTION_WORDS: Final = ("start", "stop", "retune", "power_off", "power_on")
Actions = NDArray[np.int64]
"""Columns verb, job, group, node, gpus, cap_w, batch, mcpus, mem_mib, read_mib_s; the rows of one job's
start follow each other.

The cap is of each GPU; 0: none. The batch is of the whole job; 0: as asked. The last three are what each
GPU has of the host; 0: the proportional share.
"""
ACTION_VERB, ACTION_JOB, ACTION_GROUP, ACTION_NODE, ACTION_GPUS = range(5)
ACTION_CAP_W, ACTION_BATCH, ACTION_HOST = range(5, 8)  # ACTION_HOST: the first of the three host columns
ACTION_COLUMNS: Final = 10
NO_ACTIONS: Final[Actions] = np.empty((0, ACTION_COLUMNS), dtype=np.int64)
NO_ACTIONS.setflags(write=False)
