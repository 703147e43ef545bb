"""The doors of the service: REST under /api/v1, with logs and events as server-sent events."""

from __future__ import annotations

import os
import pwd
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from wattline import __version__
from wattline.errors import ConfigError, Conflict, did_you_mean
from wattline.jobfile import JobFile, check
from wattline.service.controller import Controller
from wattline.service.explain import explain, plan, reason_of
from wattline.service.http import schemas as shapes
from wattline.service.http.auth import Tokens, Who
from wattline.service.http.problems import PROBLEMS, describe_problems, handle_problems
from wattline.service.http.rate_limit import Buckets, SmallBodies
from wattline.service.http.schemas import JobId, MaybeId, State
from wattline.service.http.sse import event_stream, log_events
from wattline.service.job_logs import Tail, log_path
from wattline.service.storage.projection import Folded

_bearer = HTTPBearer(auto_error=False, description="a token of `wattline token add`")


async def _only_known(request: Request) -> None:
    """Refuse what a path does not ask for: a word that is misspelt would do nothing."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            expected = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"unknown parameter {name!r}, expected {expected}", did_you_mean(name, known))


router = APIRouter(dependencies=[Depends(_only_known)])


def create_app(controller: Controller, *, rate: float = 500.0) -> FastAPI:
    """The application for a controller that runs; *rate* is of requests of one caller, in a second."""
    app = FastAPI(
        title="Wattline",
        version=__version__,
        description="Decides when, where and at what power deep-learning training jobs run.",
        responses=PROBLEMS,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    app.state.controller = controller
    app.state.tokens = Tokens(controller.store, controller.clock)
    app.state.buckets = Buckets(rate)
    app.add_middleware(SmallBodies)
    handle_problems(app)
    describe_problems(app)
    app.include_router(router)
    return app


async def _controller(request: Request) -> Controller:
    served: Controller = request.app.state.controller
    return served


async def _tokens(request: Request) -> Tokens:
    tokens: Tokens = request.app.state.tokens
    return tokens


async def _caller(
    request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Who:
    tokens: Tokens = request.app.state.tokens
    who = tokens.check(None if given is None else given.credentials)
    if not request.app.state.buckets.take(who.name):
        raise HTTPException(429, "too many requests of one caller", headers={"Retry-After": "1"})
    return who


Caller = Annotated[Who, Depends(_caller)]
Served = Annotated[Controller, Depends(_controller)]
Known = Annotated[Tokens, Depends(_tokens)]
Id = Annotated[JobId, Path(description="the number of a job")]


def _told(served: Controller, job: Folded) -> shapes.Job:
    return shapes.shape(job, served.local.view(job.id), reason_of(served, job))


def _check_whole(job: JobFile) -> None:
    """Each field of a job is good by now: a `Conflict` if they do not fit together."""
    try:
        check(job)
    except ConfigError as error:
        raise Conflict(f"job: {error.message}", error.hint) from None


def _home(user: str) -> str:
    try:
        return pwd.getpwnam(user).pw_dir if user else "/"
    except KeyError:
        return "/"


# -- jobs


@router.post("/api/v1/jobs", status_code=201, tags=["jobs"])
def submit(
    job: JobFile,
    who: Caller,
    served: Served,
    held: Annotated[bool, Query(description="take it in, but do not start it yet")] = False,
    idempotency_key: Annotated[
        str, Header(pattern=r"^[!-~]{0,200}$", description="the same key submits once")
    ] = "",
) -> shapes.Jobs:
    """Submit a job, or a sweep."""
    who.must_be("user")
    _check_whole(job)
    taken = served.submit(job, who.user, _home(who.user), idempotency_key, held)
    return shapes.Jobs(jobs=[_told(served, one) for one in taken])


@router.get("/api/v1/jobs", tags=["jobs"])
def jobs(
    who: Caller,
    served: Served,
    state: Annotated[list[State], Query(max_length=20)] = [],  # noqa: B006
    team: Annotated[str, Query(max_length=200, description="empty: of all")] = "",
    user: Annotated[str, Query(max_length=200, description="empty: of all")] = "",
    sweep: MaybeId = "",
    after: Annotated[MaybeId, Query(description="only those that came after this one")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> shapes.Jobs:
    """List jobs, the newest last."""
    where, values = ["1"], list[Any]()
    if state:
        where.append(f"state IN ({', '.join('?' * len(state))})")
        values += state
    for name, value in (("team", team), ("user", user), ("sweep", sweep)):
        if value:
            where.append(f"{name} = ?")
            values.append(value)
    if after:
        where.append("number > ?")
        values.append(int(after))
    found = served.store.jobs(" AND ".join(where), values, limit + 1)
    more = found[limit - 1].id if len(found) > limit else None
    return shapes.Jobs(jobs=[_told(served, job) for job in found[:limit]], next=more)


@router.get("/api/v1/jobs/{job}", tags=["jobs"])
def show(job: Id, who: Caller, served: Served) -> shapes.Job:
    """One job."""
    return _told(served, served.job(job))


@router.patch("/api/v1/jobs/{job}", tags=["jobs"])
def change(job: Id, change: shapes.Change, who: Caller, served: Served) -> shapes.Job:
    """Give a job another priority."""
    who.must_own(served.job(job).user, job)
    return _told(served, served.prioritise(job, change.priority, who.name))


@router.post("/api/v1/jobs/{job}/cancel", tags=["jobs"])
def cancel(job: Id, who: Caller, served: Served) -> shapes.Job:
    """End a job."""
    who.must_own(served.job(job).user, job)
    return _told(served, served.cancel(job, who.name))


@router.post("/api/v1/jobs/{job}/hold", tags=["jobs"])
def hold(job: Id, who: Caller, served: Served) -> shapes.Job:
    """Keep a job that waits from starting."""
    who.must_own(served.job(job).user, job)
    return _told(served, served.hold(job, True, who.name))


@router.post("/api/v1/jobs/{job}/release", tags=["jobs"])
def release(job: Id, who: Caller, served: Served) -> shapes.Job:
    """Let a job that was held start."""
    who.must_own(served.job(job).user, job)
    return _told(served, served.hold(job, False, who.name))


@router.get("/api/v1/jobs/{job}/explain", tags=["jobs"])
def why(job: Id, who: Caller, served: Served) -> shapes.Explanation:
    """Why a job is where it is."""
    return explain(served, served.job(job))


@router.get(
    "/api/v1/jobs/{job}/logs",
    tags=["jobs"],
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {}, "text/event-stream": {}}}},
)
def logs(
    job: Id,
    who: Caller,
    served: Served,
    rank: Annotated[int, Query(ge=0, le=4095)] = 0,
    attempt: Annotated[int, Query(ge=0, le=10**6, description="0: the newest")] = 0,
    tail: Annotated[int, Query(ge=-1, le=10**6, description="only so many lines; -1: all")] = -1,
    follow: Annotated[bool, Query(description="as server-sent events, until the job is over")] = False,
    last_event_id: Annotated[str, Header(pattern=r"^([0-9]{1,9}:[0-9]{1,18})?$")] = "",
) -> Response:
    """What a job printed."""
    served.job(job)
    if not follow:
        path = log_path(served.folder, job, attempt or None, rank)
        return StreamingResponse(
            Tail(path).text(None if tail < 0 else tail), media_type="text/plain; charset=utf-8"
        )
    log_path(served.folder, job, attempt or None, rank)  # complains before anything is sent
    stream = log_events(served, job, attempt or None, rank, None if tail < 0 else tail, last_event_id)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


@router.post("/api/v1/plan", tags=["jobs"])
def dry_run(job: JobFile, who: Caller, served: Served) -> shapes.Plan:
    """What would happen to a job that is submitted now."""
    who.must_be("user")
    _check_whole(job)
    return plan(served, job, who.user, _home(who.user))


# -- the rest


@router.get("/api/v1/cluster", tags=["cluster"])
def cluster(who: Caller, served: Served) -> shapes.Cluster:
    """The machine, and how deciding goes."""
    return shapes.Cluster(**served.describe())


@router.get("/api/v1/budgets", tags=["cluster"])
def budgets(who: Caller, served: Served) -> shapes.Budgets:
    """The energy budgets in force."""
    return shapes.Budgets.model_construct(budgets=served.budgets())


@router.put("/api/v1/budgets", tags=["cluster"])
def set_budgets(budgets: shapes.Budgets, who: Caller, served: Served) -> shapes.Budgets:
    """Other energy budgets from now on."""
    who.must_be("operator")
    now = served.set_budgets(budgets.budgets, who.name)
    return shapes.Budgets.model_construct(budgets=now)


@router.get(
    "/api/v1/events",
    tags=["cluster"],
    response_model=shapes.Events,
    responses={200: {"content": {"text/event-stream": {}}}},
)
def events(
    who: Caller,
    served: Served,
    after: Annotated[int, Query(ge=0, le=2**62)] = 0,
    job: MaybeId = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    follow: Annotated[bool, Query(description="as server-sent events, without end")] = False,
    last_event_id: Annotated[str, Header(pattern=r"^[0-9]{0,18}$")] = "",
) -> Any:
    """What happened, oldest first."""
    since = int(last_event_id) if last_event_id else after
    if follow:
        return StreamingResponse(event_stream(served, since, job or None), media_type="text/event-stream")
    found = served.store.events(since, job or None, limit)
    return shapes.Events(events=[shapes.Event(**vars(event.public())) for event in found])


@router.get(
    "/api/v1/log",
    tags=["cluster"],
    response_class=PlainTextResponse,
    responses={200: {"content": {"application/x-ndjson": {}}}},
)
def log(who: Caller, served: Served, epoch: Annotated[int, Query(ge=0, le=2**31)] = 0) -> Response:
    """All decisions of an epoch, for wattline replay."""
    lines = served.log_lines(epoch or None)
    return StreamingResponse(iter(lines), media_type="application/x-ndjson")


@router.get("/api/v1/tokens", tags=["tokens"])
def list_tokens(who: Caller, tokens: Known) -> shapes.Tokens:
    """Whose tokens there are."""
    who.must_be("operator")
    return shapes.Tokens(tokens=tokens.all())


@router.post("/api/v1/tokens", status_code=201, tags=["tokens"])
def make_token(new: shapes.NewToken, who: Caller, tokens: Known) -> shapes.Token:
    """A new token, shown this once."""
    who.must_be("operator")
    if new.role == "user" and not new.user and os.geteuid() == 0:
        raise Conflict("the service is root: say as which user this one's jobs run", "--user NAME")
    return shapes.Token(token=tokens.make(new.name, new.role, new.user or "", new.lasts_s))


@router.delete("/api/v1/tokens/{name}", status_code=204, tags=["tokens"])
def revoke(
    name: Annotated[str, Path(pattern=r"^[A-Za-z0-9_.-]{1,64}$")], who: Caller, tokens: Known
) -> Response:
    """Forget tokens."""
    who.must_be("operator")
    if name == "service":
        raise Conflict("the service needs its own token")
    tokens.revoke(name)
    return Response(status_code=204)


@router.get("/healthz", tags=["health"])
def healthz() -> shapes.Health:
    """Whether it answers."""
    return shapes.Health(status="ok")


@router.get("/readyz", tags=["health"], responses={503: {"model": shapes.Health}})
def readyz(served: Served) -> Response:
    """Whether it decides."""
    problem = served.problem or served.store.problem
    if problem:
        return JSONResponse({"status": "failing", "problem": problem}, 503)
    return JSONResponse({"status": "ok", "problem": ""})
