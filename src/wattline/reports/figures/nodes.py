"""Plotly figures of the use of each node over time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattline.core.table import Floats
from wattline.reports.data.node_states import BOOTING, DOWN, OFF, STATES
from wattline.reports.figures.gantt import GanttBars, NodeHeatmap, bars_to_heatmap
from wattline.reports.figures.style import COLOURS, build_axis, build_layout, choose_time_unit, pack_array

_HUES = COLOURS[:-1]  # without grey, which marks free GPUs
_GAP = 0.7  # lanes between two nodes
_CELLS = 450_000  # of all runs together; limits the size of the page
_MAX_BARS = 5000  # of all runs together
_HATCHES = {OFF: "/", BOOTING: ".", DOWN: "x"}
_PALE = (
    [0, "rgba(217,217,217,0)"],
    [1, "rgba(217,217,217,1)"],
)  # drawn over a colour scale without light grey


def build_node_figures(gantts: Sequence[GanttBars | NodeHeatmap]) -> list[dict[str, Any]]:
    """Return a figure per run: bars, or heatmaps where the page would have more than `_MAX_BARS` bars."""
    if sum(len(g.gpus) + len(g.unavailable) for g in gantts if isinstance(g, GanttBars)) > _MAX_BARS:
        gantts = [bars_to_heatmap(g) if isinstance(g, GanttBars) else g for g in gantts]
    cells = _CELLS // max(1, len(gantts))
    return [_draw_bars(g) if isinstance(g, GanttBars) else _draw_heatmap(g, cells) for g in gantts]


def _draw_bars(bars: GanttBars) -> dict[str, Any]:
    unit_s, unit = choose_time_unit(float(bars.end_s.max(initial=1.0)))
    lanes = np.array(bars.lanes, dtype=np.float64)
    top = np.concatenate(([0.0], np.cumsum(lanes + _GAP)))[:-1]
    trace = {
        "type": "bar", "orientation": "h",
        "base": pack_array(bars.start_s / unit_s), "x": pack_array((bars.end_s - bars.start_s) / unit_s),
        "y": pack_array(top[bars.node] + bars.lane + bars.gpus / 2), "width": pack_array(bars.gpus - 0.08),
        "marker": {
            "color": _pick_job_colours(bars.job), "line": {"width": 0.5, "color": "rgba(128,128,128,0.7)"},
        },
        "customdata": pack_array(np.column_stack((bars.gpus, bars.start_s / unit_s, bars.end_s / unit_s))),
        "hovertext": [escape(job) for job in bars.job],
        "hovertemplate": "job %{hovertext}, %{customdata[0]:d} GPUs<br>"
        f"%{{customdata[1]:.3~g}} to %{{customdata[2]:.3~g}} {unit}<extra></extra>",
    }  # fmt: skip
    bands = [
        {
            "type": "rect", "layer": "below", "xref": "paper", "x0": 0, "x1": 1, "line": {"width": 0},
            "y0": float(top[n]), "y1": float(top[n] + lanes[n]), "fillcolor": "rgba(128,128,128,0.13)",
        }
        for n in range(len(lanes))
    ]  # fmt: skip
    height = int(min(1000, max(220, 90 + 22 * len(lanes), 90 + 9 * lanes.sum())))
    return {
        "data": [trace, *_draw_unavailable(bars, top, unit_s, unit)],
        "layout": build_layout(
            height, showlegend=False, shapes=bands, bargap=0, barmode="overlay",
            xaxis=build_axis(f"time since the first submission ({unit})", rangemode="tozero"),
            yaxis=build_axis(
                "", tickvals=(top + lanes / 2).tolist(), ticktext=[escape(name) for name in bars.name],
                showgrid=False, range=[float(lanes.sum() + _GAP * len(lanes)), -_GAP],
            ),
        ),
    }  # fmt: skip


def _draw_unavailable(bars: GanttBars, top: Floats, unit_s: float, unit: str) -> list[dict[str, Any]]:
    """Return hatched bars over all lanes of nodes that are off, booting or down."""
    unavailable, lanes = bars.unavailable, np.array(bars.lanes, dtype=np.float64)
    if not len(unavailable):
        return []
    return [
        {
            "type": "bar", "orientation": "h",
            "base": pack_array(unavailable.start_s / unit_s),
            "x": pack_array((unavailable.end_s - unavailable.start_s) / unit_s),
            "y": pack_array(top[unavailable.node] + lanes[unavailable.node] / 2),
            "width": pack_array(lanes[unavailable.node]),
            "marker": {
                "color": "rgba(128,128,128,0.2)",
                "pattern": {
                    "shape": [_HATCHES[state] for state in unavailable.state.tolist()],
                    "fgcolor": "rgba(128,128,128,0.9)", "size": 7, "solidity": 0.2,
                },
            },
            "customdata": pack_array(np.column_stack((unavailable.start_s, unavailable.end_s)) / unit_s),
            "hovertext": [STATES[state] for state in unavailable.state.tolist()],
            "hovertemplate": "%{hovertext}<br>"
            f"%{{customdata[0]:.3~g}} to %{{customdata[1]:.3~g}} {unit}<extra></extra>",
        }
    ]  # fmt: skip


def _pick_job_colours(job: tuple[str, ...]) -> list[str]:
    """Return one colour per job, in the order in which jobs first run."""
    number: dict[str, int] = {}
    return [_HUES[number.setdefault(job_id, len(number)) % len(_HUES)] for job_id in job]


def _draw_heatmap(heatmap: NodeHeatmap, cells: int) -> dict[str, Any]:
    layers = [heatmap.percent] if heatmap.unavailable is None else [heatmap.percent, heatmap.unavailable]
    (percent, *unavailable), edges_s = _coarsen(layers, heatmap.edges_s, cells)
    unit_s, unit = choose_time_unit(float(edges_s[-1]))
    trace = {
        "type": "heatmap", "z": pack_array(percent), "x": pack_array(edges_s / unit_s),
        "y": [escape(name) for name in heatmap.name],
        "zmin": 0, "zmax": 100, "colorscale": "Cividis",
        "colorbar": {"title": {"text": "GPUs held (%)", "side": "right"}, "thickness": 14, "outlinewidth": 0},
        "hovertemplate": f"%{{y}}: %{{z}} % of GPUs held<br>around %{{x:.3~g}} {unit}<extra></extra>",
    }  # fmt: skip
    pale = {
        "type": "heatmap", "x": trace["x"], "y": trace["y"], "zmin": 0, "zmax": 100,
        "colorscale": _PALE, "showscale": False, "hoverinfo": "skip",
    }  # fmt: skip
    return {
        "data": [trace, *({**pale, "z": pack_array(layer)} for layer in unavailable)],
        "layout": build_layout(
            int(min(700, max(300, 100 + 2 * len(heatmap.name)))),
            xaxis=build_axis(f"time since the first submission ({unit})", showgrid=False),
            yaxis=build_axis("", type="category", autorange="reversed", showgrid=False, nticks=17),
        ),
    }  # fmt: skip


def _coarsen(
    layers: Sequence[NDArray[np.uint8]], edges_s: Floats, cells: int
) -> tuple[list[NDArray[np.uint8]], Floats]:
    """Return *layers* and edges with at most *cells* cells, by averaging neighbouring time bins."""
    rows, columns = layers[0].shape
    bins_per_cell = max(1, -(-len(layers) * rows * columns // max(1, cells)))
    starts = np.arange(0, columns, bins_per_cell)
    counts = np.diff(np.append(starts, columns))
    means = [np.add.reduceat(layer.astype(np.float64), starts, axis=1) / counts for layer in layers]
    return [np.round(mean).astype(np.uint8) for mean in means], edges_s[np.append(starts, columns)]
