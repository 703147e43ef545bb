"""Charts over time as SVG: coordinates and labels; the template `parts.html` draws them.

A chart is drawn in a square of 1000 by 1000 and stretched to its place, so that it fits every screen. Labels
are text beside it, at round values and at round times of the viewer's zone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo

from wattline.service.session_series import Point, thin

SIZE = 1000.0
_Y_TICKS = 4
_DAY_S = 86400.0
_TICK_STEPS_S = (
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 900.0, 1800.0),
    *(3600.0, 7200.0, 10800.0, 21600.0, 43200.0, _DAY_S, 2 * _DAY_S, 7 * _DAY_S, 28 * _DAY_S),
)
_RIGHT_EDGE = 96.0  # percent of the width beyond which a label would leave the chart
_MOST_POINTS = 400


@dataclass(frozen=True)
class PageCurve:
    """A curve of a chart; None in *points* is a gap."""

    name: str
    points: Sequence[tuple[float, float | None]]
    style: str  # class of the path: main, limit, second
    steps: bool = False  # a value holds until the next one


Span = tuple[float, float]
"""Start and end of the time that is shown, in seconds since 1970."""


@dataclass(frozen=True)
class DrawnCurve:
    """A curve as a path of SVG."""

    name: str
    path: str
    style: str


@dataclass(frozen=True)
class TimeTick:
    """A label of the time axis, and where it is, in percent of the width."""

    percent: float
    text: str


@dataclass(frozen=True)
class PageChart:
    """A drawn chart, with the table of its first curve."""

    title: str
    unit: str
    lines: list[DrawnCurve]
    x_ticks: list[TimeTick]
    y_labels: list[str]
    rows: list[tuple[str, str]]  # of the table: time and value
    data: str  # JSON for hovering and zooming: from and to in x, and the points of all curves
    summary: str


def draw_chart(
    title: str,
    unit: str,
    lines: Sequence[PageCurve],
    zone: tzinfo,
    *,
    span: Span | None = None,
) -> PageChart | None:
    """Return a chart over time from 0 up; None: there are no points.

    *span* is the time that is shown; curves go on beyond it as they do within it.
    """
    first = [(at, value) for at, value in lines[0].points if value is not None]
    if span is not None:
        first = [point for point in first if span[0] <= point[0] <= span[1]]
        lines = [replace(line, points=_cut_at_edges(line, span)) for line in lines]
    known = [point for line in lines for point in line.points if point[1] is not None]
    if not known:
        return None
    start_s, end_s = span or (min(at for at, _ in known), max(at for at, _ in known))
    if end_s <= start_s:
        end_s = start_s + 1.0
    values = [value for _, value in known if value is not None]
    low, high = min(0.0, *values), max(values)
    low, high = (round_up(-low) * -1 if low < 0 else 0.0), round_up(high)
    drawn = [DrawnCurve(line.name, _draw_path(line, start_s, end_s, low, high), line.style) for line in lines]
    shown = thin(first, _MOST_POINTS)
    exact = "%m-%d %H:%M:%S" if end_s - start_s > _DAY_S else "%H:%M:%S"
    rows = [(_label_time(at, zone, end_s - start_s), f"{value:.6g}") for at, value in thin(first, 100)]
    data = {
        "start": start_s,
        "end": end_s,
        "low": low,
        "high": high,
        "unit": unit,
        "points": [[round(at, 1), float(f"{value:.6g}")] for at, value in shown],
        "labels": [f"{datetime.fromtimestamp(at, zone):{exact}}" for at, _ in shown],
        "others": [
            {
                "name": line.name,
                "points": [[round(at, 1), value] for at, value in _thin_with_gaps(line.points)],
            }
            for line in lines[1:]
        ],
    }
    last = first[-1][1] if first else math.nan
    return PageChart(
        title=title,
        unit=unit,
        lines=drawn,
        x_ticks=choose_time_ticks(start_s, end_s, zone),
        y_labels=[label_value(low + (high - low) * at / _Y_TICKS) for at in range(_Y_TICKS, -1, -1)],
        rows=rows,
        data=json.dumps(data),
        summary=f"{title}: from {first[0][1]:.6g} to {last:.6g} {unit}" if first else title,
    )


def _cut_at_edges(line: PageCurve, span: Span) -> list[tuple[float, float | None]]:
    """Return the points within *span*, and those on its edges if the curve crosses them."""
    kept: list[tuple[float, float | None]] = []
    before: tuple[float, float | None] | None = None
    for at_s, value in line.points:
        if before is not None and before[1] is not None and (value is not None or line.steps):
            for edge_s in span:
                if before[0] < edge_s < at_s:
                    share = 0.0 if line.steps or value is None else (edge_s - before[0]) / (at_s - before[0])
                    kept.append((edge_s, before[1] + share * ((value or 0.0) - before[1])))
        if span[0] <= at_s <= span[1]:
            kept.append((at_s, value))
        before = at_s, value
    return kept


def _draw_path(line: PageCurve, start_s: float, end_s: float, low: float, high: float) -> str:
    parts: list[str] = []
    is_open = False
    y_before = 0.0
    for at_s, value in _thin_with_gaps(line.points):
        if value is None:
            is_open = False
            continue
        x = SIZE * (at_s - start_s) / (end_s - start_s)
        y = SIZE * (1 - (value - low) / (high - low))
        if is_open and line.steps:
            parts.append(f"L{x:.1f} {y_before:.1f}")
        parts.append(f"{'L' if is_open else 'M'}{x:.1f} {y:.1f}")
        is_open, y_before = True, y
    if len(parts) == 1:
        parts = [f"{parts[0]}m-3 0h6"]  # a short dash, as a point would not be seen
    return "".join(parts)


def _thin_with_gaps(points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    if len(points) <= _MOST_POINTS or any(value is None for _, value in points):
        return list(points)
    known: list[Point] = [(at, value) for at, value in points if value is not None]
    return list(thin(known, _MOST_POINTS))


def round_up(value: float) -> float:
    """Return the next round number that divides well by four: 1, 2, 4, 8, 10, 20, …"""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 5, 6, 8, 10) if power * step >= value)


def label_value(value: float) -> str:
    """Return the label of a tick."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def choose_time_ticks(start_s: float, end_s: float, zone: tzinfo) -> list[TimeTick]:
    """Return at most five round times between two times, four where labels have a date."""
    span_s = end_s - start_s
    most = 4 if span_s > _DAY_S else 5
    longest_s = _TICK_STEPS_S[-1]
    step_s = next(
        (one for one in _TICK_STEPS_S if span_s / one < most),
        math.ceil(span_s / most / longest_s) * longest_s,
    )
    offset = datetime.fromtimestamp(start_s, zone).utcoffset()
    shift_s = 0.0 if offset is None else offset.total_seconds()  # days begin at midnight in the zone
    first = math.ceil((start_s + shift_s) / step_s)
    times = (number * step_s - shift_s for number in range(first, first + most + 1))
    if step_s >= _DAY_S:
        label = "%m-%d"
    elif span_s > _DAY_S:
        label = "%m-%d %H:%M"
    else:
        label = "%H:%M" if step_s >= 60 else "%H:%M:%S"
    ticks = [
        TimeTick(round(100 * (at - start_s) / span_s, 3), f"{datetime.fromtimestamp(at, zone):{label}}")
        for at in times
        if at <= end_s
    ]
    ticks = [tick for tick in ticks if tick.percent <= _RIGHT_EDGE]
    return ticks or [TimeTick(0.0, f"{datetime.fromtimestamp(start_s, zone):{label}}")]


def _label_time(at_s: float, zone: tzinfo, span_s: float) -> str:
    moment = datetime.fromtimestamp(at_s, zone)
    if span_s > _DAY_S:
        return f"{moment:%m-%d %H:%M}"
    return f"{moment:%H:%M:%S}" if span_s < 600 else f"{moment:%H:%M}"
