"""Routes of the budgets and of the power history, and the response bodies of the latter."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from wattline.service.budget_usage import read_budget_usage
from wattline.service.http import schemas
from wattline.service.http.routes import Caller, Service, refuse_unknown_parameters
from wattline.service.power_history import PowerPoint, read_power


class GpuPowerResponse(BaseModel):
    """One GPU in a step of the power history."""

    model_config = ConfigDict(extra="forbid")

    node: str
    gpu: int
    power_w: float | None = Field(description="mean power in the step; null: it could not be read")
    cap_w: float | None = Field(description="highest power cap in the step; null: it could not be read")
    jobs: list[str] = Field(description="jobs that ran on it")


class PowerPointResponse(BaseModel):
    """A step of the power history, from *at_s*."""

    model_config = ConfigDict(extra="forbid")

    at_s: float
    power_w: float | None = Field(description="sum over all GPUs; null: one could not be read")
    cap_w: float | None = Field(description="sum over all GPUs; null: one could not be read")
    gpus: list[GpuPowerResponse]

    @classmethod
    def from_point(cls, point: PowerPoint) -> PowerPointResponse:
        """Build the response from what was read."""
        gpus = [
            GpuPowerResponse(
                node=one.node, gpu=one.gpu, power_w=one.power_w, cap_w=one.cap_w, jobs=list(one.jobs)
            )
            for one in point.gpus
        ]
        return cls(at_s=point.at_s, power_w=point.power_w, cap_w=point.cap_w, gpus=gpus)


class PowerResponse(BaseModel):
    """A page of the power history; pass *next* as `since` to get the next page."""

    model_config = ConfigDict(extra="forbid")

    step_s: float
    method: str = Field(description="how the power is measured")
    samples: list[PowerPointResponse]
    next: float | None = Field(description="null: this is the last page")


energy_router = APIRouter(dependencies=[Depends(refuse_unknown_parameters)])


@energy_router.get("/api/v1/budgets", tags=["cluster"])
def show_budgets(caller: Caller, controller: Service) -> schemas.BudgetsResponse:
    """Show the energy budgets in force, what is used and left, and when they are exhausted."""
    view = controller.view()
    usage = [schemas.BudgetUsageResponse(**vars(one)) for one in read_budget_usage(controller.store, view)]
    method = view.energy_method
    return schemas.BudgetsResponse(
        budgets=list(view.budgets), overshoot=view.overshoot, usage=usage, method=method
    )


@energy_router.put("/api/v1/budgets", tags=["cluster"])
def set_budgets(
    budgets: schemas.BudgetsRequest, caller: Caller, controller: Service
) -> schemas.BudgetsResponse:
    """Replace the energy budgets. Energy counts from now."""
    caller.require_role("operator")
    controller.set_budgets(budgets.budgets, caller.name, budgets.overshoot)
    return show_budgets(caller, controller)


@energy_router.get("/api/v1/power", tags=["cluster"])
def show_power(
    caller: Caller,
    controller: Service,
    since: Annotated[float | None, Query(ge=0, le=1e12, description="seconds; default: an hour ago")] = None,
    until: Annotated[float | None, Query(ge=0, le=1e12, description="seconds; default: now")] = None,
    step: Annotated[float, Query(ge=10, le=1e9, description="samples within so many seconds are one")] = 10,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> PowerResponse:
    """Show the power, the caps and the jobs of all GPUs over time, and their sums, oldest first."""
    until_s = controller.clock() if until is None else until
    since_s = until_s - 3600.0 if since is None else since
    points, next_s = read_power(controller.store, since_s, until_s, step, limit)
    samples = [PowerPointResponse.from_point(point) for point in points]
    method = controller.view().energy_method
    return PowerResponse(step_s=step, method=method, samples=samples, next=next_s)
