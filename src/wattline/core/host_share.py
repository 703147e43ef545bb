"""Proportional share of a host's cores and memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes


def fill_host_shares(jobs: Jobs, nodes: Nodes) -> Jobs:
    """Fill `cpus` and `mem_gib` of the jobs that leave them open with their proportional share of *nodes*.

    The share is the smallest one among the GPU kinds that a job accepts.
    """
    unset = (jobs.cpus == 0) | (jobs.mem_gib == 0)
    if not unset.any():
        return jobs
    accepts = nodes.accepted_kinds(jobs.gpu_kind)
    masks, mask_of_job = np.unique(accepts, return_inverse=True)
    bits = np.int64(1) << nodes.kind.codes
    accepted = (masks[:, None] & bits) != 0
    accepted[~accepted.any(axis=1)] = True  # such a job never runs here
    cpus, mem_gib = (
        np.where(accepted, per_gpu, np.inf).min(axis=1)[mask_of_job] * jobs.gpus
        for per_gpu in (nodes.cpus / nodes.gpus, nodes.mem_gib / nodes.gpus)
    )
    return replace(
        jobs,
        cpus=np.where(jobs.cpus > 0, jobs.cpus, cpus),
        mem_gib=np.where(jobs.mem_gib > 0, jobs.mem_gib, mem_gib),
    )
