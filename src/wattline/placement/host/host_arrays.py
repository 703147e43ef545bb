"""Arrays that the kernels of host placers share; rows of host resources are as in `HOST_RESOURCES`."""

from __future__ import annotations

from typing import NamedTuple

from wattline.core.table import Bools, Floats, Ints
from wattline.jit import F1, I1, I2, record


class HostNodes(NamedTuple):
    """Nodes and their host resources."""

    kind: Ints
    gpus: Ints
    host: Ints  # 0: unlimited
    share: Ints  # proportional share of each GPU
    shape: Ints  # see `Sensitivity.node_shape`
    boot_done_s: Floats


class PointTable(NamedTuple):
    """Pareto points: columns `start[s]` to `start[s + 1]` are those of set s; see `Sensitivity`."""

    start: Ints
    saturated: Ints  # by set the point that a job is taken to want when it is placed
    host: Ints  # per GPU
    speed: Floats


class JobSets(NamedTuple):
    """Point sets by row of the queue; see `Sensitivity.point_sets` and `Sensitivity.spread_sets`."""

    sets: Ints
    spread: Ints


class FreeResources(NamedTuple):
    """GPUs and host resources that are left on each node."""

    gpus: Ints
    host: Ints  # may be negative


class NodeJobs(NamedTuple):
    """Leaders that are on one node only: entries `start[n]` to `start[n + 1]` are those of node n."""

    start: Ints
    row: Ints  # of the queue
    gpus: Ints
    point: Ints
    stays: Bools  # it runs on this node already


HOST_NODES = record(HostNodes, I1, I1, I2, I2, I1, F1)
POINT_TABLE = record(PointTable, I1, I1, I2, F1)
JOB_SETS = record(JobSets, I2, I2)
