"""Request and response bodies of the API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from wattline.service.http.access_schemas import AccountResponse
from wattline.service.http.request_body import RequestBody
from wattline.service.storage.projection import JobRow

JobId = Annotated[str, Field(pattern=r"^[0-9]{1,12}$")]
OptionalJobId = Annotated[str, Field(pattern=r"^[0-9]{0,12}$")]
State = Literal[
    "PENDING",
    "RUNNING",
    "SUCCEEDED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "OUT_OF_MEMORY",
    "NODE_FAIL",
]
_AMOUNT = r"[0-9]{1,9}(\.[0-9]{1,6})?"
BudgetText = Annotated[
    str,
    Field(
        pattern=rf"^([A-Za-z][A-Za-z0-9_.-]{{0,63}}:)?({_AMOUNT}(k|M)?W|{_AMOUNT}((k|M|G)?J|(k|M)?Wh)(/day)?"
        r"|eta=(0(\.[0-9]{1,6})?|1))$",
        description="12kW, 300kWh/day, 5GJ or eta=0.5; a prefix such as vision: limits one team",
        examples=["300kWh/day"],
    ),
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


# -- requests


class PriorityRequest(RequestBody):
    """New priority of a job."""

    priority: float = Field(ge=-1e9, le=1e9)


class JobSelectionRequest(RequestBody):
    """Jobs with one of the ids or in one of the ranges, that also match every filter that is set."""

    jobs: list[Annotated[str, Field(pattern=r"^[0-9]{1,12}(\.\.([0-9]{1,12})?)?$")]] = Field(
        default=[], max_length=50_000, description="ids and ranges: 12, 1..500, 8.."
    )
    sweep: OptionalJobId = Field(default="", description="first job of a sweep")
    name: Annotated[str, Field(max_length=200)] = Field(
        default="", description="a name, with *, ? and [a-c] as in file names"
    )
    user: Annotated[str, Field(max_length=200)] = ""
    team: Annotated[str, Field(max_length=200)] = ""
    state: list[State] = Field(default=[], max_length=20, description="empty: PENDING and RUNNING")
    all: bool = Field(default=False, description="select all jobs, without a filter")

    def build_filters(self) -> dict[str, Any]:
        """Return the fields of a `JobSelection`."""
        filters = self.model_dump(exclude={"state", "user", "jobs"})
        return {**filters, "jobs": tuple(self.jobs), "user": self.user or None, "states": tuple(self.state)}


class JobActionRequest(RequestBody):
    """A change of all selected jobs. With *dry_run* nothing is changed."""

    action: Literal["cancel", "hold", "release", "priority"]
    select: JobSelectionRequest
    priority: float | None = Field(default=None, ge=-1e9, le=1e9, description="required by priority")
    dry_run: bool = False


class PruneRequest(RequestBody):
    """Limits that replace those of the settings of the service."""

    older_than: Annotated[str, Field(max_length=40)] | None = Field(
        default=None, description="age of jobs, logs and events, such as 30d"
    )
    max_size: Annotated[str, Field(max_length=40)] | None = Field(
        default=None, description="size of folders and database, such as 10G"
    )
    archive: Annotated[str, Field(max_length=4096)] | None = Field(
        default=None, description="folder for deleted jobs, an absolute path; null: that of the settings"
    )
    dry_run: bool = False


class BudgetsRequest(RequestBody):
    """Budgets to hold from now on; an empty list removes all."""

    budgets: list[BudgetText] = Field(max_length=100)
    overshoot: float | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="the power caps of all GPUs in use and the idle draw of the others are in sum at most "
        "this multiple of each budget of watts; null: 1, unless the policy has another",
    )


class TokenRequest(RequestBody):
    """Name, role and validity of a new token."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    role: Literal["viewer", "user", "operator"]
    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] | None = Field(
        default=None, description="user that its jobs run as; null: the user of the service"
    )
    lasts_s: float | None = Field(
        default=None, ge=1, le=1e9, description="seconds to its expiry; null: never"
    )


# -- responses


class AllocationResponse(BaseModel):
    """Resources of a job's current attempt, or of its last."""

    gpus: list[int] = Field(default=[], description="indices of its GPUs on this machine")
    kind: str = Field(default="", description="kind of these GPUs")
    cap_w: float | None = Field(default=None, description="power cap of each GPU; null: none")
    batch: int | None = None
    cpus: int | None = None
    fused_with: list[str] = Field(default=[], description="ids of the other members of its array")


