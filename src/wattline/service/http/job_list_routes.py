"""Route of the list of jobs: filters, order, pages and counts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query

from wattline.errors import ConfigError
from wattline.service.controller import Controller
from wattline.service.explain import REASON_CODES, find_jobs_waiting
from wattline.service.http.job_responses import build_job_responses
from wattline.service.http.routes import Caller, Service, refuse_unknown_parameters
from wattline.service.http.schemas import JobsResponse, OptionalJobId, State
from wattline.service.storage.job_list import SORTS, JobFilter, count_jobs, read_job_list

job_list_router = APIRouter(dependencies=[Depends(refuse_unknown_parameters)])

SortName = Literal[
    "id", "name", "state", "user", "team", "priority", "gpus", "submitted", "waited", "ran", "progress",
    "energy",
]  # fmt: skip
assert set(SortName.__args__) == set(SORTS)  # type: ignore[attr-defined]

_SQL_REASONS = {"held": "held AND state = 'PENDING'", "withheld": "withheld AND state = 'PENDING'"}


def build_filter(controller: Controller, reason: str, **filters: Any) -> JobFilter:
    """Return a filter with a reason for which jobs wait; empty: any."""
    if not reason:
        return JobFilter(**filters)
    if reason in _SQL_REASONS:
        return JobFilter(**filters, condition=_SQL_REASONS[reason])
    if reason not in REASON_CODES:
        expected = ", ".join([*_SQL_REASONS, *REASON_CODES])
        raise ConfigError(f"reason is {reason!r}, expected one of {expected}")
    ids = tuple(find_jobs_waiting(controller.view(), reason))
    return JobFilter(**filters, ids=ids, condition="state = 'PENDING' AND NOT held AND NOT withheld")


@job_list_router.get("/api/v1/jobs", tags=["jobs"])
def list_jobs(
    caller: Caller,
    controller: Service,
    state: Annotated[list[State], Query(max_length=20)] = [],  # noqa: B006
    team: Annotated[str, Query(max_length=200, description="empty: all teams")] = "",
    user: Annotated[str, Query(max_length=200, description="empty: all users")] = "",
    sweep: Annotated[OptionalJobId, Query(description="first job of a sweep; empty: all jobs")] = "",
    reason: Annotated[str, Query(max_length=40, description="code of a reason to wait; empty: any")] = "",
    text: Annotated[str, Query(max_length=200, description="in name, user or team, or the id")] = "",
    since: Annotated[float | None, Query(ge=0, le=1e12, description="not ended before, in seconds")] = None,
    until: Annotated[float | None, Query(ge=0, le=1e12, description="submitted until, in seconds")] = None,
    after: Annotated[OptionalJobId, Query(description="only jobs with a larger number")] = "",
    before: Annotated[OptionalJobId, Query(description="only jobs with a smaller number")] = "",
    sort: SortName = "id",
    descending: bool = False,
    offset: Annotated[int, Query(ge=0, le=10**9, description="jobs to skip; for sort other than id")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    counts: Annotated[bool, Query(description="also count all jobs that match, by state")] = False,
) -> JobsResponse:
    """List jobs by number, or in another order, in pages."""
    filters = build_filter(
        controller,
        reason,
        states=tuple(state),
        team=team,
        user=user,
        sweep=sweep,
        text=text,
        since_s=since,
        until_s=until,
        after=int(after or 0),
        before=int(before or 0),
    )
    rows = read_job_list(
        controller.store,
        filters,
        controller.clock(),
        sort=sort,
        descending=descending,
        offset=offset,
        limit=limit + 1,
    )
    next_page = rows[limit - 1].id if len(rows) > limit else None
    return JobsResponse(
        jobs=build_job_responses(controller, rows[:limit]),
        next=next_page,
        counts=count_jobs(controller.store, filters) if counts else None,
    )
