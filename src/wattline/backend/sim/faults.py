"""Overheads and failures of a simulated cluster."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.table import Floats
from wattline.errors import ConfigError

_MOST_ATTEMPTS = 10_000.0  # for one checkpoint; with an hour of repair each, more than a year


@dataclass(frozen=True)
class Overheads:
    """Seconds without progress while a job holds GPUs: one number for all jobs, or one per job.

    The first start costs *start_s*, every later one *restart_s*, plus *rescale_s* if the number of GPUs
    changed. Saving costs the last *stop_s* seconds of work before a stop.
    """

    start_s: float | Sequence[float] = 0.0
    restart_s: float | Sequence[float] = 30.0
    rescale_s: float | Sequence[float] = 0.0
    stop_s: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not np.all(np.asarray(value) >= 0):
                raise ConfigError(f"{name} must be at least 0, got {value}")

    def column(self, name: str, count: int) -> array[float]:
        """Return one number per job."""
        return compact(np.broadcast_to(np.asarray(getattr(self, name), np.float64), count))


def compact(column: Floats) -> array[float]:
    """Return *column* as an array that is indexed as fast as a list, in a quarter of the memory."""
    return array("d", np.ascontiguousarray(column).tobytes())


@dataclass(frozen=True)
class Faults:
    """Failures of nodes and jobs, on a schedule that depends on the seed only.

    The time between failures of a node is exponential with mean *node_mtbf_s*; it is up again after
    *node_repair_s*. Its jobs fall back to their last checkpoint. A job checkpoints every *checkpoint_s*
    of running and when the group on its GPUs changes. Each attempt of a job fails with probability
    *job_failure* at a random point of its remaining steps; after *retries* more attempts the job has FAILED.
    *outages* are (node, down_s, up_s): times at which nodes are down for sure; up_s may be inf.
    """

    node_mtbf_s: float = math.inf
    node_repair_s: float = 3600.0
    job_failure: float = 0.0
    retries: int = 3
    checkpoint_s: float = 1800.0
    outages: tuple[tuple[int, float, float], ...] = ()

    def __post_init__(self) -> None:
        for name in ("node_mtbf_s", "node_repair_s", "checkpoint_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        if not 0 <= self.job_failure < 1:
            raise ConfigError(f"job_failure must be at least 0 and below 1, got {self.job_failure}")
        for node, down_s, up_s in self.outages:
            if node < 0 or not -math.inf < down_s <= up_s:
                raise ConfigError(
                    f"outage of node {node} from {down_s} to {up_s}, expected an end not before"
                )

    def check_progress(self, jobs: Jobs, nodes: Nodes) -> None:
        """Raise `ConfigError` if nodes fail so often that a job would practically never finish.

        A job must run from one checkpoint to the next without a failure of any of its nodes. On k nodes
        for t seconds it does so once in exp(k·t / node_mtbf_s) attempts.
        """
        if math.isinf(self.node_mtbf_s) or not len(jobs):
            return
        every_s = np.where(jobs.checkpoint_s == 0, self.checkpoint_s, jobs.checkpoint_s)
        every_s = np.minimum(np.where(every_s < 0, np.inf, every_s), jobs.duration_s)
        spans = np.ceil(jobs.gpus / nodes.gpus.max()) * every_s
        worst = int(np.argmax(spans))
        least_s = float(spans[worst]) / math.log(_MOST_ATTEMPTS)
        if self.node_mtbf_s < least_s:
            raise ConfigError(
                f"nodes fail every {self.node_mtbf_s:g} s on average, so job {jobs.id[worst]} never ends:"
                f" it needs {every_s[worst]:g} s without a failure of its nodes",
                f"a time between failures of at least {math.ceil(least_s)} s, or checkpoints more often",
            )


def list_limits(limit_s: Floats | None, count: int) -> list[float]:
    """Return the time limit of each job as a list; inf: none."""
    if limit_s is None:
        return [math.inf] * count
    limits: list[float] = np.where(np.isnan(limit_s), np.inf, limit_s).tolist()
    return limits