class LimitsResponse(_Body):
    """Limits of a job, as requested; null: none."""

    time_s: float | None = Field(description="of one attempt")
    memory_gib_per_gpu: float | None = Field(description="null: the proportional share")
    cpus_per_gpu: float | None = Field(description="null: chosen by Wattline")
    power_w: float | None = Field(description="highest power limit of each GPU")
    energy_j: float | None = Field(description="of all attempts")
    retries: int

    @classmethod
    def from_submission(cls, submission: dict[str, Any]) -> LimitsResponse:
        """Build the response from the stored submission of a job."""
        spec, columns = submission["spec"], submission["columns"]
        return cls(
            time_s=spec["time_limit_s"],
            memory_gib_per_gpu=spec["memory_gib"] or None,
            cpus_per_gpu=columns["cpus"] / columns["gpus"] or None,
            power_w=spec["power_w"],
            energy_j=spec["max_joules"],
            retries=spec["retries"],
        )


def _find_progress(job: JobRow) -> float | None:
    """Return the completed fraction of a job that does not run; None: it reported none.

    The stored one is that of its last checkpoint, after which a job that succeeded did the rest.
    """
    if not job.completed_fraction:
        return None
    return 1.0 if job.state == "SUCCEEDED" else job.completed_fraction


class JobResponse(_Body):
    """A job."""

    id: str
    name: str
    state: State
    held: bool
    reason: str = Field(description="why it is not running, or how it ended, in one sentence")
    reason_code: str = Field(default="", description="of its reason to wait, else its state in lower case")
    queue_position: int | None = Field(default=None, description="from 0; null: it is not in the queue")
    user: str
    team: str
    priority: float
    sweep: str = Field(description="id of the first job of its sweep; empty: it is in none")
    matrix: dict[str, Any] = Field(description="its values of the sweep's matrix; empty: it has none")
    max_parallel: int | None = Field(description="jobs of its sweep that run at once; null: no limit")
    depends_on: list[dict[str, str]] = Field(description="job or sweep that has to end first, and when")
    command: list[str]
    workdir: str = Field(description="folder that it runs in")
    log: str = Field(description="file with the output of its first rank; empty: it has not started")
    model: str = Field(description="workload that it names; empty: none")
    gpus_asked: int
    gpu_types: list[str] = Field(description="kinds of GPU that it accepts; empty: any")
    limits: LimitsResponse
    deadline_s: float | None
    submit_s: float
    start_s: float | None
    end_s: float | None
    wait_s: float = Field(description="seconds in which it waited so far, before and between all attempts")
    run_s: float = Field(description="seconds in which it ran so far, in all attempts; with wait_s: its age")
    starts: int = Field(description="number of attempts so far")
    kill_count: int = Field(description="attempts that ended because the job was killed")
    progress: float | None = Field(description="completed fraction; null: unknown")
    energy_j: float | None = Field(
        description="joules of its GPUs in all attempts; null: it never ran, or the energy is unknown"
    )
    energy_method: str = Field(description="how the energy is measured; empty: the job has not run")
    power_w: float | None = Field(description="current power of its GPUs; null: not running, or unknown")
    exit_code: int | None
    signal: str | None = Field(description="that killed its last attempt; null: none did")
    preemptible: bool | None = Field(
        description="whether it may be stopped for others, as requested; null: once it has saved"
    )
    protection: str = Field(description="when it is not stopped for others; empty: now, or it does not run")
    saved_progress: float | None = Field(description="completed fraction in its checkpoint; null: unknown")
    log_tail: list[str] = Field(
        default=[], description="last lines of its log if it failed; only of a single job"
    )
    allocation: AllocationResponse
    metrics: dict[str, float]

    @classmethod
    def from_row(cls, job: JobRow, live: dict[str, Any], reason: str, now_s: float, log: str) -> JobResponse:
        """Build the response from the stored job and its *live* status, which is empty if it is over."""
        spec, columns = job.submission["spec"], job.submission["columns"]
        allocation = {**job.allocation, **{k: v for k, v in live.items() if v is not None}}
        started_s = job.start_s if job.state == "RUNNING" and job.start_s is not None else now_s
        age_s = max((now_s if job.end_s is None else job.end_s) - job.submit_s, 0.0)
        run_s = min(job.service_s + max(now_s - started_s, 0.0), age_s)
        fraction = live.get("fraction")
        return cls(
            id=job.id,
            name=job.name,
            state=job.state,  # type: ignore[arg-type]
            held=job.held,
            reason=reason,
            user=job.user,
            team=job.team,
            priority=job.priority,
            sweep=job.sweep,
            matrix=job.matrix,
            max_parallel=job.max_parallel or None,
            depends_on=job.depends_on,
            command=list(spec["command"]),
            workdir=spec["workdir"],
            log=log,
            model=columns["model"],
            gpus_asked=columns["gpus"],
            gpu_types=columns["gpu_kind"].split("|") if columns["gpu_kind"] else [],
            limits=LimitsResponse.from_submission(job.submission),
            deadline_s=spec["deadline_s"],
            submit_s=job.submit_s,
            start_s=job.start_s,
            end_s=job.end_s,
            wait_s=age_s - run_s,
            run_s=run_s,
            starts=job.starts,
            kill_count=job.kill_count,
            progress=fraction if fraction is not None else _find_progress(job),
            energy_j=live.get("energy_j", job.energy_j) if job.starts else None,
            energy_method=(live.get("energy_method") or job.energy_method or "unmetered")
            if job.starts
            else "",
            power_w=live.get("power_w"),
            exit_code=job.exit_code,
            signal=None if job.state == "RUNNING" else job.results.get("signal"),
            preemptible=job.submission["spec"].get("preemptible"),
            protection=live.get("protection") or "",
            saved_progress=live.get("saved_fraction") or job.completed_fraction or None,
            allocation=AllocationResponse(
                gpus=allocation.get("gpus", []),
                kind=allocation.get("kind", ""),
                cap_w=allocation.get("cap_w") or job.results.get("found_cap_w"),
                batch=allocation.get("batch") or job.results.get("batch"),
                cpus=allocation.get("cpus"),
                fused_with=allocation.get("fused_with", []),
            ),
            metrics=live.get("metrics") or job.results.get("metrics", {}),
        )


