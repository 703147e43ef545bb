"""Energy against mean JCT of runs as a small SVG, for a README."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from wattline.reports.data.plot_data import PlotData
from wattline.reports.figures.style import pick_colour
from wattline.reports.figures.tradeoff import Tradeoff, build_tradeoff, format_axis_title
from wattline.reports.summary import Report
from wattline.reports.svg.axes import choose_ticks

_WIDTH, _HEIGHT = 900, 420
_LEFT, _TOP, _RIGHT, _BOTTOM = 78, 58, 24, 62
_WIDE, _HIGH = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
_FONT_PX = 14
_INK, _SOFT, _GRID = "#1d2330", "#5a6272", "#e3e6eb"


def draw_headline_svg(runs: Sequence[PlotData | Report]) -> str:
    """Return an SVG of the energy and mean JCT of *runs*, with names and the Pareto front."""
    reports = [run.report if isinstance(run, PlotData) else run for run in runs]
    plot = build_tradeoff(reports, _WIDE, _HIGH, _FONT_PX)
    parts = [*_draw_frame(_format_title(reports)), *_draw_grid(plot), *_draw_front(plot), *_draw_points(plot)]
    return "\n".join((*parts, "</svg>", ""))


def _format_title(reports: Sequence[Report]) -> str:
    traces, clusters = {r.trace for r in reports}, {r.cluster for r in reports}
    text = "Energy and mean job completion time"
    if len(traces) == 1 and all(traces):
        text += f", {traces.pop()}"
    return f"{text} on {clusters.pop()}" if len(clusters) == 1 else text


def _draw_frame(title: str) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" aria-label="{escape(title)}" '
        f'font-family="system-ui, Segoe UI, Roboto, Helvetica, Arial, sans-serif" font-size="{_FONT_PX}">'
    )
    yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="8" fill="#ffffff"/>'
    yield _format_text(_LEFT, 26, title, "start", _INK, 'font-size="16" font-weight="600"')
    yield _format_text(
        _LEFT, 45, "lower left is better; no run beats those on the dotted line in both", "start", _SOFT
    )


def _x(plot: Tradeoff, value: float) -> float:
    low, high = plot.energy_range
    return _LEFT + _WIDE * (value - low) / (high - low)


def _y(plot: Tradeoff, value: float) -> float:
    low, high = plot.jct_range
    return _TOP + _HIGH * (high - value) / (high - low)


def _draw_grid(plot: Tradeoff) -> Iterator[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for value in choose_ticks(*plot.energy_range):
        x = _x(plot, value)
        yield f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="{_GRID}"/>'
        yield _format_text(x, bottom + 19, f"{value:g}", "middle", _SOFT)
    for value in choose_ticks(*plot.jct_range):
        y = _y(plot, value)
        yield f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="{_GRID}"/>'
        yield _format_text(_LEFT - 8, y + 5, f"{value:g}", "end", _SOFT)
    energy = format_axis_title(f"energy of the cluster ({plot.energy_unit})", plot.energy_range)
    yield _format_text(_LEFT + _WIDE / 2, _HEIGHT - 16, energy, "middle", _INK)
    middle = _TOP + _HIGH / 2
    rotation = f'transform="rotate(-90 22 {middle:g})"'
    jct = format_axis_title(f"mean JCT ({plot.jct_unit})", plot.jct_range)
    yield _format_text(22, middle, jct, "middle", _INK, rotation)


def _draw_front(plot: Tradeoff) -> Iterator[str]:
    corners = [(_x(plot, plot.energy[k]), _y(plot, plot.jct[k])) for k in plot.front]
    if corners:
        path = f"M{corners[0][0]:.1f} {corners[0][1]:.1f}" + "".join(
            f"H{x:.1f}V{y:.1f}" for x, y in corners[1:]
        )
        yield f'<path d="{path}" fill="none" stroke="{_SOFT}" stroke-width="1.5" stroke-dasharray="2 4"/>'


def _draw_points(plot: Tradeoff) -> Iterator[str]:
    for k, spot in enumerate(plot.label):
        x, y = _x(plot, plot.energy[k]), _y(plot, plot.jct[k])
        if spot.needs_leader:
            line = f"M{x:.1f} {y:.1f}l{spot.dx:.1f} {spot.dy:.1f}"
            yield f'<path d="{line}" stroke="{_SOFT}" stroke-width="0.8"/>'
        ring = f'stroke="{_INK}" stroke-width="2"' if k in plot.front else 'stroke="#ffffff" stroke-width="1"'
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6.5" fill="{pick_colour(plot.number[k])}" {ring}/>'
        yield _format_text(x + spot.dx, y + spot.dy + 5, plot.name[k], spot.anchor, _INK)


def _format_text(x: float, y: float, text: str, anchor: str, fill: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" {more}>{escape(text)}</text>'
