"""Routes of what-if studies: start one of the history or of an uploaded trace, and read its result."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from wattline.cluster import parse_cluster
from wattline.core.nodes import Nodes
from wattline.energy.budgets import parse_budget
from wattline.errors import ConfigError
from wattline.policy.parser import parse_policy
from wattline.service.http.auth import Principal
from wattline.service.http.routes import Caller, Service, refuse_unknown_parameters
from wattline.service.job_trace import write_job_trace
from wattline.service.whatif_runs import WhatIfRun, WhatIfRuns

whatif_router = APIRouter(dependencies=[Depends(refuse_unknown_parameters)])

_MOST_POLICIES = 12
StudyId = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]


class WhatIfResponse(BaseModel):
    """A what-if study."""

    model_config = ConfigDict(extra="forbid")

    id: str
    trace: str
    state: Literal["waiting", "running", "ended", "failed"]
    completed: float = Field(description="fraction of its simulations")
    submit_s: float
    start_s: float | None
    end_s: float | None
    message: str = Field(description="the latest message of the simulation, or why it failed")
    result: dict[str, Any] | None = Field(description="as of wattline whatif --json; null: none yet")

    @classmethod
    def from_run(cls, run: WhatIfRun, *, with_result: bool = True) -> WhatIfResponse:
        """Build the response from a run."""
        values = {name: getattr(run, name) for name in cls.model_fields if name != "result"}
        return cls(**values, result=run.result if with_result else None)


class WhatIfsResponse(BaseModel):
    """The what-if studies of the caller, the newest first, without their results."""

    model_config = ConfigDict(extra="forbid")

    studies: list[WhatIfResponse]


def spell_cluster(nodes: Nodes) -> str:
    """Return the nodes of a service as the text of a cluster: `2xa100:8 + 1xv100:4`."""
    counts = Counter((nodes.kind.word(at), int(nodes.gpus[at])) for at in range(len(nodes)))
    return "+".join(f"{count}x{kind}:{gpus}" for (kind, gpus), count in counts.items())


def find_owner(caller: Principal) -> str | None:
    """Return the token of which a caller sees the studies; None: of all."""
    return None if caller.role == "operator" else caller.name


def build_arguments(policies: list[str], cluster: str, budget: str, user: str) -> list[str]:
    """Return the arguments of `wattline whatif`; raise `ConfigError` for invalid ones."""
    if not policies or len(policies) > _MOST_POLICIES:
        raise ConfigError(f"{len(policies)} policies are given, expected 1 to {_MOST_POLICIES}")
    for policy in policies:
        parse_policy(policy.partition("@")[0])
    if "/" in cluster or "." in cluster.replace(".5", ""):
        raise ConfigError(f"cluster is {cluster!r}, expected a text such as 2xa100:8, not a file")
    parse_cluster(cluster)
    arguments = ["--cluster", cluster, "--policies", *policies]
    if budget:
        parse_budget(budget)
        arguments += ["--budget", budget]
    return [*arguments, "--user", user] if user else arguments


@whatif_router.post("/api/v1/whatif", status_code=202, tags=["what if"])
async def start_study(
    request: Request,
    caller: Caller,
    controller: Service,
    policy: Annotated[list[str], Query(max_length=_MOST_POLICIES, description="as for --policy; repeatable")],
    cluster: Annotated[str, Query(max_length=200, description="2xa100:8; empty: that of the service")] = "",
    budget: Annotated[str, Query(max_length=60, description="12kW, 300kWh/day; empty: none")] = "",
    user: Annotated[str, Query(max_length=64, description="also show the changes for this user")] = "",
    name: Annotated[str, Query(max_length=100, description="of the uploaded trace")] = "",
    since: Annotated[float, Query(ge=0, le=1e12, description="history from this time on, in seconds")] = 0.0,
) -> WhatIfResponse:
    """Start a study of the trace in the body, or of the service's own history if the body is empty.

    A trace is a file of any format that `wattline whatif` reads, of at most 64 MiB.
    """
    caller.require_role("user")
    nodes = controller.view().nodes
    arguments = build_arguments(policy, cluster or spell_cluster(nodes), budget, user)
    runs: WhatIfRuns = request.app.state.whatif
    id, path = runs.prepare()
    try:
        size = 0
        with path.open("wb") as file:
            async for block in request.stream():
                size += len(block)
                file.write(block)
        label = name or "the uploaded trace"
        if size == 0:
            count = await run_in_threadpool(write_job_trace, controller.store, path, since)
            label = f"the history of this service ({count} jobs)"
    except BaseException:
        runs.discard(id)
        raise
    return WhatIfResponse.from_run(runs.start(id, caller.name, label, arguments))


@whatif_router.get("/api/v1/whatif", tags=["what if"])
def list_studies(request: Request, caller: Caller) -> WhatIfsResponse:
    """List the studies of the caller; of all callers for an operator."""
    runs: WhatIfRuns = request.app.state.whatif
    found = runs.list_runs(find_owner(caller))
    return WhatIfsResponse(studies=[WhatIfResponse.from_run(run, with_result=False) for run in found])


@whatif_router.get("/api/v1/whatif/{id}", tags=["what if"])
def show_study(request: Request, id: StudyId, caller: Caller) -> WhatIfResponse:
    """Show a study: its progress, and at last its result."""
    runs: WhatIfRuns = request.app.state.whatif
    return WhatIfResponse.from_run(runs.find(id, find_owner(caller)))
