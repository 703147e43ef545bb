"""Which node was busy when, as a plotly figure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattline.core.table import Floats
from wattline.reports.data.node_states import BOOTING, DOWN, OFF, STATES
from wattline.reports.figures.gantt import Bars, Shades, shaded
from wattline.reports.figures.style import COLOURS, axis, layout, packed, time_unit

_HUES = COLOURS[:-1]  # grey is what nobody holds
_GAP = 0.7  # lanes between two nodes
_CELLS = 450_000  # of all runs together: keeps the page small
_MOST_BARS = 5000  # of all runs together
_HATCHES = {OFF: "/", BOOTING: ".", DOWN: "x"}
_PALE = ([0, "rgba(217,217,217,0)"], [1, "rgba(217,217,217,1)"])  # over a scale without any light grey


def nodes_figures(gantts: Sequence[Bars | Shades]) -> list[dict[str, Any]]:
    """The picture of each run's nodes; bars give way to shades where a page would have too many."""
    if sum(len(g.gpus) + len(g.away) for g in gantts if isinstance(g, Bars)) > _MOST_BARS:
        gantts = [shaded(g) if isinstance(g, Bars) else g for g in gantts]
    cells = _CELLS // max(1, len(gantts))
    return [_bars(g) if isinstance(g, Bars) else _shades(g, cells) for g in gantts]


def _bars(bars: Bars) -> dict[str, Any]:
    unit_s, unit = time_unit(float(bars.end_s.max(initial=1.0)))
    lanes = np.array(bars.lanes, dtype=np.float64)
    top = np.concatenate(([0.0], np.cumsum(lanes + _GAP)))[:-1]
    trace = {
        "type": "bar", "orientation": "h",
        "base": packed(bars.start_s / unit_s), "x": packed((bars.end_s - bars.start_s) / unit_s),
        "y": packed(top[bars.node] + bars.lane + bars.gpus / 2), "width": packed(bars.gpus - 0.08),
        "marker": {"color": _job_colours(bars.job), "line": {"width": 0.5, "color": "rgba(128,128,128,0.7)"}},
        "customdata": packed(np.column_stack((bars.gpus, bars.start_s / unit_s, bars.end_s / unit_s))),
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
        "data": [trace, *_hatched(bars, top, unit_s, unit)],
        "layout": layout(
            height, showlegend=False, shapes=bands, bargap=0, barmode="overlay",
            xaxis=axis(f"time since the first submission ({unit})", rangemode="tozero"),
            yaxis=axis(
                "", tickvals=(top + lanes / 2).tolist(), ticktext=[escape(name) for name in bars.name],
                showgrid=False, range=[float(lanes.sum() + _GAP * len(lanes)), -_GAP],
            ),
        ),
    }  # fmt: skip


def _hatched(bars: Bars, top: Floats, unit_s: float, unit: str) -> list[dict[str, Any]]:
    """Nodes while they are off, booting or down, all their lanes at once."""
    away, lanes = bars.away, np.array(bars.lanes, dtype=np.float64)
    if not len(away):
        return []
    return [
        {
            "type": "bar", "orientation": "h",
            "base": packed(away.start_s / unit_s), "x": packed((away.end_s - away.start_s) / unit_s),
            "y": packed(top[away.node] + lanes[away.node] / 2), "width": packed(lanes[away.node]),
            "marker": {
                "color": "rgba(128,128,128,0.2)",
                "pattern": {
                    "shape": [_HATCHES[state] for state in away.state.tolist()],
                    "fgcolor": "rgba(128,128,128,0.9)", "size": 7, "solidity": 0.2,
                },
            },
            "customdata": packed(np.column_stack((away.start_s, away.end_s)) / unit_s),
            "hovertext": [STATES[state] for state in away.state.tolist()],
            "hovertemplate": "%{hovertext}<br>"
            f"%{{customdata[0]:.3~g}} to %{{customdata[1]:.3~g}} {unit}<extra></extra>",
        }
    ]  # fmt: skip


def _job_colours(job: tuple[str, ...]) -> list[str]:
    """One colour per job, by the order in which jobs first run."""
    number: dict[str, int] = {}
    return [_HUES[number.setdefault(each, len(number)) % len(_HUES)] for each in job]


def _shades(shades: Shades, cells: int) -> dict[str, Any]:
    layers = [shades.percent] if shades.away is None else [shades.percent, shades.away]
    (percent, *away), edges_s = _coarser(layers, shades.edges_s, cells)
    unit_s, unit = time_unit(float(edges_s[-1]))
    trace = {
        "type": "heatmap", "z": packed(percent), "x": packed(edges_s / unit_s),
        "y": [escape(name) for name in shades.name],
        "zmin": 0, "zmax": 100, "colorscale": "Cividis",
        "colorbar": {"title": {"text": "GPUs held (%)", "side": "right"}, "thickness": 14, "outlinewidth": 0},
        "hovertemplate": f"%{{y}}: %{{z}} % of GPUs held<br>around %{{x:.3~g}} {unit}<extra></extra>",
    }  # fmt: skip
    pale = {
        "type": "heatmap", "x": trace["x"], "y": trace["y"], "zmin": 0, "zmax": 100,
        "colorscale": _PALE, "showscale": False, "hoverinfo": "skip",
    }  # fmt: skip
    return {
        "data": [trace, *({**pale, "z": packed(layer)} for layer in away)],
        "layout": layout(
            int(min(700, max(300, 100 + 2 * len(shades.name)))),
            xaxis=axis(f"time since the first submission ({unit})", showgrid=False),
            yaxis=axis("", type="category", autorange="reversed", showgrid=False, nticks=17),
        ),
    }  # fmt: skip


def _coarser(
    layers: Sequence[NDArray[np.uint8]], edges_s: Floats, cells: int
) -> tuple[list[NDArray[np.uint8]], Floats]:
    """The same picture with at most so many *cells*, by taking the mean of neighbours in time."""
    rows, columns = layers[0].shape
    each = max(1, -(-len(layers) * rows * columns // max(1, cells)))
    starts = np.arange(0, columns, each)
    counts = np.diff(np.append(starts, columns))
    means = [np.add.reduceat(layer.astype(np.float64), starts, axis=1) / counts for layer in layers]
    return [np.round(mean).astype(np.uint8) for mean in means], edges_s[np.append(starts, columns)]
