"""Workload that a command names."""

from __future__ import annotations

from wattline.errors import NotFitted, NotFound
from wattline.models.workload import Workload
from wattline.models.workload_models import WorkloadModels


def find_workload(models: WorkloadModels, model: str, gpu: str) -> Workload:
    """Return the workload of that name; raise `NotFound`, as `library show` does, if there is none."""
    try:
        return models.find(model, gpu)
    except NotFitted as error:
        missing = NotFound(error.message, error.hint)
        missing.code = error.code
        raise missing from None
