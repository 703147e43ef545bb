"""What belongs to a GPU of its host: the proportional share of cores and memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes


def with_shares(jobs: Jobs, nodes: Nodes) -> Jobs:
    """*jobs*, those that do not say what of the host they were timed with, with their share of *nodes*.

    That is the least share of the kinds which a job accepts.
    """
    unsaid = (jobs.cpus == 0) | (jobs.mem_gib == 0)
    if not unsaid.any():
        return jobs
    accepts = nodes.accepts(jobs.gpu_kind)
    masks, place = np.unique(accepts, return_inverse=True)
    bits = np.int64(1) << nodes.kind.codes
    may = (masks[:, None] & bits) != 0
    may[~may.any(axis=1)] = True  # it never runs here
    cpus, mem_gib = (
        np.where(may, each, np.inf).min(axis=1)[place] * jobs.gpus
        for each in (nodes.cpus / nodes.gpus, nodes.mem_gib / nodes.gpus)
    )
    return replace(
        jobs,
        cpus=np.where(jobs.cpus > 0, jobs.cpus, cpus),
        mem_gib=np.where(jobs.mem_gib > 0, jobs.mem_gib, mem_gib),
    )
