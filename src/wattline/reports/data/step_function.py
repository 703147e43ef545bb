"""Step functions of time, the curves of reports."""

from __future__ import annotations

from dataclasses import dataclass

from wattline.core.table import Floats

POINTS = 2000
"""The most points of a curve that is kept for a plot."""


@dataclass(frozen=True, eq=False)
class StepFunction:
    """A step function: *value* holds from *at_s* (since the first submission) to the next."""

    at_s: Floats
    value: Floats
