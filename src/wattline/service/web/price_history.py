"""Prices of resources over time, from the rounds of the current epoch's run log.

A policy that sets prices logs them in the round as `"prices": {"a100": 0.5, "energy": 1e-4}`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from wattline.core.resource_prices import ENERGY
from wattline.service.controller import Controller
from wattline.service.session_series import Point, clip, thin

_MOST_ROUNDS = 5000


@dataclass(frozen=True)
class PriceHistory:
    """Prices by resource; empty: the policy logs none."""

    prices: dict[str, list[Point]]
    bottleneck: str  # the resource with the highest price of a GPU-hour now; empty: all are free


def name_unit(resource: str) -> str:
    """Return what the price of a resource is paid for; budgets are in GPU-hours at full power."""
    return "per joule" if resource == ENERGY else "per GPU-hour"


def read_prices(controller: Controller, span: tuple[float, float] | None = None) -> PriceHistory:
    """Return the prices of the latest rounds; with *span*, of that time."""
    found = controller.store.read_rows(
        "SELECT line FROM round WHERE epoch = ? AND line LIKE '%\"prices\":%' ORDER BY number DESC LIMIT ?",
        (controller.view().epoch, _MOST_ROUNDS),
    )
    prices: dict[str, list[Point]] = {}
    latest: dict[str, float] = {}
    for (line,) in reversed(found):
        round_ = json.loads(line)
        logged = round_.get("prices")
        if not isinstance(logged, dict):
            continue
        latest = {name: float(value) for name, value in logged.items() if _is_number(value)}
        for name, value in latest.items():
            prices.setdefault(name, []).append((float(round_["t"]), value))
    scarce = [name for name in latest if name_unit(name) == "per GPU-hour"]  # the others do not compare
    highest = max(scarce, key=lambda name: latest[name], default="")
    return PriceHistory(
        {name: thin(clip(points, span)) for name, points in prices.items()},
        highest if highest and latest[highest] > 0 else "",
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
