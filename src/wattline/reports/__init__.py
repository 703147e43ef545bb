"""Metrics, comparisons and pages of run logs. Everything is pure but `write_html`."""

from __future__ import annotations

from wattline.reports.compare import Comparison, compare
from wattline.reports.data.digest import Digest, digest
from wattline.reports.data.series import Series, Steps, series
from wattline.reports.figures.headline import headline_svg
from wattline.reports.html.page import write_html
from wattline.reports.summary import Report, report

__all__ = [
    "Comparison",
    "Digest",
    "Report",
    "Series",
    "Steps",
    "compare",
    "digest",
    "headline_svg",
    "report",
    "series",
    "write_html",
]
