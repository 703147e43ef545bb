"""Predictions of job speed, power and demand."""

from wattline.models.remaining import remaining_s
from wattline.models.trace_model import Asked, Misjudged
from wattline.models.workload_models import Measured

__all__ = ["Asked", "Measured", "Misjudged", "remaining_s"]
