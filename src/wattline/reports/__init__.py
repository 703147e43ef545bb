"""Metrics, comparisons and pages of run logs. Only `write_html` writes files."""

from __future__ import annotations

from wattline.reports.compare import Comparison, compare
from wattline.reports.data.plot_data import PlotData, build_plot_data
from wattline.reports.data.series import PlotSeries, build_plot_series
from wattline.reports.data.step_function import StepFunction
from wattline.reports.figures.headline import draw_headline_svg
from wattline.reports.html.page import write_html
from wattline.reports.summary import Report, report

__all__ = [
    "Comparison",
    "PlotData",
    "PlotSeries",
    "Report",
    "StepFunction",
    "build_plot_data",
    "build_plot_series",
    "compare",
    "draw_headline_svg",
    "report",
    "write_html",
]
