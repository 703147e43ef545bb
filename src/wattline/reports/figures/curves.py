"""How long jobs took, and how the cluster went: the curves of all runs, as plotly figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wattline.reports.data.digest import Digest
from wattline.reports.data.downsample import thin
from wattline.reports.data.series import Steps
from wattline.reports.figures.style import axis, colour, dash, layout, packed, power_unit, time_unit

_POINTS = 8000  # of all runs together, per panel: keeps the page small
_LEGEND = {"orientation": "h", "yanchor": "bottom", "y": 1.02, "xanchor": "left", "x": 0}


def jct_figure(digests: Sequence[Digest], called: Sequence[str]) -> dict[str, Any]:
    """Share of the finished jobs that took at most so long."""
    most_s = max((float(d.jct_s[-1]) for d in digests if len(d.jct_s)), default=1.0)
    traces = []
    for i, d in enumerate(digests):
        # A log axis has no zero; who took less than a second took one, for the picture.
        jct_s = np.maximum(d.jct_s, 1.0)
        share = np.linspace(1 / max(1, d.report.finished), 1.0, len(jct_s)) * 100
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": called[i], "x": packed(jct_s), "y": packed(share),
                "line": {"color": colour(i), "dash": dash(i), "width": 2, "shape": "hv"},
                "hovertemplate": "%{y:.1f} % of jobs within %{x:,.0f} s",
            }
        )  # fmt: skip
    ticks = [(s, t) for s, t in _TICKS if s <= 3 * most_s]
    return {
        "data": traces,
        "layout": layout(
            360, showlegend=len(digests) > 1, legend=_LEGEND, hovermode="closest",
            xaxis=axis(
                "JCT (log scale)", type="log", tickvals=[s for s, _ in ticks], ticktext=[t for _, t in ticks]
            ),
            yaxis=axis("finished jobs (%)", range=[0, 102]),
        ),
    }  # fmt: skip


_TICKS = (
    (1, "1 s"), (3, "3 s"), (10, "10 s"), (30, "30 s"), (60, "1 min"), (180, "3 min"), (600, "10 min"),
    (1800, "30 min"), (3600, "1 h"), (3 * 3600, "3 h"), (8 * 3600, "8 h"), (86400, "1 d"), (3 * 86400, "3 d"),
    (10 * 86400, "10 d"), (30 * 86400, "30 d"), (100 * 86400, "100 d"), (365 * 86400, "1 y"),
)  # fmt: skip


def time_figure(digests: Sequence[Digest], called: Sequence[str]) -> dict[str, Any]:
    """Queue, GPUs and power under each other on one time axis."""
    span_s = max((float(d.series.waiting.at_s.max(initial=0)) for d in digests), default=0.0) or 1.0
    unit_s, unit = time_unit(span_s)
    most_w = max((float(d.series.power.value.max(initial=0)) for d in digests), default=0.0)
    watts, watt_unit = power_unit(most_w)
    points = max(200, _POINTS // max(1, len(digests)))
    panels = (
        ("y", "waiting jobs", 1.0, [d.series.waiting for d in digests]),
        ("y2", "GPUs held (%)", 0.01, [d.series.utilisation for d in digests]),
        ("y3", f"power ({watt_unit})", watts, [d.series.power for d in digests]),
    )
    traces = []
    for panel, (name, _, scale, curves) in enumerate(panels):
        for i, steps in enumerate(curves):
            rows = thin(steps.at_s, steps.value, points)
            shown = Steps(steps.at_s[rows] / unit_s, steps.value[rows] / scale)
            traces.append(_step_trace(shown, i, called[i], name, panel == 0))
    most = max((float(d.series.waiting.value.max(initial=0)) for d in digests), default=0.0)
    domains = ([0.70, 1.0], [0.36, 0.66], [0.0, 0.32])
    axes = {
        f"yaxis{name[1:]}": axis(title, domain=domain, rangemode="tozero")
        for (name, title, _, _), domain in zip(panels, domains, strict=True)
    }
    axes["yaxis"].update(range=[0, max(1.0, 1.06 * most)], **({"dtick": 1} if most <= 5 else {}))
    return {
        "data": traces,
        "layout": layout(
            720, showlegend=len(digests) > 1, legend=_LEGEND,
            xaxis=axis(
                f"time since the first submission ({unit})", anchor="y3", range=[0, 1.01 * span_s / unit_s]
            ),
            **axes,
        ),
    }  # fmt: skip


def _step_trace(steps: Steps, number: int, called: str, panel: str, in_legend: bool) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "name": called, "yaxis": panel,
        "legendgroup": str(number), "showlegend": in_legend,
        "x": packed(steps.at_s), "y": packed(steps.value),
        "line": {"color": colour(number), "dash": dash(number), "width": 1.3, "shape": "hv"},
    }  # fmt: skip
