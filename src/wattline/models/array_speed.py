"""Step time and memory of jobs trained together as one fused array (HFTA, MLSys'21).

    step_s(B) = step_s(1) · (1 + serial · (B − 1))        peak_gib(B) = shared + B · member

*serial* 0: further members are free; 1: fusing gains nothing; above 1: fusing is slower than running the
members one after another. Until an array is measured, *serial* is 0.65 and members share no memory. An array
of 16 then processes 1.49 times the samples of one job, less than every compiled array of small models that
was measured on a CPU (1.5 to 21 times). No GPU measurement exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.protocols import Models
from wattline.core.table import Bools, Floats, Ints

DEFAULT_SERIAL = 0.65


@dataclass(frozen=True)
class ArrayModel:
    """Slowdown and memory of a fused array as a function of its width; *member_gib* nan: not measured."""

    serial: float = DEFAULT_SERIAL
    shared_gib: float = 0.0
    member_gib: float = np.nan

    def slowdown(self, fuse: Floats) -> Floats:
        """Return the step time of *fuse* jobs as a multiple of one job's step time."""
        return np.asarray(1.0 + self.serial * (fuse - 1.0))

    def peak_gib(self, fuse: Floats) -> Floats:
        """Return the memory in GiB that *fuse* jobs need on each GPU."""
        return np.asarray(self.shared_gib + self.member_gib * fuse)

    def max_width(self, gpu_gib: float) -> int:
        """Return the number of jobs that fit into *gpu_gib*, at least 1; 1 where memory was not measured."""
        if np.isnan(self.member_gib):
            return 1
        return max(1, int((gpu_gib - self.shared_gib) / self.member_gib + 1e-9))


@lru_cache(maxsize=8)
def has_fusion_key(jobs: Jobs) -> Bools:
    """Return a mask of the jobs that have a fusion key."""
    return np.array([name != "" for name in jobs.fuse.names], dtype=np.bool_)[jobs.fuse.codes]


def count_group_members(jobs: Jobs, job: Ints, group: Ints) -> tuple[Ints, Bools]:
    """Return for each *job* the size of its *group*, and whether the group runs as one fused array.

    A group is fused if all its members have the same fusion key; otherwise its jobs are only packed.
    """
    _, inverse, members = np.unique(group, return_inverse=True, return_counts=True)
    key = jobs.fuse.codes[job]
    first_key = np.empty(len(members), dtype=np.int64)
    first_key[inverse] = key
    same_key = np.bincount(inverse, key == first_key[inverse], len(members)) == members
    return members[inverse], ((members > 1) & same_key)[inverse] & has_fusion_key(jobs)[job]


def max_array_width(models: Models, jobs: Jobs, grants: Grants) -> Floats:
    """Return the widest array of such jobs that fits into GPU memory according to *models*; inf: unknown."""
    known = getattr(models, "widest", None)
    return np.full(len(grants), np.inf) if known is None else np.asarray(known(jobs, grants))


def fit_array(fuse: Floats, slowdown: Floats, peak_gib: Floats) -> ArrayModel:
    """Fit an array model to step times relative to one job's and to peak memory; nan: not measured."""
    fused = (fuse > 1) & ~np.isnan(slowdown)
    serial = DEFAULT_SERIAL
    if fused.any():
        x = (fuse[fused] - 1.0) / slowdown[fused]
        y = 1.0 - 1.0 / slowdown[fused]
        serial = max(0.0, float(x @ y / (x @ x)))
    measured = ~np.isnan(peak_gib)
    if not measured.any():
        return ArrayModel(serial)
    if len(np.unique(fuse[measured])) == 1:
        return ArrayModel(serial, 0.0, float(np.max(peak_gib[measured] / fuse[measured])))
    member, shared = np.polyfit(fuse[measured], peak_gib[measured], 1)
    if shared < 0 or member <= 0:
        return ArrayModel(serial, 0.0, float(np.max(peak_gib[measured] / fuse[measured])))
    return ArrayModel(serial, float(shared), float(member))
