"""Job classes: jobs with equal columns, for which a model predicts the same."""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.table import Ints

_MAX_TABLES = 64
_shared_tables: OrderedDict[tuple[object, ...], Jobs] = OrderedDict()


@lru_cache(maxsize=8)
def classify_jobs(jobs: Jobs) -> tuple[Ints, Ints]:
    """Return the class of each job, and the row of one job of each class."""
    return find_unique_rows(np.stack(_columns(jobs), axis=1))


@lru_cache(maxsize=8)
def take_representatives(jobs: Jobs) -> Jobs:
    """Return a table with one job of each class, in the order of the classes.

    Tables with the same classes share one object, so that results cached for it stay valid as a table grows.
    """
    representatives = jobs.take(classify_jobs(jobs)[1])
    words = (tuple(representatives.model.words()), tuple(representatives.gpu_kind.words()))
    key = (*words, *(column.tobytes() for column in _columns(representatives)[2:]))
    shared = _shared_tables.get(key)
    if shared is None:
        shared = _shared_tables[key] = representatives
        while len(_shared_tables) > _MAX_TABLES:
            _shared_tables.popitem(last=False)
    return shared


def _columns(jobs: Jobs) -> tuple[Ints, ...]:
    labels = (jobs.model.codes, jobs.gpu_kind.codes)
    counts = (jobs.gpus, jobs.batch, jobs.min_gpus, jobs.max_gpus, jobs.max_batch)
    return *labels, *counts, *(column.view(np.int64) for column in (jobs.noise, jobs.cpus, jobs.mem_gib))


def find_unique_rows(rows: Ints) -> tuple[Ints, Ints]:
    """Return for each row the number of its distinct value in sorted order, and the first row of each value.

    Rows are compared by a hash first: sorting whole rows takes ten times as long.
    """
    with np.errstate(over="ignore"):
        hashed = rows[:, 0].copy()
        for column in rows.T[1:]:
            hashed = (hashed ^ (hashed >> 29)) * np.int64(-0x61C8864680B583EB) + column
    _, first, code = np.unique(hashed, return_index=True, return_inverse=True)
    code = code.reshape(-1)
    if not np.array_equal(rows[first][code], rows):  # a hash collision
        _, first, code = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return code.reshape(-1).astype(np.int64), first.astype(np.int64)
    order = np.lexsort(rows[first].T[::-1])
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[code].astype(np.int64), first[order].astype(np.int64)
