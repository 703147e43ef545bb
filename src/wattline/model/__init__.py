"""Predictions: what a job will do."""

from wattline.model.asked import Asked, Misjudged
from wattline.model.remaining import remaining_s

__all__ = ["Asked", "Misjudged", "remaining_s"]
