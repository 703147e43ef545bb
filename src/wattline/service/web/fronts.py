"""The front of energy and completion time of a what-if study, as a picture and in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wattline.reports.figures.style import choose_time_unit
from wattline.reports.text import format_change
from wattline.service.web.charts import label_value, round_up

SIZE = 1000.0
_KWH_J = 3.6e6
_ROOM_ON_PHONES = 0.75  # share of the width up to which a name fits on the right
_LETTER, _GAP, _LINE, _RISE = 8.0, 10.0, 70.0, 20.0  # of 1000, for a picture of 900 by 190 pixels


@dataclass(frozen=True)
class FrontPoint:
    """A policy in the picture, which is 1000 wide and high; bars are 95 % intervals, None: unknown."""

    policy: str
    x: float
    y: float
    is_best: bool  # no other is better in both
    text: str
    x_bar: tuple[float, float] | None
    y_bar: tuple[float, float] | None
    is_left: bool = False  # its name is on the left of it
    is_below: bool = False  # its name is below it


@dataclass(frozen=True)
class FrontPicture:
    """Policies by energy (to the right) and mean completion time (up); both axes begin at 0."""

    points: list[FrontPoint]
    x_labels: list[str]
    y_labels: list[str]
    energy_unit: str
    time_unit: str
    unknown: list[str]  # policies without figures

    @property
    def has_bars(self) -> bool:
        """True if the interval of a policy is known."""
        return any(point.x_bar or point.y_bar for point in self.points)


def draw_front(world: Mapping[str, Any]) -> FrontPicture | None:
    """Return the picture of a world of the result; None: no policy has figures."""
    known = [one for one in world["policies"] if one["energy_j"] and one["jct_mean_s"]]
    if not known:
        return None
    bars = [
        (_find_bar(one, "energy_j", "energy_ratio"), _find_bar(one, "jct_mean_s", "jct_ratio"))
        for one in known
    ]
    most_j = max(max((one["energy_j"], *(bar[0] or ()))) for one, bar in zip(known, bars, strict=True))
    most_s = max(max((one["jct_mean_s"], *(bar[1] or ()))) for one, bar in zip(known, bars, strict=True))
    unit_j, energy_unit = _choose_energy_unit(most_j)
    unit_s, time_unit = choose_time_unit(most_s)
    right, top = round_up(most_j / unit_j), round_up(most_s / unit_s)

    def place_x(value_j: float) -> float:
        return round(SIZE * value_j / unit_j / right, 1)

    def place_y(value_s: float) -> float:
        return round(SIZE - SIZE * value_s / unit_s / top, 1)

    points = [
        FrontPoint(
            one["policy"],
            place_x(one["energy_j"]),
            place_y(one["jct_mean_s"]),
            one["pareto"],
            f"{one['policy']}: {one['energy_j'] / unit_j:.4g} {energy_unit},"
            f" {one['jct_mean_s'] / unit_s:.4g} {time_unit}",
            (place_x(x_bar[0]), place_x(x_bar[1])) if x_bar else None,
            (place_y(y_bar[0]), place_y(y_bar[1])) if y_bar else None,
        )
        for one, (x_bar, y_bar) in zip(known, bars, strict=True)
    ]
    names = {one.policy for one in points}
    return FrontPicture(
        _place_names(points),
        [label_value(right * step / 4) for step in range(5)],
        [label_value(top * step / 4) for step in range(4, -1, -1)],
        energy_unit,
        time_unit,
        [one["policy"] for one in world["policies"] if one["policy"] not in names],
    )


def _place_names(points: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Return the points with their names beside them, where no other name is if there is such a place."""
    placed: list[FrontPoint] = []
    boxes: list[tuple[float, float, float, float]] = []
    for point in points:
        width = _LETTER * len(point.policy)
        sides = [(is_left, is_below) for is_left in (False, True) for is_below in (False, True)]
        sides.sort(key=lambda side: side[0] != (point.x > _ROOM_ON_PHONES * SIZE))
        choices = [(side, _cover(point, width, *side)) for side in sides]
        free = (one for one in choices if not any(_overlap(one[1], box) for box in boxes))
        (is_left, is_below), box = next(free, choices[0])
        placed.append(replace(point, is_left=is_left, is_below=is_below))
        boxes.append(box)
    return placed


def _cover(
    point: FrontPoint, width: float, is_left: bool, is_below: bool
) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of a name."""
    left = point.x - _GAP - width if is_left else point.x + _GAP
    top = point.y + _RISE if is_below else point.y - _RISE - _LINE
    return left, top, left + width, top + _LINE


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _find_bar(row: Mapping[str, Any], figure: str, ratio: str) -> tuple[float, float] | None:
    """Return the interval of a figure, from that of its ratio to the first policy; None: unknown."""
    found = row[ratio]
    if not found["value"] or found["low"] is None or found["high"] is None or found["low"] >= found["high"]:
        return None
    base = row[figure] / found["value"]
    return max(base * found["low"], 0.0), base * found["high"]


def _choose_energy_unit(most_j: float) -> tuple[float, str]:
    if most_j < 2 * _KWH_J:
        return _KWH_J / 1000, "Wh"
    return (_KWH_J, "kWh") if most_j < 2000 * _KWH_J else (1000 * _KWH_J, "MWh")


def summarize_front(world: Mapping[str, Any]) -> list[str]:
    """Return the policies with the least energy and the shortest completion time, in sentences."""
    rows: Sequence[Mapping[str, Any]] = world["policies"]
    known = [one for one in rows if one["energy_j"] and one["jct_mean_s"]]
    if len(known) < 2:
        return []
    frugal = min(known, key=lambda one: float(one["energy_j"]))
    quick = min(known, key=lambda one: float(one["jct_mean_s"]))
    return [
        f"Least energy: {_describe(frugal, rows[0])}.",
        f"Shortest mean completion time: {_describe(quick, rows[0])}.",
    ]


def _describe(row: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    if row is first:
        return f"{row['policy']}, with which the others are compared"
    ratios = (row[name]["value"] for name in ("energy_ratio", "jct_ratio"))
    energy, jct = (format_change(math.nan if one is None else one) for one in ratios)
    return f"{row['policy']} (against {first['policy']}: energy {energy}, completion time {jct})"
