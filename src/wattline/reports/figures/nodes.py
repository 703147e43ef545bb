"""Figures of the use of each node over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattline.core.table import Floats
from wattline.reports.data.node_states import BOOTING, DOWN, OFF, STATES
from wattline.reports.figures.gantt import GanttBars, NodeHeatmap, bars_to_heatmap
from wattline.reports.figures.style import COLOURS, build_axis, build_layout, choose_time_unit

_HUES = COLOURS[:-1]  # without grey, which marks free GPUs
_GAP = 0.7  # lanes between two nodes
_CELLS = 450_000  # of all runs together; limits the size of the page
_MAX_BARS = 5000  # of all runs together
_HATCHES = {OFF: "off", BOOTING: "booting", DOWN: "down"}  # classes of the stylesheet


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
    spans = zip(bars.job, bars.gpus, bars.start_s / unit_s, bars.end_s / unit_s, strict=True)
    trace = {
        "type": "bar",
        "base": bars.start_s / unit_s, "x": (bars.end_s - bars.start_s) / unit_s,
        "y": top[bars.node] + bars.lane + bars.gpus / 2, "width": bars.gpus - 0.08,
        "marker": {"color": _pick_job_colours(bars.job)},
        "hover": [
            f"job {job}, {gpus} GPUs\n{start:.3g} to {end:.3g} {unit}" for job, gpus, start, end in spans
        ],
    }  # fmt: skip
    bands = [{"y0": float(top[n]), "y1": float(top[n] + lanes[n])} for n in range(len(lanes))]
    height = int(min(1000, max(220, 90 + 22 * len(lanes), 90 + 9 * lanes.sum())))
    return {
        "data": [trace, *_draw_unavailable(bars, top, unit_s, unit)],
        "layout": build_layout(
            height, showlegend=False, shapes=bands,
            xaxis=build_axis(f"time since the first submission ({unit})", rangemode="tozero"),
            yaxis=build_axis(
                "", tickvals=(top + lanes / 2).tolist(), ticktext=list(bars.name),
                showgrid=False, range=[float(lanes.sum() + _GAP * len(lanes)), -_GAP],
            ),
        ),
    }  # fmt: skip


def _draw_unavailable(bars: GanttBars, top: Floats, unit_s: float, unit: str) -> list[dict[str, Any]]:
    """Return hatched bars over all lanes of nodes that are off, booting or down."""
    unavailable, lanes = bars.unavailable, np.array(bars.lanes, dtype=np.float64)
    if not len(unavailable):
        return []
    spans = zip(unavailable.state.tolist(), unavailable.start_s, unavailable.end_s, strict=True)
    return [
        {
            "type": "bar",
            "base": unavailable.start_s / unit_s,
            "x": (unavailable.end_s - unavailable.start_s) / unit_s,
            "y": top[unavailable.node] + lanes[unavailable.node] / 2,
            "width": lanes[unavailable.node],
            "marker": {"color": [], "hatch": [_HATCHES[state] for state in unavailable.state.tolist()]},
            "hover": [
                f"{STATES[state]}\n{start / unit_s:.3g} to {end / unit_s:.3g} {unit}"
                for state, start, end in spans
            ],
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
        "type": "heatmap", "z": percent, "x": edges_s / unit_s, "y": list(heatmap.name),
        "colorscale": "percent",
    }  # fmt: skip
    return {
        "data": [trace, *({**trace, "z": layer, "colorscale": "pale"} for layer in unavailable)],
        "layout": build_layout(
            int(min(700, max(300, 100 + 2 * len(heatmap.name)))),
            xaxis=build_axis(
                f"time since the first submission ({unit})",
                showgrid=False, range=[0.0, float(edges_s[-1] / unit_s)],
            ),
            yaxis=build_axis("", showgrid=False, range=[float(len(heatmap.name)), 0.0]),
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
