"""Report and downsampled curves of one run, small enough to send between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wattline.core.table import Floats
from wattline.loop.runlog import Log
from wattline.reports.data.downsample import sample_quantiles
from wattline.reports.data.prices import collect_prices, downsample_prices
from wattline.reports.data.series import PlotSeries, downsample_timeline
from wattline.reports.data.step_function import StepFunction
from wattline.reports.figures.gantt import GanttBars, NodeHeatmap, build_gantt
from wattline.reports.summary import Report, build_run_tables, compute_report

QUANTILES = 1000


@dataclass(frozen=True, eq=False)
class PlotData:
    """A run's report and its curves with few points."""

    report: Report
    header: Mapping[str, Any]  # of the run log
    series: PlotSeries
    jct_s: Floats  # ascending, at most `QUANTILES` values
    gantt: GanttBars | NodeHeatmap
    prices: Mapping[str, StepFunction]  # by resource; empty: the policy logs none


def build_plot_data(log: Log) -> PlotData:
    """Return the report of *log* with the curves that a page plots."""
    tables = build_run_tables(log)
    outcomes = tables.outcomes
    return PlotData(
        report=compute_report(log, tables),
        header=dict(log.header),
        series=downsample_timeline(tables, log.nodes),
        jct_s=sample_quantiles(outcomes.jct_s[outcomes.finished], QUANTILES),
        gantt=build_gantt(tables, log.nodes, log.jobs),
        prices=downsample_prices(collect_prices(log)),
    )
