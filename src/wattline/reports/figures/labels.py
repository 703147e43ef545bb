"""Placement of point labels without overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

GAP = 9.0  # pixels between a point and its label
_FAR = 2.2 * GAP  # a label further away than this needs a leader line


class Label(NamedTuple):
    """Position of a label: offset from its point in pixels (y down), and the anchor of the text."""

    dx: float
    dy: float
    anchor: str  # start, middle or end

    @property
    def needs_leader(self) -> bool:
        """True if the label is so far from its point that it needs a leader line."""
        return math.hypot(self.dx, self.dy) > _FAR


_NEAR = (
    Label(GAP, 0, "start"),
    Label(0, -2 * GAP, "middle"),
    Label(0, 2 * GAP, "middle"),
    Label(-GAP, 0, "end"),
    Label(GAP, -1.6 * GAP, "start"),
    Label(GAP, 1.6 * GAP, "start"),
    Label(-GAP, -1.6 * GAP, "end"),
    Label(-GAP, 1.6 * GAP, "end"),
)
_AROUND = tuple(
    Label(side * reach * GAP, rise * GAP, anchor)
    for reach in (2.5, 5.0, 9.0)
    for rise in (-3.6, 3.6, -5.4, 5.4, -7.2, 7.2)
    for side, anchor in ((1, "start"), (-1, "end"))
)

Box = tuple[float, float, float, float]  # left, top, right, bottom


def place_labels(
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    area: Box,
    avoid: Sequence[Box] = (),
    font_px: float = 13,
) -> list[Label]:
    """Return for every point the label position that overlaps points, *avoid* and earlier labels least."""
    occupied: list[Box] = [*avoid, *((x - 6, y - 6, x + 6, y + 6) for x, y in points)]
    labels: list[Label] = []
    for (x, y), text in zip(points, texts, strict=True):
        width = 0.58 * font_px * len(text)

        def cost(spot: Label, x: float = x, y: float = y, width: float = width) -> float:
            box = _box(x, y, spot, width, font_px)
            outside = width * font_px - _overlap(box, area)
            hidden = sum(_overlap(box, other) for other in occupied)
            return hidden + 4 * outside + (math.hypot(spot.dx, spot.dy) if spot.needs_leader else 0.0)

        best = min((*_NEAR, *_AROUND), key=cost)
        labels.append(best)
        occupied.append(_box(x, y, best, width, font_px))
    return labels


def _box(x: float, y: float, spot: Label, width: float, height: float) -> Box:
    left = x + spot.dx - {"start": 0.0, "middle": width / 2, "end": width}[spot.anchor]
    return left, y + spot.dy - height / 2, left + width, y + spot.dy + height / 2


def _overlap(a: Box, b: Box) -> float:
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return max(0.0, wide) * max(0.0, high)
