"""Routes of sweeps, recurring groups, teams, and of job files as text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from wattline.errors import ConfigError
from wattline.jobfile import read_job
from wattline.service.http.routes import Caller, PathJobId, Service, refuse_unknown_parameters
from wattline.service.http.schemas import JobResponse
from wattline.service.recurring_groups import list_groups, read_group
from wattline.service.sweep_table import read_sweep
from wattline.service.team_usage import read_team_usage

study_router = APIRouter(dependencies=[Depends(refuse_unknown_parameters)])


class _StudyBody(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SweepResponse(_StudyBody):
    """A sweep."""

    sweep: str
    name: str
    parameters: list[str] = Field(description="names of the matrix")
    metrics: list[str] = Field(description="names of the metrics that a member has reported")
    counts: dict[str, int] = Field(description="members by state")
    arrays: list[list[str]] = Field(description="members that were trained together in their last attempt")
    energy_j: float | None = Field(description="of all members; null: that of one is unknown, or none ran")
    energy_methods: list[str]
    members: list[JobResponse]


class GroupsResponse(_StudyBody):
    """The groups of recurring jobs, with the number of their runs."""

    groups: dict[str, int]


class GroupResponse(_StudyBody):
    """A group of recurring jobs."""

    name: str
    batches: list[int]
    default: int | None
    kinds: list[dict[str, Any]] = Field(
        description="by kind of GPU: the batch sizes with runs, epochs and cost, the best, the next and why,"
        " the runs, and the belief: 10th percentile, mean and 90th percentile of the cost in joules"
    )


class TeamResponse(_StudyBody):
    """A team, and its energy since a time."""

    team: str = Field(description="empty: jobs without a team")
    counts: dict[str, int] = Field(description="jobs by state")
    energy_j: float = Field(description="of attempts that ended since then, as far as it is known")
    unknown: int = Field(description="attempts with unknown energy, which is not part of energy_j")
    methods: list[str]


class TeamsResponse(_StudyBody):
    """All teams."""

    teams: list[TeamResponse]


class JobFileResponse(_StudyBody):
    """A job file as JSON."""

    job: dict[str, Any]


@study_router.get("/api/v1/sweeps/{job}", tags=["jobs"])
def show_sweep(job: PathJobId, caller: Caller, controller: Service) -> SweepResponse:
    """Show a sweep by the number of its first job: all members, with values, metrics and energy."""
    table = read_sweep(controller, job)
    return SweepResponse(
        sweep=table.sweep,
        name=table.name,
        parameters=list(table.parameters),
        metrics=list(table.metrics),
        counts=table.counts,
        arrays=[list(array) for array in table.arrays],
        energy_j=table.energy_j,
        energy_methods=list(table.methods),
        members=table.members,
    )


@study_router.get("/api/v1/groups", tags=["recurring jobs"])
def show_groups(caller: Caller, controller: Service) -> GroupsResponse:
    """List the groups of recurring jobs."""
    return GroupsResponse(groups=dict(list_groups(controller.folder)))


@study_router.get("/api/v1/group", tags=["recurring jobs"])
def show_group(
    caller: Caller, controller: Service, name: Annotated[str, Query(max_length=200)]
) -> GroupResponse:
    """Show a group of recurring jobs: batch sizes tried, their cost, and the belief about them."""
    group = read_group(controller.folder, name)
    kinds = [
        {
            **kind.summary,
            "method": kind.method,
            "runs": [asdict(run) for run in kind.runs],
            "belief": kind.belief,
        }
        for kind in group.kinds
    ]
    return GroupResponse(name=group.name, batches=list(group.batches), default=group.default, kinds=kinds)


@study_router.get("/api/v1/teams", tags=["teams"])
def show_teams(
    caller: Caller,
    controller: Service,
    since: Annotated[float, Query(ge=0, le=1e12, description="seconds since 1970")] = 0.0,
) -> TeamsResponse:
    """List all teams, with their jobs, and the energy of attempts that ended since a time."""
    teams = read_team_usage(controller.store, since)
    return TeamsResponse(teams=[TeamResponse(**asdict(team)) for team in teams])


@study_router.post(
    "/api/v1/jobfile",
    tags=["jobs"],
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/yaml": {"schema": {"type": "string"}}}}
    },
)
async def convert_job_file(request: Request, caller: Caller) -> JobFileResponse:
    """Check a job file in YAML, and return it as the JSON that `POST /jobs` and `POST /plan` take."""
    body = await request.body()
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the job file is not UTF-8: byte {error.start}") from None
    job = await run_in_threadpool(read_job, text, "job.yaml")
    return JobFileResponse(job=job.model_dump(mode="json", exclude_unset=True))
