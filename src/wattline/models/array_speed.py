"""What jobs gain when several are trained as one array (HFTA, MLSys'21).

    step_s(B) = step_s(1) · (1 + serial · (B − 1))        peak_gib(B) = shared + B · member

*serial* 0: further members are free; 1: fusing gains nothing; above 1: it loses. Until an array is
measured, *serial* is 0.65: an array of 16 then does 1.49 times the samples of one job, which is less than
each of the compiled arrays of small models that were measured on a CPU did (1.5 to 21 times). On a GPU
nothing was measured. Members then share no memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.protocols import Models
from wattline.core.table import Bools, Floats, Ints

UNMEASURED = 0.65


@dataclass(frozen=True)
class Array:
    """How an array of jobs slows down and fills memory as it gets wider; *member_gib* nan: unknown."""

    serial: float = UNMEASURED
    shared_gib: float = 0.0
    member_gib: float = np.nan

    def slowdown(self, fuse: Floats) -> Floats:
        """How many times as long as one job's a step of *fuse* jobs takes."""
        return np.asarray(1.0 + self.serial * (fuse - 1.0))

    def peak_gib(self, fuse: Floats) -> Floats:
        """Memory that *fuse* jobs need on each GPU."""
        return np.asarray(self.shared_gib + self.member_gib * fuse)

    def widest(self, gpu_gib: float) -> int:
        """How many jobs fit into the memory of a GPU; at least one, which is known to run."""
        if np.isnan(self.member_gib):
            return 1
        return max(1, int((gpu_gib - self.shared_gib) / self.member_gib + 1e-9))


@lru_cache(maxsize=8)
def keyed(jobs: Jobs) -> Bools:
    """Which jobs have a fusion key."""
    return np.array([name != "" for name in jobs.fuse.names], dtype=np.bool_)[jobs.fuse.codes]


def company(jobs: Jobs, job: Ints, group: Ints) -> tuple[Ints, Bools]:
    """How many share the GPUs of each *job* when those in one *group* do, and whether as one array.

    An array is what all members of a group are that have the same fusion key; others are only packed.
    """
    _, place, members = np.unique(group, return_inverse=True, return_counts=True)
    key = jobs.fuse.codes[job]
    first = np.empty(len(members), dtype=np.int64)
    first[place] = key
    alike = np.bincount(place, key == first[place], len(members)) == members
    return members[place], ((members > 1) & alike)[place] & keyed(jobs)[job]


def widest(models: Models, jobs: Jobs, grants: Grants) -> Floats:
    """How many such jobs fit as one array into the memory of each GPU, as *models* say; inf: nobody knows."""
    known = getattr(models, "widest", None)
    return np.full(len(grants), np.inf) if known is None else np.asarray(known(jobs, grants))


def fit_array(fuse: Floats, slowdown: Floats, peak_gib: Floats) -> Array:
    """From steps of *fuse* jobs relative to one job's, and memory; nan: not measured."""
    wide = (fuse > 1) & ~np.isnan(slowdown)
    serial = UNMEASURED
    if wide.any():
        x = (fuse[wide] - 1.0) / slowdown[wide]
        y = 1.0 - 1.0 / slowdown[wide]
        serial = max(0.0, float(x @ y / (x @ x)))
    seen = ~np.isnan(peak_gib)
    if not seen.any():
        return Array(serial)
    if len(np.unique(fuse[seen])) == 1:
        return Array(serial, 0.0, float(np.max(peak_gib[seen] / fuse[seen])))
    member, shared = np.polyfit(fuse[seen], peak_gib[seen], 1)
    if shared < 0 or member <= 0:
        return Array(serial, 0.0, float(np.max(peak_gib[seen] / fuse[seen])))
    return Array(serial, float(shared), float(member))
