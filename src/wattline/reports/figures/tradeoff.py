"""Trade-off of energy and mean JCT: runs as points, and their Pareto front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from wattline.reports.data.pareto_front import mark_pareto_front
from wattline.reports.equal_energy import KnobSweep
from wattline.reports.figures.labels import Box, Label, place_labels
from wattline.reports.figures.style import (
    build_axis,
    build_layout,
    choose_time_unit,
    pick_colour,
    pick_symbol,
)
from wattline.reports.run_names import name_runs
from wattline.reports.seed_means import SeedRuns
from wattline.reports.summary import Report

_FAR_FROM_ZERO = 0.8  # smallest over largest value from which an axis need not start at 0
_LEAST_SPAN = 0.05  # of the largest value, so that equal runs do not seem to differ
_WIDTH, _HEIGHT = 1090, 340  # pixels of the plot in a window of 1280; labels are placed for these

Bars = tuple[tuple[float, float], tuple[float, float]]


@dataclass(frozen=True)
class Tradeoff:
    """Points in readable units, with labels that do not overlap."""

    name: tuple[str, ...]
    number: tuple[int, ...]  # of the run in the comparison
    energy: tuple[float, ...]
    energy_unit: str
    jct: tuple[float, ...]
    jct_unit: str
    front: tuple[int, ...]  # rows in ascending order of energy
    energy_range: tuple[float, float]
    jct_range: tuple[float, float]
    label: tuple[Label, ...]
    bars: tuple[Bars, ...] = ()  # low and high of energy, and of JCT, by row; empty: one seed
    sweep: tuple[tuple[float, float, float], ...] = ()  # knob, energy and JCT of the runs of one policy


def build_tradeoff(
    reports: Sequence[Report],
    width: float,
    height: float,
    font_px: float = 13,
    sweep: KnobSweep | None = None,
    seed_runs: SeedRuns | None = None,
) -> Tradeoff:
    """Return the runs with known energy and JCT, and those of *sweep*; *width* and *height* are in pixels.

    With *seed_runs*, *reports* are its means, and the points have intervals.
    """
    rows = [i for i, r in enumerate(reports) if _has_both(r)]
    swept = (
        [(value, r) for value, r in zip(sweep.values, sweep.reports, strict=True) if _has_both(r)]
        if sweep
        else []
    )
    run_names, on_front = name_runs(reports), mark_pareto_front(reports)
    shown = [*(reports[i] for i in rows), *(r for _, r in swept)]
    unit_kwh, energy_unit = (
        (1000.0, "MWh") if max((r.energy_kwh for r in shown), default=0) >= 2000 else (1.0, "kWh")
    )
    unit_s, jct_unit = choose_time_unit(max((r.jct_mean_s for r in shown), default=0.0))
    points = [(r.energy_kwh / unit_kwh, r.jct_mean_s / unit_s) for r in shown]
    bars = [_find_bars(seed_runs, row, unit_kwh, unit_s) for row in rows] if seed_runs else []
    ends = [(one, other) for bar in bars for one, other in zip(*bar, strict=True)]
    x_range = choose_range([x for x, _ in (*points, *ends)])
    y_range = choose_range([y for _, y in (*points, *ends)])
    pixels = [(width * _locate(x, x_range), height * (1 - _locate(y, y_range))) for x, y in points]
    run_points, run_pixels = points[: len(rows)], pixels[: len(rows)]
    energy, jct = [x for x, _ in run_points], [y for _, y in run_points]
    texts = [run_names[i] for i in rows]
    order = sorted((k for k, i in enumerate(rows) if on_front[i]), key=lambda k: (energy[k], jct[k]))
    covered = [*_cover_stairs([run_pixels[k] for k in order]), *_cover_line(pixels[len(rows) :])]
    for (x, y), ((low_x, high_x), (low_y, high_y)) in zip(run_pixels, bars, strict=False):
        left, right = (width * _locate(end, x_range) for end in (low_x, high_x))
        bottom, top = (height * (1 - _locate(end, y_range)) for end in (low_y, high_y))
        covered += ((left, y - 2, right, y + 2), (x - 2, top, x + 2, bottom))
    return Tradeoff(
        name=tuple(texts),
        number=tuple(rows),
        energy=tuple(energy),
        energy_unit=energy_unit,
        jct=tuple(jct),
        jct_unit=jct_unit,
        front=tuple(order),
        energy_range=x_range,
        jct_range=y_range,
        label=tuple(place_labels(run_pixels, texts, (0, 0, width, height), covered, font_px)),
        bars=tuple(bars),
        sweep=tuple((value, x, y) for (value, _), (x, y) in zip(swept, points[len(rows) :], strict=True)),
    )


def _has_both(r: Report) -> bool:
    return math.isfinite(r.energy_j) and math.isfinite(r.jct_mean_s)


def _find_bars(seed_runs: SeedRuns, row: int, unit_kwh: float, unit_s: float) -> Bars:
    """Return the intervals of energy and JCT in the units of the axes, cut at 0."""
    energy, jct = seed_runs.estimate("energy_kwh")[row], seed_runs.estimate("jct_mean_s")[row]
    return (
        (max(energy.low, 0.0) / unit_kwh, energy.high / unit_kwh),
        (max(jct.low, 0.0) / unit_s, jct.high / unit_s),
    )


def _locate(value: float, within: tuple[float, float]) -> float:
    return (value - within[0]) / (within[1] - within[0])


def _cover_stairs(points: Sequence[tuple[float, float]]) -> list[Box]:
    """Return the boxes that the line of the front covers: from each point right, then down to the next."""
    boxes: list[Box] = []
    for (x, y), (next_x, next_y) in pairwise(points):
        boxes += ((x, y - 2, next_x, y + 2), (next_x - 2, y, next_x + 2, next_y))
    return boxes


def _cover_line(points: Sequence[tuple[float, float]]) -> list[Box]:
    """Return boxes along the line through *points*: one at each and three between two."""
    spots = [*points]
    for (x, y), (to_x, to_y) in pairwise(points):
        spots += [(x + part * (to_x - x), y + part * (to_y - y)) for part in (0.25, 0.5, 0.75)]
    return [(x - 4, y - 4, x + 4, y + 4) for x, y in spots]


def choose_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of *values* with a margin, from 0 on unless all values are far from 0 and close."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if 0 <= low <= _FAR_FROM_ZERO * high:
        return 0.0, 1.14 * high or 1.0
    margin = 0.14 * (high - low)
    short = (_LEAST_SPAN * abs(high) or 1.0) - (high - low + 2 * margin)
    margin += max(short, 0.0) / 2
    return low - margin, high + margin


def format_axis_title(text: str, shown: tuple[float, float]) -> str:
    """Return the title of an axis, which says so if the axis does not start at 0."""
    return text if shown[0] == 0 else f"{text}, not from 0"


def build_tradeoff_figure(
    reports: Sequence[Report], sweep: KnobSweep | None = None, seed_runs: SeedRuns | None = None
) -> dict[str, Any]:
    """Return the figure; *sweep* is a line through the runs of one policy, *seed_runs* give error bars."""
    plot = build_tradeoff(reports, _WIDTH, _HEIGHT, sweep=sweep, seed_runs=seed_runs)
    line = {
        "type": "scatter", "mode": "lines", "hoverinfo": "skip", "name": "Pareto front",
        "x": [plot.energy[k] for k in plot.front], "y": [plot.jct[k] for k in plot.front],
        "line": {"color": "#7F7F7F", "width": 1.5, "dash": "dot", "shape": "hv"},
    }  # fmt: skip
    dots = [
        {
            "type": "scatter", "mode": "markers", "name": plot.name[k],
            "x": [plot.energy[k]], "y": [plot.jct[k]],
            "marker": {"size": 12, "color": pick_colour(number), "symbol": pick_symbol(number)},
            "hover": [
                f"{plot.name[k]}\n{_describe_point(plot, plot.energy[k], plot.jct[k])}"
                f"{_describe_bars(plot, k)}"
            ],
            **_build_error_bars(plot, k),
        }
        for k, number in enumerate(plot.number)
    ]  # fmt: skip
    notes = [
        {
            "x": plot.energy[k], "y": plot.jct[k], "text": plot.name[k], "dx": spot.dx, "dy": spot.dy,
            "anchor": spot.anchor, "leader": spot.needs_leader,
        }
        for k, spot in enumerate(plot.label)
    ]  # fmt: skip
    return {
        "data": [line, *_build_sweep_trace(plot, sweep), *dots],
        "layout": build_layout(
            420, showlegend=False, annotations=notes,
            xaxis=build_axis(
                format_axis_title(f"energy of the cluster ({plot.energy_unit})", plot.energy_range),
                range=list(plot.energy_range),
            ),
            yaxis=build_axis(
                format_axis_title(f"mean JCT ({plot.jct_unit})", plot.jct_range), range=list(plot.jct_range)
            ),
        ),
    }  # fmt: skip


def _describe_point(plot: Tradeoff, energy: float, jct: float) -> str:
    return f"{energy:.4g} {plot.energy_unit}, mean JCT {jct:.3g} {plot.jct_unit}"


def _describe_bars(plot: Tradeoff, row: int) -> str:
    if not plot.bars:
        return ""
    (low, high), (short, long) = plot.bars[row]
    return f"\n95 %: {low:.4g} to {high:.4g} {plot.energy_unit}, {short:.3g} to {long:.3g} {plot.jct_unit}"


def _build_error_bars(plot: Tradeoff, row: int) -> dict[str, Any]:
    if not plot.bars:
        return {}
    (low, high), (short, long) = plot.bars[row]
    return {
        "error_x": {"arrayminus": [plot.energy[row] - low], "array": [high - plot.energy[row]]},
        "error_y": {"arrayminus": [plot.jct[row] - short], "array": [long - plot.jct[row]]},
    }


def _build_sweep_trace(plot: Tradeoff, sweep: KnobSweep | None) -> list[dict[str, Any]]:
    if sweep is None or not plot.sweep:
        return []
    values, energy, jct = (list(column) for column in zip(*plot.sweep, strict=True))
    return [
        {
            "type": "scatter", "mode": "lines+markers+text", "name": sweep.policy, "hoverinfo": "skip",
            "x": energy, "y": jct,
            "text": [f"{sweep.knob} {x:g}" if x in (values[0], values[-1]) else "" for x in values],
            "line": {"color": pick_colour(sweep.run_number), "width": 1.5}, "marker": {"size": 5},
            "hover": [
                f"{sweep.policy}, {sweep.knob} {value:.3g}\n{_describe_point(plot, x, y)}"
                for value, x, y in plot.sweep
            ],
        }
    ]  # fmt: skip
