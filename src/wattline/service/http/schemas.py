"""What the API answers: the shapes of its documents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from wattline.service.storage.projection import Folded

JobId = Annotated[str, Field(pattern=r"^[0-9]{1,12}$")]
MaybeId = Annotated[str, Field(pattern=r"^[0-9]{0,12}$")]
State = Literal[
    "PENDING",
    "RUNNING",
    "SUCCEEDED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "OUT_OF_MEMORY",
    "NODE_FAIL",
    "DEADLINE",
]
_AMOUNT = r"[0-9]{1,9}(\.[0-9]{1,6})?"
BudgetText = Annotated[
    str,
    Field(
        pattern=rf"^([A-Za-z][A-Za-z0-9_.-]{{0,63}}:)?({_AMOUNT}(k|M)?W|{_AMOUNT}((k|M|G)?J|(k|M)?Wh)(/day)?"
        r"|eta=(0(\.[0-9]{1,6})?|1))$",
        description="12kW, 300kWh/day, 5GJ, eta=0.5; vision:12kW is of one team",
        examples=["300kWh/day"],
    ),
]


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Given(BaseModel):
    """On what a job runs, or ran last."""

    gpus: list[int] = []
    kind: str = ""
    cap_w: float | None = None
    batch: int | None = None
    cpus: int | None = None
    fused_with: list[str] = []


class Job(_Shape):
    """One job."""

    id: str
    name: str
    state: State
    held: bool
    reason: str = Field(description="why it is not running, or how it ended, in one sentence")
    user: str
    team: str
    priority: float
    sweep: str = Field(description="the first job of its sweep; empty: it is none")
    command: list[str]
    gpus_asked: int
    submit_s: float
    start_s: float | None
    end_s: float | None
    wait_s: float | None = Field(description="from submission to its first start")
    starts: int
    kills: int
    progress: float | None = Field(description="fraction that is done; null: it does not say")
    energy_j: float | None = Field(description="null: unmetered")
    energy_method: str = Field(description="how the joules are known; empty: it has not run")
    power_w: float | None = Field(
        description="what its GPUs draw now; null: it does not run, or nobody knows"
    )
    exit_code: int | None
    given: Given
    metrics: dict[str, float]


class Jobs(_Shape):
    """Some jobs; *next* is the id to ask for more after."""

    jobs: list[Job]
    next: str | None = None


class Change(_Shape):
    """What can be changed of a job."""

    priority: float = Field(ge=-1e9, le=1e9)


class Budgets(_Shape):
    """The budgets in force; none: energy is not limited."""

    budgets: list[BudgetText] = Field(max_length=100)


class Event(_Shape):
    """Something that happened."""

    seq: int
    at_s: float
    kind: str
    job: str | None
    data: dict[str, Any]


class Events(_Shape):
    """Some events."""

    events: list[Event]


class What(_Shape):
    """What would happen to a job if something was different, or is expected to."""

    what: str
    starts_s: float | None = Field(description="null: not within what was looked at")
    ends_s: float | None
    gpus: int
    kind: str = ""
    cap_w: float | None = None
    energy_j: float | None = None
    text: str


class Explanation(_Shape):
    """Why a job is where it is."""

    job: str
    state: State
    code: str
    reason: str
    evidence: list[str]
    expected: What | None
    changes: list[What]
    epoch: int
    decided_s: float | None


class Plan(_Shape):
    """What would happen to a job that is submitted now."""

    jobs: int
    feasible: bool
    expected: What | None
    alternatives: list[What]
    notes: list[str]


class Cluster(_Shape):
    """The machine and the one who decides."""

    nodes: list[dict[str, Any]]
    simulated: bool
    gpus_free: int | None
    energy_method: str
    policy: str
    place: str
    budgets: list[str]
    epoch: int
    jobs: dict[str, int]
    decision_s: float
    problem: str


class NewToken(_Shape):
    """Whom a token is for."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    role: Literal["viewer", "user", "operator"]
    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] | None = None
    lasts_s: float | None = Field(default=None, ge=1, le=1e9)


class Token(_Shape):
    """A token, shown once."""

    token: str


class Tokens(_Shape):
    """Whose tokens there are."""

    tokens: list[dict[str, Any]]


class Health(_Shape):
    """Whether all is well."""

    status: Literal["ok", "failing"]
    problem: str = ""


class Problem(BaseModel):
    """What went wrong (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    hint: str = ""


def shape(job: Folded, view: dict[str, Any], reason: str) -> Job:
    """A job as the API tells it; *view* is how it is doing now."""
    given = {**job.given, **{k: v for k, v in view.items() if v is not None}}
    over_j = job.energy_j
    running_j = view.get("energy_j") if view else 0.0
    energy_j = None if over_j is None or running_j is None else over_j + running_j
    fraction = view.get("fraction")
    return Job(
        id=job.id,
        name=job.name,
        state=job.state,  # type: ignore[arg-type]
        held=job.held,
        reason=reason,
        user=job.user,
        team=job.team,
        priority=job.priority,
        sweep=job.sweep,
        command=list(job.asked["work"]["words"]),
        gpus_asked=job.asked["asks"]["gpus"],
        submit_s=job.submit_s,
        start_s=job.start_s,
        end_s=job.end_s,
        wait_s=None if job.first_s is None else max(job.first_s - job.submit_s, 0.0),
        starts=job.starts,
        kills=job.kills,
        progress=fraction if fraction is not None else (job.done or None),
        energy_j=energy_j,
        energy_method=view.get("method") or job.method or ("unmetered" if job.starts else ""),
        power_w=view.get("power_w"),
        exit_code=job.code,
        given=Given(
            gpus=given.get("gpus", []),
            kind=given.get("kind", ""),
            cap_w=given.get("cap_w") or job.told.get("found_cap_w"),
            batch=given.get("batch") or job.told.get("batch"),
            cpus=given.get("cpus"),
            fused_with=given.get("with", []),
        ),
        metrics=view.get("metrics") or job.told.get("metrics", {}),
    )
