"""Columns of the programme: the configurations of each job class on all kinds of GPU, without dominated ones.

A column is a kind of GPU, a number of GPUs and a power cap (with the batch size that is fastest there). It is
dominated if another one of the same class and kind needs no more GPUs and no more watts and is as fast.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.jit import F1, F3, I1, I2, INT, inner, kernel, record
from wattline.models.configurations import Configurations

_SAME = 1e-9


class Columns(NamedTuple):
    """Columns of all job classes, those of a class in a row and by rising speed.

    Class c has the columns from *start[c]* to *start[c + 1]*. Watts contain the GPUs' share of their node.
    """

    start: Ints
    speed: Floats
    gpus: Floats
    watts: Floats
    kind: Ints
    size: Ints  # index on axis 1 of the configurations
    cap: Ints  # index on axis 2


COLUMNS = record(Columns, I1, F1, F1, F1, I1, I1, I1)
"""The type of `Columns` as an argument of kernels."""


@lru_cache(maxsize=4)
def build_columns(configs: Configurations) -> Columns:
    """Return the columns of all classes; class c is row `c + kind * classes` of *configs*."""
    kinds = configs.job_class.shape[1] if configs.job_class.size else 1
    return Columns(
        *_collect(
            kinds,
            configs.size_count,
            configs.gpus,
            configs.speed,
            configs.watts,
            configs.static_w,
        )
    )


@inner
def _is_dominated(a: int, count: int, speed: Floats, gpus: Floats, watts: Floats) -> bool:
    """Return whether another of *count* columns of a kind is at least as good; the last of equals stays."""
    for b in range(count):
        if b == a or speed[b] < speed[a] * (1 - _SAME):
            continue
        if gpus[b] <= gpus[a] and watts[b] <= watts[a] * (1 + _SAME):
            better = (
                gpus[b] < gpus[a] or watts[b] < watts[a] * (1 - _SAME) or speed[b] > speed[a] * (1 + _SAME)
            )
            if better or b > a:
                return True
    return False


@kernel(INT, I1, I2, F3, F3, F1)
def _collect(
    kinds: int, size_count: Ints, gpus: Ints, speeds: Floats, draws_w: Floats, static_w: Floats
) -> tuple[Ints, Floats, Floats, Floats, Ints, Ints, Ints]:
    classes, caps = len(size_count) // kinds, speeds.shape[2]
    most = kinds * speeds.shape[1] * caps
    total = classes * most
    start = np.zeros(classes + 1, dtype=np.int64)
    speed, wide, watts = np.empty(total), np.empty(total), np.empty(total)
    kind, size, cap = (
        np.empty(total, dtype=np.int64),
        np.empty(total, dtype=np.int64),
        np.empty(total, dtype=np.int64),
    )
    own = np.empty((3, most))
    what = np.empty((3, most), dtype=np.int64)
    at = 0
    for c in range(classes):
        found = 0
        for k in range(kinds):
            row = c + k * classes
            part = np.empty((3, speeds.shape[1] * caps))
            origin = np.empty((2, part.shape[1]), dtype=np.int64)
            count = 0
            for s in range(size_count[row]):
                for q in range(caps):
                    if speeds[row, s, q] > 0 and np.isfinite(speeds[row, s, q]):
                        part[0, count], part[1, count] = speeds[row, s, q], gpus[row, s]
                        part[2, count] = draws_w[row, s, q] + gpus[row, s] * static_w[row]
                        origin[0, count], origin[1, count] = s, q
                        count += 1
            for a in range(count):
                if not _is_dominated(a, count, part[0], part[1], part[2]):
                    own[:, found] = part[:, a]
                    what[0, found], what[1, found], what[2, found] = k, origin[0, a], origin[1, a]
                    found += 1
        order = np.argsort(own[0, :found], kind="mergesort")
        for p in range(found):
            a = order[p]
            speed[at], wide[at], watts[at] = own[0, a], own[1, a], own[2, a]
            kind[at], size[at], cap[at] = what[0, a], what[1, a], what[2, a]
            at += 1
        start[c + 1] = at
    return (
        start,
        speed[:at].copy(),
        wide[:at].copy(),
        watts[:at].copy(),
        kind[:at].copy(),
        size[:at].copy(),
        cap[:at].copy(),
    )
