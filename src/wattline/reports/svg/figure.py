"""A figure as SVG: panels with axes, grid, marks, labels and a legend.

A figure is a dict with `data`, a list of traces, and `layout`, as the modules of `figures` build them.
Colours of text and grid are classes of the stylesheet, so that a figure follows light and dark mode. A panel
carries its scales as attributes; the script of the page reads values under the pointer from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from wattline.reports.svg.axes import Axis, build_axis_scale, format_numbers
from wattline.reports.svg.marks import draw_trace

WIDE, NARROW = 1100, 366
"""Widths in pixels for windows and for phones."""
_BOTTOM, _RIGHT, _CHARACTER = 52, 22, 7.2
_LEGEND_ROW = 20


def render_figure(figure: Mapping[str, Any], width: int, label: str) -> str:
    """Return the SVG element of *figure*; *label* describes it to screen readers."""
    layout, data = figure["layout"], figure["data"]
    narrow = width < 700
    entries = _list_legend(data) if layout.get("showlegend") or (narrow and _is_labelled(layout)) else []
    legend, legend_height = _draw_legend(entries, width)
    stacked = narrow and _count_columns(layout) > 1
    height = int(layout["height"]) * (2 if stacked else 1) + legend_height
    top = legend_height + 14
    parts = [
        f'<svg class="chart" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' aria-label="{escape(label)}">',
        *legend,
    ]
    panels = _list_panels(data)
    left = _left_margin(layout, data, narrow)
    for number, (x_name, y_name) in enumerate(panels):
        traces = [one for one in data if (one.get("xaxis", "x"), one.get("yaxis", "y")) == (x_name, y_name)]
        x_layout, y_layout = layout[_layout_key(x_name)], layout[_layout_key(y_name)]
        x_span, y_span = x_layout.get("domain", (0.0, 1.0)), y_layout.get("domain", (0.0, 1.0))
        area_top, area_high = float(top), float(height - top - _BOTTOM)
        if stacked:  # panels side by side would be too small
            x_span, area_high = (0.0, 1.0), height / 2 - top / 2 - _BOTTOM
            area_top = top + number * (area_high + _BOTTOM)
        wide = width - left - _RIGHT
        gap = left * 0.5 if x_span[0] > 0 else 0.0
        start, end = left + gap + x_span[0] * (wide - gap), left + x_span[1] * wide
        bottom, upper = area_top + (1 - y_span[0]) * area_high, area_top + (1 - y_span[1]) * area_high
        x = build_axis_scale(x_layout, _values(data, "x", x_name), start, end, int((end - start) // 90) or 1)
        y = build_axis_scale(
            y_layout, _values(data, "y", y_name), bottom, upper, _count_labels(y_layout, bottom - upper)
        )
        has_title = x_layout.get("anchor", "y") == y_name or len({name for name, _ in panels}) > 1
        parts += _draw_panel(traces, x, y, layout if number == 0 else {}, narrow, has_title)
    parts.append("</svg>")
    return "".join(parts)


def _is_labelled(layout: Mapping[str, Any]) -> bool:
    return bool(layout.get("annotations"))


def _count_columns(layout: Mapping[str, Any]) -> int:
    return sum(name.startswith("xaxis") for name in layout)


def _count_labels(layout: Mapping[str, Any], high: float) -> int:
    return int(layout.get("nticks") or high // 32) or 1


def _layout_key(axis: str) -> str:
    return f"{axis[0]}axis{axis[1:]}"


def _list_panels(data: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((one.get("xaxis", "x"), one.get("yaxis", "y")) for one in data))


def _values(data: Sequence[Mapping[str, Any]], name: str, axis: str) -> Iterator[Any]:
    """Yield the values of all traces on an axis, with the ends of bars and error bars."""
    for trace in data:
        if trace.get(f"{name}axis", name) != axis:
            continue
        values = (
            np.asarray(trace[name], dtype=np.float64) if trace["type"] != "heatmap" or name == "x" else None
        )
        if values is None:
            yield np.array([0.0, float(len(trace["y"]))])
        elif trace["type"] == "bar" and name == "x":
            base = np.asarray(trace["base"], dtype=np.float64)
            yield base
            yield base + values
        else:
            yield values
            if f"error_{name}" in trace:
                yield values - np.asarray(trace[f"error_{name}"]["arrayminus"])
                yield values + np.asarray(trace[f"error_{name}"]["array"])


def _left_margin(layout: Mapping[str, Any], data: Sequence[Mapping[str, Any]], narrow: bool) -> float:
    """Return the pixels left of the plots: for the labels and the title of the y axes."""
    texts = [
        text for key, axis in layout.items() if key.startswith("yaxis") for text in axis.get("ticktext", ())
    ]
    longest = max((len(text) for text in texts), default=6)
    return min(30 + _CHARACTER * max(longest, 5), 165 if narrow else 200)


def _list_legend(data: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Return name, colour and dash of each entry."""
    entries: dict[str, tuple[str, str, str]] = {}
    for trace in data:
        name = str(trace.get("name", ""))
        if name and trace.get("showlegend", True):
            style = trace.get("marker") if "color" in trace.get("marker", {}) else trace.get("line", {})
            dash = str(trace.get("line", {}).get("dash", "solid"))
            entries.setdefault(name, (name, str((style or {}).get("color", "#7F7F7F")), dash))
    return list(entries.values())


