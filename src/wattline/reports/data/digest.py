"""All that plots need of a run, small enough to send between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wattline.core.table import Floats
from wattline.loop.runlog import Log
from wattline.reports.data.downsample import quantiles
from wattline.reports.data.series import Series, series_of
from wattline.reports.figures.gantt import Bars, Shades, gantt
from wattline.reports.summary import Report, course, measure

QUANTILES = 1000


@dataclass(frozen=True, eq=False)
class Digest:
    """A run's figures, and its curves with few points."""

    report: Report
    header: Mapping[str, Any]  # of the log
    series: Series
    jct_s: Floats  # in order, at most `QUANTILES` of them
    gantt: Bars | Shades


def digest(log: Log) -> Digest:
    """The digest of *log*."""
    went = course(log)
    return Digest(
        report=measure(log, went),
        header=dict(log.header),
        series=series_of(went, log.nodes),
        jct_s=quantiles(went.fates.jct_s[went.fates.finished], QUANTILES),
        gantt=gantt(went, log.nodes, log.jobs),
    )
