"""Colours, units, axes and packed arrays of plotly figures."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def pack_array(values: NDArray[Any]) -> dict[str, Any]:
    """Return *values* as a typed array of plotly.js: bytes in base64, smaller and faster than a list."""
    array = np.ascontiguousarray(values, dtype=np.uint8 if values.dtype == np.uint8 else np.float32)
    text = base64.b64encode(array.tobytes()).decode("ascii")
    result: dict[str, Any] = {"dtype": "u1" if array.dtype == np.uint8 else "f4", "bdata": text}
    if array.ndim > 1:
        result["shape"] = ", ".join(map(str, array.shape))
    return result


def build_axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis that makes room for its labels."""
    return {"title": {"text": title, "standoff": 8}, "automargin": True, "zeroline": False, **more}


def build_layout(height: int, **more: Any) -> dict[str, Any]:
    """Return the layout that all figures share; the page's script adds the colours of text and grid."""
    return {
        "height": height,
        "margin": {"l": 64, "r": 24, "t": 16, "b": 48},
        "font": {"size": 13},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"namelength": -1},
        **more,
    }
