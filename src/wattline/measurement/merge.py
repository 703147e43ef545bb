"""Merge measurements of the same setting, and check that they agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattline.core.table import Floats, Ints
from wattline.measurement.points import Profile
from wattline.measurement.settings import KNOBS

AGREE = 1.2
"""Two measurements of one setting may differ by this factor; more is a contradiction."""

_SURE = 4.0  # standard errors by which contradicting rows must differ, where those are known


def with_batches(rows: Profile) -> Profile:
    """Fill missing batch sizes of *rows* with the usual batch per GPU, if other rows have one."""
    each = rows.batch / rows.gpus
    if np.isnan(each).all() or not np.isnan(each).any():
        return rows
    return replace(rows, batch=np.where(np.isnan(each), np.nanmedian(each) * rows.gpus, rows.batch))


def merged(profile: Profile) -> Profile:
    """One row per setting; rows of one setting that contradict each other raise `ProfileError`."""
    knobs = np.column_stack([np.nan_to_num(getattr(profile, name), nan=-1.0) for name in KNOBS])
    _, first, group = np.unique(knobs, axis=0, return_index=True, return_inverse=True)
    if len(first) == len(profile):
        return profile
    group = group.reshape(-1)
    for name in ("samples_s", "watts"):
        _check_agreement(profile, name, group)

    def mean(values: Floats) -> Floats:
        weight = np.where(np.isnan(values), 0.0, profile.n)
        total = np.bincount(group, weight)
        summed = np.bincount(group, weight * np.nan_to_num(values))
        return np.where(total > 0, summed / np.where(total > 0, total, 1.0), np.nan)

    spread = np.bincount(group, (profile.n * np.nan_to_num(profile.stderr)) ** 2)
    count = np.bincount(group, profile.n)
    known = np.bincount(group, np.isnan(profile.stderr)) == 0
    stderr = np.where(known, np.sqrt(spread) / count, np.nan)
    return replace(
        profile.take(first),
        samples_s=mean(profile.samples_s),
        watts=mean(profile.watts),
        peak_gib=mean(profile.peak_gib),
        n=count.astype(np.float64),
        stderr=stderr,
    )


def _check_agreement(profile: Profile, name: str, group: Ints) -> None:
    values = getattr(profile, name)
    for one in np.unique(group[~np.isnan(values)]):
        rows = np.flatnonzero((group == one) & ~np.isnan(values))
        low, high = rows[np.argmin(values[rows])], rows[np.argmax(values[rows])]
        if values[high] <= AGREE * values[low]:
            continue
        unsure = np.hypot(profile.stderr[low], profile.stderr[high]) if name == "samples_s" else np.nan
        if values[high] - values[low] <= _SURE * unsure:
            continue
        first, second = sorted((low, high))
        raise profile.error(
            second,
            f"{name} is {values[second]:g}, but line {profile.line[first]} says {values[first]:g} of the"
            f" same setting, expected them within a factor of {AGREE:g}",
        )


def unstarved(rows: Profile) -> Profile:
    """Of rows that differ only in cores and memory, the fastest: nothing but the GPU held it back."""
    others = [name for name in KNOBS if name not in ("cpus", "mem_gib")]
    knobs = np.column_stack([np.nan_to_num(getattr(rows, name), nan=-1.0) for name in others])
    order = np.argsort(-rows.samples_s, kind="stable")
    _, first = np.unique(knobs[order], axis=0, return_index=True)
    return rows.take(np.sort(order[first]))