class JobsResponse(_Body):
    """A page of jobs; pass *next* as `after` to get the next page."""

    jobs: list[JobResponse]
    next: str | None = Field(default=None, description="null: this is the last page")
    counts: dict[str, int] | None = Field(
        default=None, description="all jobs that match, by state; null: they were not requested"
    )


class JobActionError(_Body):
    """A selected job that cannot be changed."""

    job: str
    code: str
    message: str
    hint: str


class JobActionResponse(_Body):
    """Outcome of a change of selected jobs; with *dry_run*, that which it would have."""

    action: Literal["cancel", "hold", "release", "priority"]
    dry_run: bool
    matched: int = Field(description="selected jobs")
    changed: int
    unchanged: int = Field(description="jobs that were as requested already")
    refused: int
    reasons: dict[str, int] = Field(description="refused jobs by state, or not_owner, or not_found")
    ids: list[str] = Field(description="ids of all changed jobs")
    jobs: list[JobResponse] = Field(description="the first 100 changed and unchanged jobs, as they are now")
    errors: list[JobActionError] = Field(description="the first 100 refused jobs")


class PruneResponse(_Body):
    """Numbers of what was deleted, or with *dry_run* would be."""

    dry_run: bool
    jobs: int = Field(description="ended jobs, deleted with their events and folders")
    events: int
    epochs: int
    log_files: int = Field(description="log files of jobs that are kept")
    bytes: int = Field(description="bytes of folders and log files")
    database_bytes: int = Field(description="bytes by which the database has shrunk")
    kept_jobs: int
    archive: str = Field(description="file with the deleted jobs; empty: none")


class BudgetUsageResponse(_Body):
    """Use of one budget, in joules, or in watts if it is a budget of power; null: unknown."""

    budget: str
    team: str = Field(description="empty: the whole cluster")
    unit: str = Field(description="J, W or eta")
    limit: float
    used: float | None
    left: float | None = Field(description="negative: exceeded by so much")
    rate_w: float | None = Field(description="mean power of the last 15 minutes; null: not known yet")
    resets_s: float | None = Field(description="when used energy counts from 0 again; null: never")
    exhausted_s: float | None = Field(
        description="when nothing is left at rate_w; null: not before resets_s, or unknown"
    )
    as_of_s: float | None = Field(description="time of the last reading; null: there is none")


