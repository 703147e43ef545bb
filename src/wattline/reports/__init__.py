"""Metrics, comparisons and pages of run logs. Only `write_html` writes files."""

from __future__ import annotations

from wattline.reports.compare import Comparison, compare
from wattline.reports.data.plot_data import Digest, digest
from wattline.reports.data.series import PlotSeries, StepFunction, build_plot_series
from wattline.reports.figures.headline import headline_svg
from wattline.reports.html.page import write_html
from wattline.reports.summary import Report, report

__all__ = [
    "Comparison",
    "Digest",
    "PlotSeries",
    "Report",
    "StepFunction",
    "build_plot_series",
    "compare",
    "digest",
    "headline_svg",
    "report",
    "write_html",
]
