"""How plots look: colours, time units, and numbers packed for the page."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Okabe and Ito's colours, told apart by people with any kind of colour vision; the yellow is left
# out because it vanishes on white, and black because it vanishes on dark.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8C6D31", "#7F7F7F")
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up")


def colour(number: int) -> str:
    """Colour of a curve; when they are used up, `dash` tells curves apart."""
    return COLOURS[number % len(COLOURS)]


def dash(number: int) -> str:
    """Line style of a curve."""
    return DASHES[number // len(COLOURS) % len(DASHES)]


def symbol(number: int) -> str:
    """Marker of a run."""
    return SYMBOLS[number // len(COLOURS) % len(SYMBOLS)]


def time_unit(span_s: float) -> tuple[float, str]:
    """Seconds of the unit that suits an axis of *span_s*, and its name."""
    for limit_s, unit_s, name in ((300.0, 1.0, "s"), (3 * 3600.0, 60.0, "min"), (4 * 86400.0, 3600.0, "h")):
        if span_s < limit_s:
            return unit_s, name
    return 86400.0, "days"


def power_unit(most_w: float) -> tuple[float, str]:
    """Watts of the unit that suits an axis up to *most_w*, and its name."""
    return (1000.0, "kW") if most_w >= 2000 else (1.0, "W")


def packed(values: NDArray[Any]) -> dict[str, Any]:
    """An array as plotly.js reads it fastest and smallest: the bytes, in base 64."""
    array = np.ascontiguousarray(values, dtype=np.uint8 if values.dtype == np.uint8 else np.float32)
    text = base64.b64encode(array.tobytes()).decode("ascii")
    packed: dict[str, Any] = {"dtype": "u1" if array.dtype == np.uint8 else "f4", "bdata": text}
    if array.ndim > 1:
        packed["shape"] = ", ".join(map(str, array.shape))
    return packed


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis that makes room for its labels."""
    return {"title": {"text": title, "standoff": 8}, "automargin": True, "zeroline": False, **more}


def layout(height: int, **more: Any) -> dict[str, Any]:
    """What all figures share; the page adds the colours of text and grid."""
    return {
        "height": height,
        "margin": {"l": 64, "r": 24, "t": 16, "b": 48},
        "font": {"size": 13},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"namelength": -1},
        **more,
    }
