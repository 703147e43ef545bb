"""Routes of the details of jobs and GPUs: attempts, curves, and every GPU now."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from wattline.service.attempts import read_attempts
from wattline.service.gpu_status import read_gpus
from wattline.service.http.routes import Caller, PathJobId, Service, refuse_unknown_parameters
from wattline.service.session_series import MOST_POINTS, Point, read_series, thin

detail_router = APIRouter(dependencies=[Depends(refuse_unknown_parameters)])


class _DetailBody(BaseModel):
    model_config = ConfigDict(extra="forbid")


class GpuStatusResponse(_DetailBody):
    """One GPU now."""

    node: str
    gpu: int
    kind: str
    jobs: list[str]
    power_w: float | None = Field(description="null: it could not be read")
    cap_w: float | None
    origin: str = Field(description="of the cap: policy, job file, session, or default")


class GpusResponse(_DetailBody):
    """All GPUs, as of the last power sample."""

    at_s: float | None = Field(description="time of the power sample; null: there was none yet")
    method: str = Field(description="how the power is measured")
    gpus: list[GpuStatusResponse]


class CapResponse(_DetailBody):
    """A power cap of each GPU of an attempt, from a time on."""

    at_s: float
    cap_w: float | None = Field(description="null: no cap")
    origin: str = Field(description="policy, job file or session")


class AttemptResponse(_DetailBody):
    """One attempt of a job."""

    number: int
    start_s: float
    end_s: float | None = Field(description="null: it runs")
    outcome: str = Field(description="state of the job, or REQUEUED; empty: it runs")
    message: str
    gpus: list[int]
    kind: str
    batch: int | None
    cpus: int | None
    fused_with: list[str]
    caps: list[CapResponse]
    energy_j: float | None = Field(description="of this attempt; null: unknown, or it has not ended")
    energy_method: str
    exit_code: int | None
    signal: str | None


class AttemptsResponse(_DetailBody):
    """The attempts of a job, the oldest first."""

    attempts: list[AttemptResponse]


CurvePoint = Annotated[list[float], Field(min_length=2, max_length=2)]


class SeriesResponse(_DetailBody):
    """Curves of a job: pairs of a time and a value."""

    progress: list[CurvePoint]
    energy_j: list[CurvePoint]
    energy_method: str
    metrics: dict[str, list[CurvePoint]]
    complete: bool = Field(
        description="false: a file of events is larger than 32 MiB, and its end is left out"
    )


@detail_router.get("/api/v1/gpus", tags=["cluster"])
def show_gpus(caller: Caller, controller: Service) -> GpusResponse:
    """Show jobs, power and cap of every GPU now."""
    gpus, at_s = read_gpus(controller)
    method = controller.view().energy_method
    return GpusResponse(at_s=at_s, method=method, gpus=[GpuStatusResponse(**asdict(one)) for one in gpus])


@detail_router.get("/api/v1/jobs/{job}/attempts", tags=["jobs"])
def show_attempts(job: PathJobId, caller: Caller, controller: Service) -> AttemptsResponse:
    """Show the attempts of a job, with allocation, caps, energy and outcome of each."""
    row = controller.job(job)
    attempts = read_attempts(controller.store, job, row.submission["spec"].get("power_w"))
    return AttemptsResponse(attempts=[AttemptResponse(**asdict(one)) for one in attempts])


@detail_router.get("/api/v1/jobs/{job}/series", tags=["jobs"])
def show_series(
    job: PathJobId,
    caller: Caller,
    controller: Service,
    points: Annotated[
        int, Query(ge=4, le=MOST_POINTS, description="at most so many of a curve")
    ] = MOST_POINTS,
) -> SeriesResponse:
    """Show progress, energy and metrics that a job's session reported, over time. Extremes are kept."""
    controller.job(job)
    series = read_series(controller.folder, job)
    return SeriesResponse(
        progress=_pair(thin(series.progress, points)),
        energy_j=_pair(thin(series.energy_j, points)),
        energy_method=series.method,
        metrics={name: _pair(thin(curve, points)) for name, curve in series.metrics.items()},
        complete=series.is_complete,
    )


def _pair(curve: list[Point]) -> list[CurvePoint]:
    return [list(point) for point in curve]
