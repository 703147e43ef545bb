"""Weight of an assumption: the change of mean JCT and energy under its pessimistic value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from wattline.whatif.metrics import ScheduleMetrics


def describe_change(
    pessimistic: str, now: Mapping[str, ScheduleMetrics], then: Mapping[str, ScheduleMetrics]
) -> dict[str, Any]:
    """Return the effect of the *pessimistic* value: for each policy its figures *then* over those *now*."""
    return {
        "pessimistic": pessimistic,
        "policies": {
            policy: {
                "jct": _divide(then[policy].jct_mean_s, now[policy].jct_mean_s),
                "energy": _divide(then[policy].energy_j, now[policy].energy_j),
            }
            for policy in now
        },
    }


def _divide(ours: float, theirs: float) -> float | None:
    ratio = ours / theirs if theirs > 0 else math.nan
    return ratio if math.isfinite(ratio) else None
