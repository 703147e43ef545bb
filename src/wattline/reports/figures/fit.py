"""Do the fitted curves go through what was measured? As plotly figures."""

from __future__ import annotations

from typing import Any

import numpy as np

from wattline.core.table import Floats
from wattline.measurement.points import Profile
from wattline.measurement.settings import KNOBS
from wattline.models.held_out import HeldOut
from wattline.models.workload import Workload
from wattline.reports.figures.fit_lines import WHOLE, Line, lines, steps, wide
from wattline.reports.figures.style import axis, colour, layout, packed

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
_LEGEND = {"orientation": "h", "yanchor": "bottom", "y": 1.03, "xanchor": "left", "x": 0}
_HALVES = ([0.0, 0.455], [0.545, 1.0])
_HIGH = 390
_TOP, _TOP_WITH_LEGEND = 30, 56  # pixels for the buttons, and for the legend under them


def knob_figure(w: Workload, rows: Profile, knob: str) -> dict[str, Any] | None:
    """Samples/s and watts against *knob*, a line per setting of the others; None: no two rows compare."""
    drawn, _ = lines(rows, knob)
    if not drawn:
        return None
    panels = [("samples_s", "samples/s")]
    if w.metered and any((~np.isnan(rows.watts[line.rows])).any() for line in drawn):
        panels.append(("watts", "watts of the job (W)"))
    traces = []
    for panel, (what, _) in enumerate(panels):
        for i, line in enumerate(drawn):
            traces += _line_traces(w, rows, knob, line, i, what, panel)
    used = rows.take(np.concatenate([line.rows for line in drawn]))
    axes: dict[str, Any] = {}
    for panel, (what, title) in enumerate(panels):
        axes |= _axes(panel, len(panels), (TITLES[knob], getattr(used, knob)), (title, getattr(used, what)))
    several = len(drawn) > 1
    return _figure(traces, axes, _HIGH, showlegend=several, top=_TOP_WITH_LEGEND if several else _TOP)


def _line_traces(
    w: Workload, rows: Profile, knob: str, line: Line, number: int, what: str, panel: int
) -> list[dict[str, Any]]:
    settings = steps(rows, knob, line)
    place = {
        "name": line.name, "legendgroup": line.name,
        "xaxis": f"x{panel + 1}".replace("x1", "x"), "yaxis": f"y{panel + 1}".replace("y1", "y"),
    }  # fmt: skip
    curve = {
        "type": "scatter", "mode": "lines", **place, "showlegend": panel == 0, "hoverinfo": "skip",
        "x": packed(getattr(settings, knob)), "y": packed(getattr(w.extrapolate(settings), what)),
        "line": {"color": colour(number), "width": 1.8},
    }  # fmt: skip
    points = {
        "type": "scatter", "mode": "markers", **place, "showlegend": False,
        **_points(getattr(rows, knob)[line.rows], getattr(rows, what)[line.rows]),
        "marker": {"color": colour(number), "size": 7},
        "hovertemplate": "%{x:.4~g}: measured %{y:.4~g}",
    }  # fmt: skip
    return [curve, points]


def _points(x: Floats, y: Floats) -> dict[str, list[float]]:
    known = ~(np.isnan(x) | np.isnan(y))
    return {"x": x[known].tolist(), "y": y[known].tolist()}


def error_figure(rows: Profile, held: HeldOut) -> dict[str, Any] | None:
    """How far off each row was when the fit had not seen it; None: too few to leave any out."""
    seen = [
        (what, title, getattr(rows, what), 100 * errors)
        for what, title, errors in (
            ("samples_s", "measured samples/s", held.samples),
            ("watts", "measured watts of the job (W)", held.watts),
        )
        if not np.isnan(errors).all()
    ]
    if not seen:
        return None
    said = [_said(rows, row) for row in range(len(rows))]
    traces = []
    axes: dict[str, Any] = {}
    for panel, (what, title, measured, error) in enumerate(seen):
        known = ~np.isnan(measured) & ~np.isnan(error)
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": what, **_points(measured, error),
                "xaxis": f"x{panel + 1}".replace("x1", "x"), "yaxis": f"y{panel + 1}".replace("y1", "y"),
                "marker": {"color": colour(panel), "size": 7, "opacity": 0.7},
                "text": [said[row] for row in np.flatnonzero(known).tolist()],
                "hovertemplate": "%{text}<br>%{y:.1f} % off<extra></extra>",
            }
        )  # fmt: skip
        name = "samples/s off (%)" if what == "samples_s" else "watts off (%)"
        axes |= _axes(panel, len(seen), (title, measured[known]), (name, np.zeros(1)))
    return _figure(traces, axes, _HIGH - 80, showlegend=False, top=_TOP)


def _figure(
    traces: list[dict[str, Any]], axes: dict[str, Any], high: int, *, showlegend: bool, top: int
) -> dict[str, Any]:
    margin = {"l": 64, "r": 24, "t": top, "b": 48}
    look = layout(high, margin=margin, legend=_LEGEND, showlegend=showlegend, hovermode="closest", **axes)
    return {"data": traces, "layout": look}


def _said(rows: Profile, row: int) -> str:
    """The settings of one row."""
    values = {name: float(getattr(rows, name)[row]) for name in KNOBS}
    return ", ".join(
        f"{name} {value:.6g}"
        for name, value in values.items()
        if value == value and not (name in WHOLE and value == 1)
    )


def _axes(panel: int, panels: int, x: tuple[str, Floats], y: tuple[str, Floats]) -> dict[str, Any]:
    """The axes of one of *panels* plots side by side; logarithmic where values are far apart."""
    number = str(panel + 1).replace("1", "")
    heights = y[1][~np.isnan(y[1])]
    tall: dict[str, Any] = {"rangemode": "tozero"}
    if len(heights) and heights.min() > 0 and heights.max() > 30 * heights.min():
        tall = _log_ticks([d * 10.0**p for p in range(-9, 13) for d in (1, 2, 5)], heights)
    across = _log_ticks([2.0**power for power in range(-20, 40)], x[1]) if wide(x[1]) else {}
    domain = _HALVES[panel] if panels > 1 else [0.0, 1.0]
    return {
        f"xaxis{number}": axis(x[0], domain=domain, anchor=f"y{number}", separatethousands=True, **across),
        f"yaxis{number}": axis(y[0], anchor=f"x{number}", separatethousands=True, **tall),
    }


def _log_ticks(round_values: list[float], values: Floats) -> dict[str, Any]:
    """A logarithmic axis whose ticks are of *round_values*, few enough to be read."""
    low, high = values.min() / 1.05, values.max() * 1.05
    ticks = [tick for tick in round_values if low <= tick <= high]
    ticks = ticks[:: 1 + len(ticks) // 9]
    return {"type": "log", "tickvals": ticks, "ticktext": [_short(tick) for tick in ticks]}


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:.3g}"
