"""The one picture for people who read only one: energy against mean JCT, as a small SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from wattline.reports.data.digest import Digest
from wattline.reports.figures.style import colour
from wattline.reports.figures.tradeoff import Tradeoff, tradeoff
from wattline.reports.summary import Report

_WIDTH, _HEIGHT = 900, 420
_LEFT, _TOP, _RIGHT, _BOTTOM = 78, 58, 24, 62
_WIDE, _HIGH = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
_FONT_PX = 14
_INK, _SOFT, _GRID = "#1d2330", "#5a6272", "#e3e6eb"


def headline_svg(runs: Sequence[Digest | Report]) -> str:
    """An SVG of the runs' energy and mean JCT, with names and the front that no run beats."""
    reports = [run.report if isinstance(run, Digest) else run for run in runs]
    seen = tradeoff(reports, _WIDE, _HIGH, _FONT_PX)
    parts = [*_frame(_title(reports)), *_grid(seen), *_front(seen), *_points(seen)]
    return "\n".join((*parts, "</svg>", ""))


def _title(reports: Sequence[Report]) -> str:
    traces, clusters = {r.trace for r in reports}, {r.cluster for r in reports}
    text = "Energy and mean job completion time"
    if len(traces) == 1 and all(traces):
        text += f", {traces.pop()}"
    return f"{text} on {clusters.pop()}" if len(clusters) == 1 else text


def _frame(title: str) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" aria-label="{escape(title)}" '
        f'font-family="system-ui, Segoe UI, Roboto, Helvetica, Arial, sans-serif" font-size="{_FONT_PX}">'
    )
    yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="8" fill="#ffffff"/>'
    yield _text(_LEFT, 26, title, "start", _INK, 'font-size="16" font-weight="600"')
    yield _text(
        _LEFT, 45, "lower left is better; no run beats those on the dotted line in both", "start", _SOFT
    )


def _x(seen: Tradeoff, value: float) -> float:
    low, high = seen.energy_range
    return _LEFT + _WIDE * (value - low) / (high - low)


def _y(seen: Tradeoff, value: float) -> float:
    low, high = seen.jct_range
    return _TOP + _HIGH * (high - value) / (high - low)


def _grid(seen: Tradeoff) -> Iterator[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for value in ticks(*seen.energy_range):
        x = _x(seen, value)
        yield f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="{_GRID}"/>'
        yield _text(x, bottom + 19, f"{value:g}", "middle", _SOFT)
    for value in ticks(*seen.jct_range):
        y = _y(seen, value)
        yield f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="{_GRID}"/>'
        yield _text(_LEFT - 8, y + 5, f"{value:g}", "end", _SOFT)
    yield _text(
        _LEFT + _WIDE / 2, _HEIGHT - 16, f"energy of the cluster ({seen.energy_unit})", "middle", _INK
    )
    middle = _TOP + _HIGH / 2
    turned = f'transform="rotate(-90 22 {middle:g})"'
    yield _text(22, middle, f"mean JCT ({seen.jct_unit})", "middle", _INK, turned)


def _front(seen: Tradeoff) -> Iterator[str]:
    corners = [(_x(seen, seen.energy[k]), _y(seen, seen.jct[k])) for k in seen.front]
    if corners:
        path = f"M{corners[0][0]:.1f} {corners[0][1]:.1f}" + "".join(
            f"H{x:.1f}V{y:.1f}" for x, y in corners[1:]
        )
        yield f'<path d="{path}" fill="none" stroke="{_SOFT}" stroke-width="1.5" stroke-dasharray="2 4"/>'


def _points(seen: Tradeoff) -> Iterator[str]:
    for k, spot in enumerate(seen.label):
        x, y = _x(seen, seen.energy[k]), _y(seen, seen.jct[k])
        if spot.far:
            line = f"M{x:.1f} {y:.1f}l{spot.dx:.1f} {spot.dy:.1f}"
            yield f'<path d="{line}" stroke="{_SOFT}" stroke-width="0.8"/>'
        ring = f'stroke="{_INK}" stroke-width="2"' if k in seen.front else 'stroke="#ffffff" stroke-width="1"'
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6.5" fill="{colour(seen.number[k])}" {ring}/>'
        yield _text(x + spot.dx, y + spot.dy + 5, seen.name[k], spot.anchor, _INK)


def _text(x: float, y: float, text: str, anchor: str, fill: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" {more}>{escape(text)}</text>'


def ticks(low: float, high: float) -> list[float]:
    """Four to nine round numbers between *low* and *high*."""
    rough = (high - low) / 6
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= rough)
    return [round(k * step, 12) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
