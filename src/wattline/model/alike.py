"""Which jobs are alike: models that know jobs by what their trace says of them say the same of these."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from wattline.table import Ints
from wattline.types import Jobs


@lru_cache(maxsize=8)
def sorts(jobs: Jobs) -> tuple[Ints, Ints]:
    """The sort of each job, and a job of each sort."""
    labels = (jobs.model.codes, jobs.gpu_kind.codes)
    counts = (jobs.gpus, jobs.batch, jobs.min_gpus, jobs.max_gpus, jobs.max_batch)
    numbers = (jobs.noise.view(np.int64), jobs.cpus.view(np.int64), jobs.mem_gib.view(np.int64))
    columns = np.stack((*labels, *counts, *numbers), axis=1)
    _, first, sort = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    return sort.reshape(-1).astype(np.int64), first.astype(np.int64)
