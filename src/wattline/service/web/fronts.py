"""The front of energy and completion time of a what-if study, as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FrontPoint:
    """A policy in the picture, which is 1000 wide and high."""

    policy: str
    x: float
    y: float
    is_best: bool  # no other is better in both
    text: str


@dataclass(frozen=True)
class FrontPicture:
    """Policies by energy (to the right) and mean completion time (up); both axes begin at 0."""

    points: list[FrontPoint]
    x_labels: list[str]
    y_labels: list[str]
    unknown: list[str]  # policies without figures


def draw_front(world: dict[str, Any]) -> FrontPicture | None:
    """Return the picture of a world of the result; None: no policy has figures."""
    known = [one for one in world["policies"] if one["energy_j"] and one["jct_mean_s"]]
    if not known:
        return None
    most_kwh = 1.1 * max(one["energy_j"] for one in known) / 3.6e6
    most_h = 1.1 * max(one["jct_mean_s"] for one in known) / 3600
    points = [
        FrontPoint(
            one["policy"],
            round(1000 * one["energy_j"] / 3.6e6 / most_kwh, 1),
            round(1000 - 1000 * one["jct_mean_s"] / 3600 / most_h, 1),
            one["pareto"],
            f"{one['policy']}: {one['energy_j'] / 3.6e6:.4g} kWh, {one['jct_mean_s'] / 3600:.4g} h",
        )
        for one in known
    ]
    names = {one.policy for one in points}
    return FrontPicture(
        points,
        [f"{most_kwh * step / 4:.3g}" for step in range(5)],
        [f"{most_h * step / 4:.3g}" for step in range(4, -1, -1)],
        [one["policy"] for one in world["policies"] if one["policy"] not in names],
    )