def _draw_legend(entries: Sequence[tuple[str, str, str]], width: int) -> tuple[list[str], int]:
    """Return the elements of a legend above the plot, in rows, and its height."""
    parts, x, y = [], 8.0, 14.0
    dashes = {"dash": "7 4", "dot": "2 4", "dashdot": "7 3 2 3"}
    for name, colour, dash in entries:
        long = 38 + _CHARACTER * len(name)
        if x > 8 and x + long > width:
            x, y = 8.0, y + _LEGEND_ROW
        pattern = f' stroke-dasharray="{dashes[dash]}"' if dash in dashes else ""
        parts.append(
            f'<path d="M{x:.0f} {y - 4:.0f}h20" stroke="{escape(colour)}" stroke-width="4"{pattern}/>'
            f'<text x="{x + 26:.0f}" y="{y:.0f}">{escape(name)}</text>'
        )
        x += long
    return parts, int(y + 8) if entries else 0


def _draw_panel(
    traces: Sequence[Mapping[str, Any]],
    x: Axis,
    y: Axis,
    layout: Mapping[str, Any],
    narrow: bool,
    has_title: bool,
) -> Iterator[str]:
    heatmap = next((one for one in traces if one["type"] == "heatmap"), None)
    rows = f' data-rows="{escape("|".join(heatmap["y"]))}"' if heatmap else ""
    yield (
        f'<g class="panel" data-x="{_describe(x)}" data-y="{_describe(y)}"'
        f' data-x-title="{escape(x.title)}" data-y-title="{escape(y.title)}"{rows}>'
    )
    for shape in layout.get("shapes", ()):
        top, bottom = y.place((shape["y0"], shape["y1"]))
        yield (
            f'<rect class="band" x="{x.start:.1f}" y="{min(top, bottom):.1f}" width="{x.end - x.start:.1f}"'
            f' height="{abs(bottom - top):.1f}"/>'
        )
    yield from _draw_axes(x, y, heatmap, has_title)
    for trace in traces:
        yield from draw_trace(trace, x, y)
    for note in () if narrow else layout.get("annotations", ()):
        yield from _draw_annotation(note, x, y)
    yield "</g>"


def _describe(axis: Axis) -> str:
    """Return an axis for the page's script: pixels and values of both ends, and 1 if it is logarithmic."""
    return format_numbers((axis.start, axis.end, axis.low, axis.high, float(axis.is_log)))


def _draw_axes(x: Axis, y: Axis, heatmap: Mapping[str, Any] | None, has_title: bool) -> Iterator[str]:
    bottom, top = max(y.start, y.end), min(y.start, y.end)
    lines = [f"M{x.start:.1f} {bottom:.1f}H{x.end:.1f}"]
    for at, text in x.ticks:
        px = float(x.place(at))
        lines += [f"M{px:.1f} {top:.1f}V{bottom:.1f}"] if x.has_grid else [f"M{px:.1f} {bottom:.1f}v4"]
        if has_title:
            yield _draw_tick(px, bottom + 18, "middle", text)
    if heatmap is None:
        for at, text in y.ticks:
            py = float(y.place(at))
            lines += [f"M{x.start:.1f} {py:.1f}H{x.end:.1f}"] if y.has_grid else []
            yield _draw_tick(x.start - 7, py + 4, "end", _shorten(text, x.start - 7))
    else:
        names = heatmap["y"]
        step = max(1, math.ceil(len(names) / max((bottom - top) // 16, 1)))
        for row in range(0, len(names), step):
            py = top + (row + 0.5) * (bottom - top) / len(names)
            yield _draw_tick(x.start - 7, py + 4, "end", _shorten(names[row], x.start - 7))
    yield f'<path class="grid" d="{"".join(lines)}"/>'
    if has_title:
        middle = (x.start + x.end) / 2
        yield f'<text x="{middle:.1f}" y="{bottom + 40:.1f}" text-anchor="middle">{escape(x.title)}</text>'
    if y.title:
        at_x, at_y = max(x.start - 58, 12.0), (top + bottom) / 2
        place = f'x="{at_x:.1f}" y="{at_y:.1f}" transform="rotate(-90 {at_x:.1f} {at_y:.1f})"'
        yield f'<text {place} text-anchor="middle">{escape(y.title)}</text>'


def _shorten(text: str, width: float) -> str:
    """Return a label that fits into *width* pixels; the tip under the pointer has the whole one."""
    most = max(int(width / _CHARACTER), 4)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _draw_tick(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text class="soft" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _draw_annotation(note: Mapping[str, Any], x: Axis, y: Axis) -> Iterator[str]:
    """Yield a label beside a point, with a leader line where it is far from it."""
    a, b = float(x.place(note["x"])), float(y.place(note["y"]))
    if note["leader"]:
        yield f'<path class="leader" d="M{a:.1f} {b:.1f}l{note["dx"]:.1f} {note["dy"]:.1f}"/>'
    yield (
        f'<text x="{a + note["dx"]:.1f}" y="{b + note["dy"] + 5:.1f}" text-anchor="{note["anchor"]}">'
        f"{escape(note['text'])}</text>"
    )
