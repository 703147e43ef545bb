"""How queue, GPUs and power went over time, as few enough points to plot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.nodes import Nodes
from wattline.core.table import Floats
from wattline.loop.runlog import Log
from wattline.reports.data.downsample import thin
from wattline.reports.summary import Course, course

POINTS = 2000


@dataclass(frozen=True, eq=False)
class Steps:
    """A step function: *value* holds from *at_s* (since the first submission) to the next."""

    at_s: Floats
    value: Floats


@dataclass(frozen=True, eq=False)
class Series:
    """What a run looked like over time."""

    waiting: Steps  # jobs
    utilisation: Steps  # share of the cluster's GPUs
    power: Steps  # watts


def series(log: Log, points: int = POINTS) -> Series:
    """Queue length, GPU utilisation and power of *log* over time, at most *points* each."""
    return series_of(course(log), log.nodes, points)


def series_of(went: Course, nodes: Nodes, points: int = POINTS) -> Series:
    """The same from the tables of a log."""
    line = went.timeline
    since_s = float(went.fates.submit_s.min()) if len(went.fates) else 0.0
    first = int(np.searchsorted(line.at_s, since_s))  # nodes may break before anybody comes

    def steps(value: Floats) -> Steps:
        at_s, value = line.at_s[first:] - since_s, value[first:]
        rows = thin(at_s, value, points)
        return Steps(at_s[rows], value[rows])

    gpus = max(1, int(nodes.gpus.sum()))
    return Series(steps(line.waiting), steps(line.held / gpus), steps(line.power_w))
