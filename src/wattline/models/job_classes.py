"""Which jobs are alike: models that know jobs by what their trace says of them say the same of these."""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.table import Ints

_KEPT = 64
_tables: OrderedDict[tuple[object, ...], Jobs] = OrderedDict()


@lru_cache(maxsize=8)
def sorts(jobs: Jobs) -> tuple[Ints, Ints]:
    """The sort of each job, and a job of each sort."""
    return distinct(np.stack(_columns(jobs), axis=1))


@lru_cache(maxsize=8)
def examples(jobs: Jobs) -> Jobs:
    """A job of each sort, in the order of the sorts. Tables with the same sorts have the same one: what was
    computed of it holds for all of them, however they grow."""
    small = jobs.take(sorts(jobs)[1])
    words = (tuple(small.model.words()), tuple(small.gpu_kind.words()))
    key = (*words, *(column.tobytes() for column in _columns(small)[2:]))
    known = _tables.get(key)
    if known is None:
        known = _tables[key] = small
        while len(_tables) > _KEPT:
            _tables.popitem(last=False)
    return known


def _columns(jobs: Jobs) -> tuple[Ints, ...]:
    labels = (jobs.model.codes, jobs.gpu_kind.codes)
    counts = (jobs.gpus, jobs.batch, jobs.min_gpus, jobs.max_gpus, jobs.max_batch)
    return *labels, *counts, *(column.view(np.int64) for column in (jobs.noise, jobs.cpus, jobs.mem_gib))


def distinct(rows: Ints) -> tuple[Ints, Ints]:
    """The number of each row among those that differ, which are counted in order; and a row of each.

    Rows are told apart by a hash first: sorting whole rows takes ten times as long.
    """
    with np.errstate(over="ignore"):
        mixed = rows[:, 0].copy()
        for column in rows.T[1:]:
            mixed = (mixed ^ (mixed >> 29)) * np.int64(-0x61C8864680B583EB) + column
    _, first, code = np.unique(mixed, return_index=True, return_inverse=True)
    code = code.reshape(-1)
    if not np.array_equal(rows[first][code], rows):  # two rows with one hash
        _, first, code = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return code.reshape(-1).astype(np.int64), first.astype(np.int64)
    order = np.lexsort(rows[first].T[::-1])
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place[code].astype(np.int64), first[order].astype(np.int64)
