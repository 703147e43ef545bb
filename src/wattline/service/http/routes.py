"""Routes of the API: REST under /api/v1, with logs and events also as server-sent events."""

from __future__ import annotations

import pwd
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from wattline.errors import ConfigError, Conflict, did_you_mean
from wattline.jobfile import JobFile, check_matrix, check_retries
from wattline.jobfile.dependencies import check_dependencies
from wattline.service.controller import Controller
from wattline.service.explain import explain
from wattline.service.http import schemas
from wattline.service.http.auth import Principal, TokenStore
from wattline.service.http.callers import authenticate_request
from wattline.service.http.job_responses import add_log_tail, build_job_response, build_job_responses
from wattline.service.http.schemas import JobId, OptionalJobId
from wattline.service.http.sse import stream_events
from wattline.service.planning import plan_job
from wattline.service.settings import override_retention
from wattline.service.storage.selection import JobSelection

_SHOWN_JOBS = 100  # of a selection, in a response
_bearer = HTTPBearer(auto_error=False, description="A token of `wattline token add`.")


async def refuse_unknown_parameters(request: Request) -> None:
    """Raise for query parameters that the route does not have; FastAPI would ignore a misspelt one."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            expected = ", ".join(sorted(known)) or "none"
            raise ConfigError(
                f"unknown query parameter {name!r}, expected {expected}", did_you_mean(name, known)
            )


async def _get_controller(request: Request) -> Controller:
    controller: Controller = request.app.state.controller
    return controller


async def _get_tokens(request: Request) -> TokenStore:
    tokens: TokenStore = request.app.state.tokens
    return tokens


async def _authenticate(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Principal:
    caller = authenticate_request(request, None if credentials is None else credentials.credentials)
    if not request.app.state.rate_limiter.allow(caller.name):
        raise HTTPException(429, f"too many requests by {caller.name}", headers={"Retry-After": "1"})
    return caller


Caller = Annotated[Principal, Depends(_authenticate)]
Service = Annotated[Controller, Depends(_get_controller)]
Tokens = Annotated[TokenStore, Depends(_get_tokens)]
PathJobId = Annotated[JobId, Path(description="number of the job")]

router = APIRouter(dependencies=[Depends(refuse_unknown_parameters)])


def _check_consistency(job: JobFile) -> None:
    """Raise `ConfigError` where fields that are valid one by one do not fit together."""
    try:
        check_matrix(job)
        check_retries(job)
        check_dependencies(job)
    except ConfigError as error:
        raise ConfigError(f"job: {error.message}", error.hint) from None


def _home_folder(user: str) -> str:
    try:
        return pwd.getpwnam(user).pw_dir if user else "/"
    except KeyError:
        return "/"


# -- jobs


@router.post("/api/v1/jobs", status_code=201, tags=["jobs"])
def submit_job(
    job: JobFile,
    caller: Caller,
    controller: Service,
    held: Annotated[
        bool, Query(description="accept the job, but do not start it before it is released")
    ] = False,
    allow_unsatisfiable: Annotated[
        bool, Query(description="keep a job that the cluster can never run, for nodes that may come")
    ] = False,
    idempotency_key: Annotated[
        str,
        Header(
            pattern=r"^[!-~]{0,200}$",
            description="requests with the same key submit once, and get one response",
        ),
    ] = "",
) -> schemas.JobsResponse:
    """Submit a job, or a sweep of jobs. The jobs are stored on disk when the response is sent."""
    caller.require_role("user")
    _check_consistency(job)
    accepted = controller.submit(
        job, caller.user, _home_folder(caller.user), idempotency_key, held, allow_unsatisfiable
    )
    return schemas.JobsResponse(jobs=build_job_responses(controller, accepted))


@router.post("/api/v1/jobs/actions", tags=["jobs"])
def change_jobs(
    request: schemas.JobActionRequest, caller: Caller, controller: Service
) -> schemas.JobActionResponse:
    """Cancel, hold, release or prioritise all selected jobs in one transaction. It can be repeated.

    A user changes its own jobs, an operator those of all users. Without `state`, filters and ranges select
    jobs that have not ended.
    """
    caller.require_role("user")
    if (request.action == "priority") != (request.priority is not None):
        expected = "is missing" if request.priority is None else "is for the action priority only"
        raise Conflict(f"priority {expected}", 'action: "priority", priority: 5')
    result = controller.actions.change_all(
        request.action,
        JobSelection(**request.select.build_filters()),
        owner=None if caller.role == "operator" else caller.user,
        by=caller.name,
        priority=request.priority or 0.0,
        dry_run=request.dry_run,
    )
    shown = controller.store.jobs_with_ids((result.changed + result.unchanged)[:_SHOWN_JOBS])
    errors = [
        schemas.JobActionError(job=job, code=error.code, message=error.message, hint=error.hint)
        for job, _, error in result.refused[:_SHOWN_JOBS]
    ]
    counts = {name: len(getattr(result, name)) for name in ("changed", "unchanged", "refused")}
    return schemas.JobActionResponse(
        action=request.action,
        dry_run=request.dry_run,
        matched=sum(counts.values()),
        **counts,
        reasons=result.reasons,
        ids=result.changed,
        jobs=build_job_responses(controller, shown),
        errors=errors,
    )


@router.get("/api/v1/jobs/{job}", tags=["jobs"])
def show_job(job: PathJobId, caller: Caller, controller: Service) -> schemas.JobResponse:
    """Show one job, with the last lines of its log if it failed."""
    return add_log_tail(controller, build_job_response(controller, controller.job(job)))


@router.patch("/api/v1/jobs/{job}", tags=["jobs"])
def change_priority(
    job: PathJobId, change: schemas.PriorityRequest, caller: Caller, controller: Service
) -> schemas.JobResponse:
    """Change the priority of a job. A running job is not preempted by it."""
    caller.require_owner(controller.job(job).user, job)
    return build_job_response(controller, controller.prioritise(job, change.priority, caller.name))


@router.post("/api/v1/jobs/{job}/cancel", tags=["jobs"])
def cancel_job(job: PathJobId, caller: Caller, controller: Service) -> schemas.JobResponse:
    """Cancel a job. A running job gets its signal, and SIGKILL after its grace period."""
    caller.require_owner(controller.job(job).user, job)
    return build_job_response(controller, controller.cancel(job, caller.name))


@router.post("/api/v1/jobs/{job}/hold", tags=["jobs"])
def hold_job(job: PathJobId, caller: Caller, controller: Service) -> schemas.JobResponse:
    """Keep a pending job from starting."""
    caller.require_owner(controller.job(job).user, job)
    return build_job_response(controller, controller.hold(job, caller.name))


@router.post("/api/v1/jobs/{job}/release", tags=["jobs"])
def release_job(job: PathJobId, caller: Caller, controller: Service) -> schemas.JobResponse:
    """Let a held job start."""
    caller.require_owner(controller.job(job).user, job)
    return build_job_response(controller, controller.release(job, caller.name))


@router.get("/api/v1/jobs/{job}/explain", tags=["jobs"])
def explain_job(job: PathJobId, caller: Caller, controller: Service) -> schemas.ExplanationResponse:
    """Explain a job's state: the reason, the evidence, a forecast, and alternatives."""
    return explain(controller.view(), controller.job(job))


