"""Axes of a figure: from values to pixels, and the ticks with their labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattline.core.table import Floats

_PAD = 0.04  # of the range of the values, where an axis has no range of its own


@dataclass(frozen=True)
class Axis:
    """An axis: *low* is at the pixel *start*, *high* at *end*. Values of a log axis are above 0."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool
    title: str
    ticks: tuple[tuple[float, str], ...]
    has_grid: bool

    def place(self, values: Any) -> Floats:
        """Return the pixels of values."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.is_log else (self.low, self.high)
        numbers = np.asarray(values, dtype=np.float64)
        if self.is_log:
            numbers = np.log10(np.maximum(numbers, 1e-300))
        return np.asarray(self.start + (numbers - low) / ((high - low) or 1.0) * (self.end - self.start))


def build_axis_scale(
    layout: Mapping[str, Any], values: Iterable[Floats], start: float, end: float, labels: int
) -> Axis:
    """Return the axis that *layout* describes, for *values*, with at most about *labels* ticks."""
    is_log = layout.get("type") == "log"
    low, high = _choose_range(layout, values, is_log)
    if "tickvals" in layout:
        inside = (min(low, high), max(low, high))
        pairs = zip(layout["tickvals"], layout["ticktext"], strict=True)
        ticks = [(float(at), str(text)) for at, text in pairs if inside[0] <= at <= inside[1]]
        ticks = ticks[:: 1 + (len(ticks) - 1) // max(labels, 1)] if ticks else []
    else:
        step = float(layout.get("dtick", 0.0))
        places = np.arange(low, high + step / 2, step).tolist() if step else choose_ticks(low, high, labels)
        ticks = [(at, f"{at:,.10g}") for at in places]
    title = str(layout.get("title", {}).get("text", ""))
    return Axis(low, high, start, end, is_log, title, tuple(ticks), bool(layout.get("showgrid", True)))


def _choose_range(layout: Mapping[str, Any], values: Iterable[Floats], is_log: bool) -> tuple[float, float]:
    if "range" in layout:
        low, high = map(float, layout["range"])
        return low, high
    known = [array[np.isfinite(array)] for array in (np.asarray(one, dtype=np.float64) for one in values)]
    least = min((float(array.min()) for array in known if len(array)), default=0.0)
    most = max((float(array.max()) for array in known if len(array)), default=1.0)
    if is_log:
        least = max(least, 1e-12)
        return least / 1.1, max(most, least) * 1.1
    pad = _PAD * ((most - least) or abs(most) or 1.0)
    if layout.get("rangemode") == "tozero":
        return min(0.0, least - (pad if least < 0 else 0.0)), max(most, 0.0) + pad
    return least - pad, most + pad


def choose_ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Return about *count* round numbers between *low* and *high*."""
    low, high = min(low, high), max(low, high)
    rough = (high - low) / max(count, 1)
    if not rough > 0:
        return [low]
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= rough)
    return [round(k * step, 12) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def format_numbers(values: Sequence[float]) -> str:
    """Return numbers for an attribute, separated by spaces."""
    return " ".join(f"{value:.10g}" for value in values)
