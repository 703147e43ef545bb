"""Predictions of job speed, power and demand."""

from wattline.models.remaining import remaining_s
from wattline.models.trace_model import Misjudged, TraceModels
from wattline.models.workload_models import WorkloadModels

__all__ = ["Misjudged", "TraceModels", "WorkloadModels", "remaining_s"]
