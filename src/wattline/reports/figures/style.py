"""Colours, units, axes and layouts of figures."""

from __future__ import annotations

from typing import Any

# The palette of Okabe and Ito, which is safe for colour-blind readers, without yellow, which is illegible on
# white, and without black, which is illegible on dark backgrounds.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8C6D31", "#7F7F7F")
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up")


def pick_colour(number: int) -> str:
    """Return the colour of a curve; further curves repeat colours with another `pick_dash`."""
    return COLOURS[number % len(COLOURS)]


def pick_dash(number: int) -> str:
    """Return the line style of a curve."""
    return DASHES[number // len(COLOURS) % len(DASHES)]


def pick_symbol(number: int) -> str:
    """Return the marker of a run; it changes when all colours are used up."""
    return SYMBOLS[number // len(COLOURS) % len(SYMBOLS)]


def choose_time_unit(span_s: float) -> tuple[float, str]:
    """Return seconds and name of the time unit for an axis of *span_s* seconds."""
    for limit_s, unit_s, name in ((300.0, 1.0, "s"), (3 * 3600.0, 60.0, "min"), (4 * 86400.0, 3600.0, "h")):
        if span_s < limit_s:
            return unit_s, name
    return 86400.0, "days"


def choose_power_unit(max_w: float) -> tuple[float, str]:
    """Return watts and name of the power unit for an axis up to *max_w* watts."""
    return (1000.0, "kW") if max_w >= 2000 else (1.0, "W")


def build_axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with a title."""
    return {"title": {"text": title}, **more}


def build_layout(height: int, **more: Any) -> dict[str, Any]:
    """Return the layout of a figure of *height* pixels."""
    return {"height": height, **more}
