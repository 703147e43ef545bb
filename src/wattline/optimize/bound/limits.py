"""The bounds of a trace as values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

BOUND_JOBS = 500
"""Up to so many jobs commands compute the bounds without being asked: it takes about a second."""


@dataclass(frozen=True)
class LowerBound:
    """Bounds of a trace on a cluster; *none* says why there is none, and then both numbers are nan."""

    jct_mean_s: float = math.nan
    energy_j: float = math.nan
    none: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the bounds for the header of a log; None: none."""
        numbers = {"jct_mean_s": self.jct_mean_s, "energy_j": self.energy_j}
        return {name: None if math.isnan(v) else v for name, v in numbers.items()} | {"none": self.none}