@router.post("/api/v1/plan", tags=["jobs"])
def plan_submission(job: JobFile, caller: Caller, controller: Service) -> schemas.PlanResponse:
    """Forecast a job without submitting it: start, end and energy for several numbers of GPUs."""
    caller.require_role("user")
    _check_consistency(job)
    expected_s = None if job.recurring is None else controller.store.mean_service_s(job.recurring.group)
    return plan_job(controller.view(), job, caller.user, _home_folder(caller.user), expected_s)


# -- cluster


@router.get("/api/v1/cluster", tags=["cluster"])
def show_cluster(caller: Caller, controller: Service) -> schemas.ClusterResponse:
    """Show the GPUs, the policy, and the state of the scheduler loop."""
    return schemas.ClusterResponse(**controller.describe())


@router.post("/api/v1/prune", tags=["cluster"])
def prune(limits: schemas.PruneRequest, caller: Caller, controller: Service) -> schemas.PruneResponse:
    """Delete or archive old jobs, logs and events. Jobs that have not ended are kept."""
    caller.require_role("operator")
    settings = override_retention(controller.retention, limits.older_than, limits.max_size, limits.archive)
    report = controller.pruner.prune(settings, limits.dry_run)
    controller.feed.forget_history()
    return schemas.PruneResponse(**vars(report))


@router.get(
    "/api/v1/events",
    tags=["cluster"],
    response_model=schemas.EventsResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
def list_events(
    caller: Caller,
    controller: Service,
    after: Annotated[
        int, Query(ge=-1, le=2**62, description="only events with a larger seq; -1: unset")
    ] = -1,
    since: Annotated[
        float, Query(ge=0, le=1e12, description="only events from this time on, in seconds since 1970")
    ] = 0.0,
    job: Annotated[OptionalJobId, Query(description="empty: events of all jobs and the service")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    follow: Annotated[
        bool, Query(description="send server-sent events without end, from now on or after `after`")
    ] = False,
    last_event_id: Annotated[str, Header(pattern=r"^[0-9]{0,18}$")] = "",
) -> Any:
    """List events, oldest first, as a page or as a stream of server-sent events.

    A stream begins now; with `after`, `since` or Last-Event-ID it begins with history.
    """
    start = int(last_event_id) if last_event_id else after if after >= 0 else None
    if since:
        start = max(start or 0, controller.store.last_seq_before(since))
    if follow:
        stream = stream_events(controller.feed, start, job or None)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
    events = controller.store.events(start or 0, job or None, limit + 1)
    return schemas.EventsResponse(
        events=[schemas.EventResponse(**vars(event.redacted())) for event in events[:limit]],
        next=events[limit - 1].seq if len(events) > limit else None,
    )


@router.get(
    "/api/v1/log",
    tags=["cluster"],
    response_class=PlainTextResponse,
    responses={200: {"content": {"application/x-ndjson": {}}}},
)
def show_run_log(
    caller: Caller,
    controller: Service,
    epoch: Annotated[int, Query(ge=0, le=2**31, description="0: the current epoch")] = 0,
) -> Response:
    """Return all decisions of an epoch as JSON lines, for `wattline replay`."""
    return StreamingResponse(iter(controller.run_log(epoch or None)), media_type="application/x-ndjson")


# -- health


@router.get("/healthz", tags=["health"])
async def check_health() -> schemas.HealthResponse:
    """Report that the service answers."""
    return schemas.HealthResponse(status="ok")


@router.get("/readyz", tags=["health"], responses={503: {"model": schemas.HealthResponse}})
async def check_readiness(controller: Service) -> Response:
    """Report whether the scheduler loop decides and the state can be written."""
    problem = controller.problem
    if problem:
        return JSONResponse({"status": "failing", "problem": problem}, 503)
    return JSONResponse({"status": "ok", "problem": ""})
