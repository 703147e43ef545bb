"""Figures of the JCT distribution and of queue, GPUs and power over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wattline.reports.data.downsample import downsample
from wattline.reports.data.plot_data import PlotData
from wattline.reports.data.step_function import StepFunction
from wattline.reports.figures.style import (
    build_axis,
    build_layout,
    choose_power_unit,
    choose_time_unit,
    pick_colour,
    pick_dash,
)

_POINTS = 8000  # of all runs together, per panel; limits the size of the page


def build_jct_figure(runs: Sequence[PlotData], run_names: Sequence[str]) -> dict[str, Any]:
    """Return the cumulative distribution of the JCT of finished jobs."""
    max_s = max((float(d.jct_s[-1]) for d in runs if len(d.jct_s)), default=1.0)
    traces = []
    for i, d in enumerate(runs):
        # A logarithmic axis has no zero: JCTs below 1 s are drawn at 1 s.
        jct_s = np.maximum(d.jct_s, 1.0)
        share = np.linspace(1 / max(1, d.report.finished), 1.0, len(jct_s)) * 100
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": run_names[i],
                "x": jct_s, "y": share,
                "line": {"color": pick_colour(i), "dash": pick_dash(i), "width": 2, "shape": "hv"},
            }
        )  # fmt: skip
    ticks = [(s, t) for s, t in _TICKS if s <= 3 * max_s]
    return {
        "data": traces,
        "layout": build_layout(
            360, showlegend=len(runs) > 1,
            xaxis=build_axis(
                "JCT (log scale)", type="log", range=[0.9, max(3.0, 1.2 * max_s)],
                tickvals=[s for s, _ in ticks], ticktext=[t for _, t in ticks]
            ),
            yaxis=build_axis("finished jobs (%)", range=[0, 102]),
        ),
    }  # fmt: skip


_TICKS = (
    (1, "1 s"), (3, "3 s"), (10, "10 s"), (30, "30 s"), (60, "1 min"), (180, "3 min"), (600, "10 min"),
    (1800, "30 min"), (3600, "1 h"), (3 * 3600, "3 h"), (8 * 3600, "8 h"), (86400, "1 d"), (3 * 86400, "3 d"),
    (10 * 86400, "10 d"), (30 * 86400, "30 d"), (100 * 86400, "100 d"), (365 * 86400, "1 y"),
)  # fmt: skip


def build_time_figure(runs: Sequence[PlotData], run_names: Sequence[str]) -> dict[str, Any]:
    """Return queue, GPUs and power under each other on one time axis."""
    span_s = max((float(d.series.waiting.at_s.max(initial=0)) for d in runs), default=0.0) or 1.0
    unit_s, unit = choose_time_unit(span_s)
    max_w = max((float(d.series.power.value.max(initial=0)) for d in runs), default=0.0)
    watts, watt_unit = choose_power_unit(max_w)
    points = max(200, _POINTS // max(1, len(runs)))
    panels = (
        ("y", "waiting jobs", 1.0, [d.series.waiting for d in runs]),
        ("y2", "GPUs held (%)", 0.01, [d.series.utilisation for d in runs]),
        ("y3", f"power ({watt_unit})", watts, [d.series.power for d in runs]),
    )
    traces = []
    for panel, (y_axis, _, scale, curves) in enumerate(panels):
        for i, steps in enumerate(curves):
            rows = downsample(steps.at_s, steps.value, points)
            shown = StepFunction(steps.at_s[rows] / unit_s, steps.value[rows] / scale)
            traces.append(_build_step_trace(shown, i, run_names[i], y_axis, panel == 0))
    max_waiting = max((float(d.series.waiting.value.max(initial=0)) for d in runs), default=0.0)
    domains = ([0.70, 1.0], [0.36, 0.66], [0.0, 0.32])
    axes = {
        f"yaxis{name[1:]}": build_axis(title, domain=domain, rangemode="tozero")
        for (name, title, _, _), domain in zip(panels, domains, strict=True)
    }
    axes["yaxis"].update(
        range=[0, max(1.0, 1.06 * max_waiting)], **({"dtick": 1} if max_waiting <= 5 else {})
    )
    return {
        "data": traces,
        "layout": build_layout(
            720, showlegend=len(runs) > 1,
            xaxis=build_axis(
                f"time since the first submission ({unit})", anchor="y3", range=[0, 1.01 * span_s / unit_s]
            ),
            **axes,
        ),
    }  # fmt: skip


def _build_step_trace(
    steps: StepFunction, number: int, name: str, panel: str, in_legend: bool
) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "name": name, "yaxis": panel,
        "legendgroup": str(number), "showlegend": in_legend,
        "x": steps.at_s, "y": steps.value,
        "line": {"color": pick_colour(number), "dash": pick_dash(number), "width": 1.3, "shape": "hv"},
    }  # fmt: skip
