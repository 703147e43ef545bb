"""Predictions: what a job will do."""

from wattline.model.asked import Asked, Misjudged
from wattline.model.measured import Measured
from wattline.model.remaining import remaining_s

__all__ = ["Asked", "Measured", "Misjudged", "remaining_s"]
