"""Marks of a figure as SVG elements: lines, points with error bars, bars, and heatmaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import numpy as np

from wattline.core.table import Floats
from wattline.reports.svg.axes import Axis
from wattline.reports.svg.png import build_colour_scale, build_pale_scale, encode_percent

_SYMBOLS = {
    "circle": "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0-12 0z",
    "square": "M-5.3-5.3h10.6v10.6h-10.6z",
    "diamond": "M0-7.5L7.5 0L0 7.5L-7.5 0z",
    "triangle-up": "M0-7L6.5 5H-6.5z",
    "star": "M0-8.5L2.2-2.6L8.1-2.6L3.4 1.1L5.2 7L0 3.5L-5.2 7L-3.4 1.1L-8.1-2.6L-2.2-2.6z",
}
_DASHES = {"solid": "", "dash": "7 4", "dot": "2 4", "dashdot": "7 3 2 3"}


def draw_trace(trace: Mapping[str, Any], x: Axis, y: Axis) -> Iterator[str]:
    """Yield the elements of one trace of a figure."""
    if trace["type"] == "heatmap":
        yield from _draw_heatmap(trace, x, y)
    elif trace["type"] == "bar":
        yield from _draw_bars(trace, x, y)
    else:
        mode = trace["mode"]
        if "lines" in mode:
            yield _draw_line(trace, x, y)
        if "markers" in mode:
            yield from _draw_points(trace, x, y)
        if "text" in mode:
            yield from _draw_texts(trace, x, y)


def _colour(style: Mapping[str, Any]) -> str:
    return escape(str(style.get("color", "#7F7F7F")))


def _draw_line(trace: Mapping[str, Any], x: Axis, y: Axis) -> str:
    line = trace["line"]
    px, py = x.place(trace["x"]), y.place(trace["y"])
    known = np.isfinite(px) & np.isfinite(py)
    path = _build_path(px[known], py[known], line.get("shape") == "hv")
    dash = _DASHES[line.get("dash", "solid")]
    hover = "" if trace.get("hoverinfo") == "skip" else f' data-line="{escape(str(trace.get("name", "")))}"'
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<path d="{path}" fill="none" stroke="{_colour(line)}" stroke-width="{line.get("width", 1.5)}"'
        f"{dashes}{hover}/>"
    )


def _build_path(px: Floats, py: Floats, is_step: bool) -> str:
    """Return a path; of steps on the same pixel only the extremes and the last are drawn."""
    if not len(px):
        return ""
    if not is_step:
        return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(px.tolist(), py.tolist(), strict=True))
    parts = [f"M{px[0]:.1f} {py[0]:.1f}"]
    last_x, last_y = f"{px[0]:.1f}", f"{py[0]:.1f}"
    for a, b in zip(px[1:].tolist(), py[1:].tolist(), strict=True):
        now_x, now_y = f"{a:.1f}", f"{b:.1f}"
        if now_x != last_x:
            parts.append(f"H{now_x}")
        if now_y != last_y:
            parts.append(f"V{now_y}")
        last_x, last_y = now_x, now_y
    return "".join(parts)


def _draw_points(trace: Mapping[str, Any], x: Axis, y: Axis) -> Iterator[str]:
    marker = trace["marker"]
    px, py = x.place(trace["x"]), y.place(trace["y"])
    texts = trace.get("hover") or [""] * len(px)
    size = float(marker.get("size", 7)) / 12
    symbol = _SYMBOLS[marker.get("symbol", "circle")]
    colour = _colour(marker if "color" in marker else trace.get("line", {}))
    for row, (a, b, text) in enumerate(zip(px.tolist(), py.tolist(), texts, strict=True)):
        if not (np.isfinite(a) and np.isfinite(b)):
            continue
        yield from _draw_errors(trace, row, x, y, colour)
        about = f' data-t="{escape(text)}"' if text else ""
        opacity = f' opacity="{marker["opacity"]}"' if "opacity" in marker else ""
        place = f"translate({a:.1f} {b:.1f}) scale({size:.3g})"
        yield f'<path class="mark" d="{symbol}" transform="{place}" fill="{colour}"{opacity}{about}/>'


def _draw_errors(trace: Mapping[str, Any], row: int, x: Axis, y: Axis, colour: str) -> Iterator[str]:
    """Yield the error bars of a point."""
    at_x, at_y = float(trace["x"][row]), float(trace["y"][row])
    for name in ("error_x", "error_y"):
        if name not in trace:
            continue
        low, high = trace[name]["arrayminus"][row], trace[name]["array"][row]
        if name == "error_x":
            (a, b), middle = x.place((at_x - low, at_x + high)), float(y.place(at_y))
            path = f"M{a:.1f} {middle - 4:.1f}v8M{a:.1f} {middle:.1f}H{b:.1f}m0-4v8"
        else:
            (a, b), middle = y.place((at_y - low, at_y + high)), float(x.place(at_x))
            path = f"M{middle - 4:.1f} {a:.1f}h8M{middle:.1f} {a:.1f}V{b:.1f}m-4 0h8"
        yield f'<path class="error" d="{path}" fill="none" stroke="{colour}" stroke-width="1.2"/>'


def _draw_texts(trace: Mapping[str, Any], x: Axis, y: Axis) -> Iterator[str]:
    for a, b, text in zip(x.place(trace["x"]), y.place(trace["y"]), trace["text"], strict=True):
        if text:
            place = f'x="{a:.1f}" y="{b + 18:.1f}" text-anchor="middle"'
            yield f'<text class="soft" {place}>{escape(text)}</text>'


def _draw_bars(trace: Mapping[str, Any], x: Axis, y: Axis) -> Iterator[str]:
    """Yield horizontal bars, or hatched areas where the marker has a pattern."""
    base = np.asarray(trace["base"], dtype=np.float64)
    left, right = x.place(base), x.place(base + np.asarray(trace["x"]))
    half = np.asarray(trace["width"], dtype=np.float64) / 2
    middle = np.asarray(trace["y"], dtype=np.float64)
    top, bottom = y.place(middle - half), y.place(middle + half)
    colours, hatches = trace["marker"]["color"], trace["marker"].get("hatch")
    for row, text in enumerate(trace["hover"]):
        box = (
            f'x="{left[row]:.1f}" y="{min(top[row], bottom[row]):.1f}"'
            f' width="{max(right[row] - left[row], 0.4):.1f}" height="{abs(bottom[row] - top[row]):.1f}"'
        )
        style = f'class="hatch {hatches[row]}"' if hatches else f'class="bar" fill="{escape(colours[row])}"'
        yield f'<rect {box} {style} data-t="{escape(text)}"/>'


def _draw_heatmap(trace: Mapping[str, Any], x: Axis, y: Axis) -> Iterator[str]:
    palette = build_pale_scale() if trace["colorscale"] == "pale" else build_colour_scale()
    left, right = sorted((x.start, x.end))
    top, bottom = sorted((y.start, y.end))
    image = encode_percent(trace["z"], palette)
    yield (
        f'<image class="heatmap" href="{image}" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}"'
        f' height="{bottom - top:.1f}" preserveAspectRatio="none"/>'
    )
