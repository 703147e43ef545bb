"""Figures of fitted curves, measured points and held-out errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from wattline.core.table import Floats
from wattline.measurement.points import Profile
from wattline.measurement.settings import KNOBS
from wattline.models.held_out import HeldOutErrors
from wattline.models.workload import Workload
from wattline.reports.figures.fit_lines import (
    INTEGER_KNOBS,
    Line,
    group_lines,
    list_curve_settings,
    needs_log_axis,
)
from wattline.reports.figures.style import build_axis, build_layout, pick_colour

TITLES = {
    "gpus": "GPUs",
    "nodes": "nodes",
    "batch": "batch of the job (samples)",
    "cap_w": "power cap of a GPU (W)",
    "clock_mhz": "clock of a GPU (MHz)",
    "cpus": "CPU cores of the job",
    "mem_gib": "memory of the job (GiB)",
    "read_mib_s": "storage of the job (MiB/s)",
    "fuse": "jobs in one array",
}
_HALVES = ([0.0, 0.455], [0.545, 1.0])
_HEIGHT = 390


def build_knob_figure(workload: Workload, rows: Profile, knob: str) -> dict[str, Any] | None:
    """Return samples/s and watts against *knob*, one line per setting of the others.

    None = no two rows differ in *knob* only.
    """
    drawn, _ = group_lines(rows, knob)
    if not drawn:
        return None
    panels = [("samples_s", "samples/s")]
    if workload.metered and any((~np.isnan(rows.watts[line.rows])).any() for line in drawn):
        panels.append(("watts", "watts of the job (W)"))
    traces = []
    for panel, (column, _) in enumerate(panels):
        for i, line in enumerate(drawn):
            traces += _build_line_traces(workload, rows, knob, line, i, column, panel)
    used = rows.take(np.concatenate([line.rows for line in drawn]))
    axes: dict[str, Any] = {}
    for panel, (column, title) in enumerate(panels):
        axes |= _build_axes(
            panel, len(panels), (TITLES[knob], getattr(used, knob)), (title, getattr(used, column))
        )
    several = len(drawn) > 1
    return _build_figure(traces, axes, _HEIGHT, showlegend=several)


def _build_line_traces(
    workload: Workload, rows: Profile, knob: str, line: Line, number: int, column: str, panel: int
) -> list[dict[str, Any]]:
    settings = list_curve_settings(rows, knob, line)
    place = {
        "name": line.name, "legendgroup": line.name,
        "xaxis": f"x{panel + 1}".replace("x1", "x"), "yaxis": f"y{panel + 1}".replace("y1", "y"),
    }  # fmt: skip
    curve = {
        "type": "scatter", "mode": "lines", **place, "showlegend": panel == 0, "hoverinfo": "skip",
        "x": getattr(settings, knob),
        "y": getattr(workload.extrapolate(settings), column),
        "line": {"color": pick_colour(number), "width": 1.8},
    }  # fmt: skip
    known = _list_known_points(getattr(rows, knob)[line.rows], getattr(rows, column)[line.rows])
    points = {
        "type": "scatter", "mode": "markers", **place, "showlegend": False, **known,
        "marker": {"color": pick_colour(number), "size": 7},
        "hover": [
            f"{line.name}\n{x:.4g}: measured {y:.4g}".strip()
            for x, y in zip(known["x"], known["y"], strict=True)
        ],
    }  # fmt: skip
    return [curve, points]


def _list_known_points(x: Floats, y: Floats) -> dict[str, list[float]]:
    known = ~(np.isnan(x) | np.isnan(y))
    return {"x": x[known].tolist(), "y": y[known].tolist()}


def build_error_figure(rows: Profile, held_out: HeldOutErrors) -> dict[str, Any] | None:
    """Return the held-out error of each row; None = too few rows to leave any out."""
    panels = [
        (column, title, getattr(rows, column), 100 * errors)
        for column, title, errors in (
            ("samples_s", "measured samples/s", held_out.samples),
            ("watts", "measured watts of the job (W)", held_out.watts),
        )
        if not np.isnan(errors).all()
    ]
    if not panels:
        return None
    texts = [_format_settings(rows, row) for row in range(len(rows))]
    traces = []
    axes: dict[str, Any] = {}
    for panel, (column, title, measured, error) in enumerate(panels):
        known = ~np.isnan(measured) & ~np.isnan(error)
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": column, **_list_known_points(measured, error),
                "xaxis": f"x{panel + 1}".replace("x1", "x"), "yaxis": f"y{panel + 1}".replace("y1", "y"),
                "marker": {"color": pick_colour(panel), "size": 7, "opacity": 0.7},
                "hover": [
                    f"{texts[row]}\n{error[row]:.1f} % off" for row in np.flatnonzero(known).tolist()
                ],
            }
        )  # fmt: skip
        name = "samples/s off (%)" if column == "samples_s" else "watts off (%)"
        axes |= _build_axes(panel, len(panels), (title, measured[known]), (name, np.zeros(1)))
    return _build_figure(traces, axes, _HEIGHT - 80, showlegend=False)


def _build_figure(
    traces: list[dict[str, Any]], axes: dict[str, Any], height: int, *, showlegend: bool
) -> dict[str, Any]:
    return {"data": traces, "layout": build_layout(height, showlegend=showlegend, **axes)}


def _format_settings(rows: Profile, row: int) -> str:
    """Return the settings of one row as text."""
    values = {name: float(getattr(rows, name)[row]) for name in KNOBS}
    return ", ".join(
        f"{name} {value:.6g}"
        for name, value in values.items()
        if value == value and not (name in INTEGER_KNOBS and value == 1)
    )


def _build_axes(panel: int, panels: int, x: tuple[str, Floats], y: tuple[str, Floats]) -> dict[str, Any]:
    """Return the axes of one of *panels* plots side by side; logarithmic where values are far apart."""
    number = str(panel + 1).replace("1", "")
    heights = y[1][~np.isnan(y[1])]
    y_scale: dict[str, Any] = {"rangemode": "tozero"}
    if len(heights) and heights.min() > 0 and heights.max() > 30 * heights.min():
        y_scale = _build_log_axis([d * 10.0**p for p in range(-9, 13) for d in (1, 2, 5)], heights)
    x_scale = _build_log_axis([2.0**power for power in range(-20, 40)], x[1]) if needs_log_axis(x[1]) else {}
    domain = _HALVES[panel] if panels > 1 else [0.0, 1.0]
    return {
        f"xaxis{number}": build_axis(x[0], domain=domain, anchor=f"y{number}", **x_scale),
        f"yaxis{number}": build_axis(y[0], anchor=f"x{number}", **y_scale),
    }


def _build_log_axis(round_values: list[float], values: Floats) -> dict[str, Any]:
    """Return a logarithmic axis with at most about nine ticks out of *round_values*."""
    low, high = values.min() / 1.05, values.max() * 1.05
    ticks = [tick for tick in round_values if low <= tick <= high]
    ticks = ticks[:: 1 + len(ticks) // 9]
    return {
        "type": "log",
        "range": [low, high],
        "tickvals": ticks,
        "ticktext": [_format_tick(tick) for tick in ticks],
    }


def _format_tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:.3g}"