class BudgetsResponse(_Body):
    """Budgets in force; an empty list: energy is not limited."""

    budgets: list[str]
    usage: list[BudgetUsageResponse] = Field(default=[], description="of each budget, in the same order")
    method: str = Field(default="", description="how the energy is measured")
    overshoot: float | None = Field(
        default=None,
        description="bound of the sum of power caps, as a multiple of each budget of watts; null: none",
    )


class EventResponse(_Body):
    """An event of a job or of the service."""

    seq: int
    at_s: float
    kind: str
    job: str | None
    data: dict[str, Any]


class EventsResponse(_Body):
    """A page of events; pass *next* as `after` to get the next page."""

    events: list[EventResponse]
    next: int | None = Field(default=None, description="null: this is the last page")


class ForecastResponse(_Body):
    """Predicted start and end of a job in one scenario."""

    scenario: str
    starts_s: float | None = Field(description="null: not within the simulated time")
    ends_s: float | None
    gpus_asked: int = Field(description="GPUs that it requests in this scenario")
    gpus: int = Field(description="GPUs that it starts on; as many as it requests if it does not start")
    kind: str = ""
    cap_w: float | None = None
    energy_j: float | None = Field(default=None, description="from now to the end, over all its leases")
    energy_method: str = Field(default="", description="how energy_j is predicted; empty: it is null")
    energy_error: float | None = Field(
        default=None, description="mean relative error of the measurements behind energy_j; null: unknown"
    )
    reason: str = Field(default="", description="why it does not start; empty: it does")
    never_starts: bool = Field(default=False, description="no later moment would let it start")
    text: str


class MarketResponse(_Body):
    """Prices of a policy that allocates by prices, and the offer of one job.

    The unit is that of the policy's aim: seconds of completion time, or money.
    """

    gpu_h: dict[str, float] = Field(description="price of a GPU-hour now, by kind")
    joule: float = Field(description="price of a joule now, budgets included")
    budget_joule: float = Field(description="the part of it that is due to budgets")
    offer_per_gpu_h: float | None = Field(description="the most it offers; null: no GPU is open to it")
    price_per_gpu_h: float = Field(description="of the kind that suits it best")
    missing_per_gpu_h: float | None = Field(description="what it would have to give more to start now")
    gpus_now: int | None = Field(description="GPUs with which it could pay the price; null: none")
    starts_in_s: float | None = Field(description="at these prices; 0: now, null: not foreseen")
    text: str


class ExplanationResponse(_Body):
    """Reason for a job's state, with evidence and forecasts."""

    job: str
    state: State
    code: str
    reason: str
    evidence: list[str]
    expected: ForecastResponse | None
    changes: list[ForecastResponse]
    epoch: int
    decided_s: float | None
    fair_share: AccountResponse | None = Field(
        default=None, description="of its user in its team; null: the policy has no fair share"
    )
    market: MarketResponse | None = Field(default=None, description="null: the policy has no prices")


class PlanResponse(_Body):
    """Forecast of a job that is not submitted."""

    jobs: int
    feasible: bool
    reason: str = Field(description="why it can never run; empty: it can")
    field: str = Field(description="field of the job file that this cluster cannot satisfy; empty: none")
    expected: ForecastResponse | None
    alternatives: list[ForecastResponse]
    notes: list[str]
    market: MarketResponse | None = Field(default=None, description="null: the policy has no prices")


class ClusterResponse(_Body):
    """The machine, the policy, and the state of the scheduler loop."""

    nodes: list[dict[str, Any]]
    simulated: bool
    gpus_free: int | None
    energy_method: str
    policy: str
    place: str
    budgets: list[str]
    overshoot: float | None
    epoch: int
    jobs: dict[str, int]
    decision_s: float
    problem: str


class TokenResponse(_Body):
    """A new token. It is not stored and cannot be shown again."""

    token: str


class TokensResponse(_Body):
    """Tokens without their values: name, user, role, created_s and expires_s."""

    tokens: list[dict[str, Any]]


class HealthResponse(_Body):
    """Health of the service."""

    status: Literal["ok", "failing"]
    problem: str = ""


class ProblemResponse(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    hint: str = ""
    field: str = Field(default="", description="field of a job file that is not satisfiable")
