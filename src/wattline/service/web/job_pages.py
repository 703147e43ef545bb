"""Pages of jobs: the list, one job, its explanation, and the form that submits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.responses import Response

from wattline.service.explain import REASON_CODES, explain
from wattline.service.http.job_list_routes import SortName, build_filter
from wattline.service.http.job_responses import add_log_tail, build_job_response, build_job_responses
from wattline.service.http.log_routes import POSITION, show_log_lines
from wattline.service.http.routes import PathJobId
from wattline.service.http.schemas import OptionalJobId, State
from wattline.service.states import LIVE_STATES, STATES
from wattline.service.storage.job_list import count_jobs, list_owners, read_job_list
from wattline.service.web.explanations import ExplanationCache
from wattline.service.web.job_detail import build_job_detail
from wattline.service.web.page import Opened, PageRoute, Zoom

job_pages = APIRouter(route_class=PageRoute, include_in_schema=False)

_ROWS = 100
_LOG_LINES = 200
_SORTS = ("id", "name", "state", "user", "team", "gpus", "waited", "ran", "progress", "energy")
_explanations = ExplanationCache(explain)


@dataclass(frozen=True)
class ListAddress:
    """The address of the list with its filters, which live in the address only."""

    base: str
    filters: tuple[tuple[str, str], ...]
    sort: str
    descending: bool
    page: int

    @property
    def has_filters(self) -> bool:
        """True if the list shows only some of all jobs."""
        return any(value for _, value in self.filters)

    def change(self, **changes: str | int | bool) -> str:
        """Return the address with other values; another filter or order begins with the first page."""
        values = dict(self.filters) | {"sort": self.sort, "page": "1"}
        values["descending"] = "true" if self.descending else "false"
        values |= {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in changes.items()
        }
        defaults = {"sort": "id", "descending": "true", "page": "1"}
        shown = {name: value for name, value in values.items() if value and value != defaults.get(name)}
        return f"{self.base}/jobs?{urlencode(shown)}" if shown else f"{self.base}/jobs"


@job_pages.get("/jobs")
def show_jobs(
    page: Opened,
    state: Annotated[State | None, Query()] = None,
    team: Annotated[str, Query(max_length=200)] = "",
    user: Annotated[str, Query(max_length=200)] = "",
    reason: Annotated[str, Query(max_length=40)] = "",
    sweep: Annotated[OptionalJobId, Query()] = "",
    text: Annotated[str, Query(max_length=200)] = "",
    within: Annotated[str, Query(pattern="^(|1h|1d|7d|30d)$")] = "",
    sort: Annotated[SortName, Query()] = "id",
    descending: Annotated[bool, Query()] = True,
    number: Annotated[int, Query(alias="page", ge=1, le=10**7)] = 1,
) -> Response:
    """Show a page of jobs, by filters that live in the address."""
    controller, now_s = page.controller, page.controller.clock()
    spans_s = {"1h": 3600.0, "1d": 86400.0, "7d": 7 * 86400.0, "30d": 30 * 86400.0}
    filters = build_filter(
        controller,
        reason,
        team=team,
        user=user,
        sweep=sweep,
        text=text.strip(),
        since_s=now_s - spans_s[within] if within else None,
    )
    counts = count_jobs(controller.store, filters)
    total = sum(counts.values()) if state is None else counts.get(state, 0)
    if state is not None:
        filters = build_filter(
            controller,
            reason,
            states=(state,),
            team=team,
            user=user,
            sweep=sweep,
            text=text.strip(),
            since_s=filters.since_s,
        )
    rows = read_job_list(
        controller.store,
        filters,
        now_s,
        sort=sort,
        descending=descending,
        offset=(number - 1) * _ROWS,
        limit=_ROWS,
    )
    teams, users = list_owners(controller.store)
    chosen = {
        "state": state or "", "team": team, "user": user, "reason": reason, "sweep": sweep, "text": text,
        "within": within,
    }  # fmt: skip
    jobs = build_job_responses(controller, rows)
    return page.render(
        "jobs.html",
        "Jobs",
        jobs=jobs,
        changeable={job.id for job in jobs if job.state in LIVE_STATES and page.may_change(job.user)},
        counts=counts,
        total=total,
        everything=sum(counts.values()),
        number=number,
        pages=max(-(-total // _ROWS), 1),
        first=(number - 1) * _ROWS + 1,
        chosen=chosen,
        address=ListAddress(page.settings.base_path, tuple(chosen.items()), sort, descending, number),
        sorts=_SORTS,
        sort=sort,
        descending=descending,
        states=STATES,
        reasons=("held", "withheld", *REASON_CODES[1:]),
        teams=teams,
        users=users,
    )


@job_pages.get("/jobs/{job}")
def show_job(
    page: Opened,
    job: PathJobId,
    zoom: Zoom,
    attempt: Annotated[int, Query(ge=0, le=10**6)] = 0,
    rank: Annotated[int, Query(ge=0, le=4095)] = 0,
    search: Annotated[str, Query(max_length=200)] = "",
    before: Annotated[str, Query(pattern=POSITION)] = "",
) -> Response:
    """Show a job: its sentence, attempts, curves and log."""
    controller = page.controller
    row = controller.job(job)
    shown = add_log_tail(controller, build_job_response(controller, row))
    return page.render(
        "job.html",
        f"Job {job}",
        job=shown,
        group=row.submission["spec"].get("group", ""),
        detail=build_job_detail(controller, row, page.zone, zoom),
        lives=row.state in LIVE_STATES,
        may_change=page.may_change(row.user) and row.state in LIVE_STATES,
        log=show_log_lines(job, page.caller, controller, rank, attempt, before, search, _LOG_LINES),
        attempt=attempt,
        rank=rank,
        search=search,
        before=before,
    )


@job_pages.get("/jobs/{job}/explanation")
def show_explanation(page: Opened, job: PathJobId) -> Response:
    """Show expected start and helpful changes of a job; it simulates, so the page of a job loads it later."""
    row = page.controller.job(job)
    found = _explanations.explain(page.controller.view(), row)
    return page.render(
        "explanation.html", f"Job {job}", job=row, explanation=found, asked=row.submission["columns"]["gpus"]
    )
