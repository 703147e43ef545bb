"""Queue length, GPU utilisation and power over time, downsampled for plots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattline.core.nodes import Nodes
from wattline.core.table import Floats
from wattline.loop.runlog import Log
from wattline.reports.data.downsample import downsample
from wattline.reports.data.step_function import POINTS, StepFunction
from wattline.reports.summary import RunTables, build_run_tables


@dataclass(frozen=True, eq=False)
class PlotSeries:
    """Curves of one run over time."""

    waiting: StepFunction  # jobs
    utilisation: StepFunction  # share of the cluster's GPUs
    power: StepFunction  # watts


def build_plot_series(log: Log, points: int = POINTS) -> PlotSeries:
    """Return queue length, GPU utilisation and power of *log* over time, at most *points* each."""
    return downsample_timeline(build_run_tables(log), log.nodes, points)


def downsample_timeline(tables: RunTables, nodes: Nodes, points: int = POINTS) -> PlotSeries:
    """Return the curves of `build_plot_series` from the tables of a log."""
    timeline = tables.timeline
    since_s = float(tables.outcomes.submit_s.min()) if len(tables.outcomes) else 0.0
    first = int(np.searchsorted(timeline.at_s, since_s))  # nodes may fail before the first submission

    def reduce(value: Floats) -> StepFunction:
        at_s, value = timeline.at_s[first:] - since_s, value[first:]
        rows = downsample(at_s, value, points)
        return StepFunction(at_s[rows], value[rows])

    gpus = max(1, int(nodes.gpus.sum()))
    return PlotSeries(reduce(timeline.waiting), reduce(timeline.held / gpus), reduce(timeline.power_w))
