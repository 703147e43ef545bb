"""Figure of the prices of resources over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wattline.core.resource_prices import ENERGY
from wattline.reports.data.plot_data import PlotData
from wattline.reports.figures.style import build_axis, build_layout, choose_time_unit, pick_colour, pick_dash


def name_price_unit(policies: Sequence[str]) -> str:
    """Return the unit of prices: seconds of completion time, or money where policies have `aim=cost`."""
    units = dict.fromkeys("money" if "aim=cost" in policy else "s" for policy in policies)
    return " or ".join(units) or "s"


def build_price_figure(runs: Sequence[PlotData], run_names: Sequence[str]) -> dict[str, Any]:
    """Return the prices of a GPU-hour above that of a joule, on one time axis."""
    ends_s = [float(steps.at_s.max(initial=0)) for run in runs for steps in run.prices.values()]
    span_s = max(ends_s, default=0.0) or 1.0
    unit_s, unit = choose_time_unit(span_s)
    traces: list[dict[str, Any]] = []
    for run, run_name in zip(runs, run_names, strict=True):
        for name, steps in run.prices.items():
            number = len(traces)
            shown = f"{run_name}: {name}" if len(runs) > 1 else name
            traces.append(
                {
                    "type": "scatter", "mode": "lines", "name": shown, "legendgroup": shown,
                    "showlegend": True,
                    "yaxis": "y2" if name == ENERGY else "y",
                    "x": steps.at_s / unit_s, "y": steps.value,
                    "line": {
                        "color": pick_colour(number), "dash": pick_dash(number), "width": 1.3, "shape": "hv"
                    },
                }
            )  # fmt: skip
    money = name_price_unit([run.report.policy for run in runs if run.prices])
    return {
        "data": traces,
        "layout": build_layout(
            480, showlegend=True,
            xaxis=build_axis(
                f"time since the first submission ({unit})", anchor="y2", range=[0, 1.01 * span_s / unit_s]
            ),
            yaxis=build_axis(f"price of a GPU-hour ({money})", domain=[0.46, 1.0], rangemode="tozero"),
            yaxis2=build_axis(f"price of a joule ({money})", domain=[0.0, 0.38], rangemode="tozero"),
        ),
    }  # fmt: skip
