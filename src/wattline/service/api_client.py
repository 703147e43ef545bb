"""Python client of the API with a typed method for each operation.

    from wattline.service.api_client import connect_service

    service = connect_service()                     # found as the commands find it
    (job,) = service.submit_job({"run": "python train.py"}).jobs
    service.show_job(job.id).state

Methods have the names of the operations in the OpenAPI document, arguments their parameters, and results are
the response models of the service. It needs pydantic and FastAPI: `pip install "wattline[service]"`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from wattline.errors import BackendError
from wattline.service.client import Client, ServerSentEvent, find_service
from wattline.service.http import access_schemas, schemas
from wattline.service.http.bill_routes import BillResponse
from wattline.service.http.detail_routes import AttemptsResponse, GpusResponse, SeriesResponse
from wattline.service.http.energy_routes import PowerResponse
from wattline.service.http.log_routes import LogLinesResponse
from wattline.service.http.session_routes import MeResponse
from wattline.service.http.study_routes import (
    GroupResponse,
    GroupsResponse,
    JobFileResponse,
    SweepResponse,
    TeamsResponse,
)
from wattline.service.http.whatif_routes import WhatIfResponse, WhatIfsResponse

M = TypeVar("M", bound=BaseModel)
JobAction = Literal["cancel", "hold", "release", "priority"]
Role = Literal["viewer", "user", "operator"]


def connect_service(url: str | None = None, folder: str | None = None) -> ApiClient:
    """Return a client of the service at *url*, else of the one that serves *folder*, as for the commands."""
    return ApiClient(find_service(url, folder))


class ApiClient:
    """A client with a method for each operation; errors are those of `wattline.errors`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    # -- jobs

    def submit_job(
        self,
        job: Mapping[str, Any],
        *,
        held: bool = False,
        allow_unsatisfiable: bool = False,
        idempotency_key: str = "",
    ) -> schemas.JobsResponse:
        """Submit a job or a sweep, given as a job file; without a key it has one of its own."""
        query = {"held": held, "allow_unsatisfiable": allow_unsatisfiable}
        key = idempotency_key or uuid.uuid4().hex
        return _parse(schemas.JobsResponse, self._client.post("/jobs", dict(job), query, key=key))

    def list_jobs(
        self,
        *,
        state: Sequence[schemas.State] = (),
        team: str = "",
        user: str = "",
        sweep: str = "",
        reason: str = "",
        text: str = "",
        since: float | None = None,
        until: float | None = None,
        after: str = "",
        before: str = "",
        sort: str = "id",
        descending: bool = False,
        offset: int = 0,
        limit: int = 100,
        counts: bool = False,
    ) -> schemas.JobsResponse:
        """List jobs by number; `next` of the response is `after` of the next page."""
        which = {"state": list(state), "team": team, "user": user, "sweep": sweep, "reason": reason}
        when = {"text": text, "since": since, "until": until, "after": after, "before": before}
        page = {"sort": sort, "descending": descending, "offset": offset, "limit": limit, "counts": counts}
        return _parse(schemas.JobsResponse, self._client.get("/jobs", {**which, **when, **page}))

    def change_jobs(
        self,
        action: JobAction,
        select: Mapping[str, Any],
        *,
        priority: float | None = None,
        dry_run: bool = False,
    ) -> schemas.JobActionResponse:
        """Cancel, hold, release or prioritise all selected jobs in one transaction."""
        body = {"action": action, "select": dict(select), "priority": priority, "dry_run": dry_run}
        return _parse(schemas.JobActionResponse, self._client.post("/jobs/actions", body, repeat=True))

    def show_job(self, job: str) -> schemas.JobResponse:
        """Show one job, with the last lines of its log if it failed."""
        return _parse(schemas.JobResponse, self._client.get(_job_path(job)))

    def change_priority(self, job: str, priority: float) -> schemas.JobResponse:
        """Change the priority of a job."""
        return _parse(schemas.JobResponse, self._client.patch(_job_path(job), {"priority": priority}))

    def cancel_job(self, job: str) -> schemas.JobResponse:
        """Cancel a job."""
        return _parse(schemas.JobResponse, self._client.post(_job_path(job, "cancel"), repeat=True))

    def hold_job(self, job: str) -> schemas.JobResponse:
        """Keep a pending job from starting."""
        return _parse(schemas.JobResponse, self._client.post(_job_path(job, "hold"), repeat=True))

    def release_job(self, job: str) -> schemas.JobResponse:
        """Let a held job start."""
        return _parse(schemas.JobResponse, self._client.post(_job_path(job, "release"), repeat=True))

    def explain_job(self, job: str) -> schemas.ExplanationResponse:
        """Explain a job's state, with a forecast and alternatives."""
        return _parse(schemas.ExplanationResponse, self._client.get(_job_path(job, "explain")))

    def show_job_log(self, job: str, *, rank: int = 0, attempt: int = 0, tail: int = -1) -> str:
        """Return the output of a job so far; *attempt* 0 is the latest, *tail* -1 is all."""
        query = {"rank": rank, "attempt": attempt, "tail": tail}
        blocks = self._client.text(_job_path(job, "logs"), query)
        return b"".join(blocks).decode("utf-8", "replace")

    def follow_job_log(
        self, job: str, *, rank: int = 0, tail: int = -1, since: str = ""
    ) -> Iterator[ServerSentEvent]:
        """Yield the lines of a job's output as they come, up to and including the event `end`.

        *since* is the position from which on they count: `end` of `show_log_lines`.
        """
        query = {"rank": rank, "tail": tail, "since": since}
        yield from self._client.follow(_job_path(job, "logs"), query)

    def show_log_lines(
        self,
        job: str,
        *,
        rank: int = 0,
        attempt: int = 0,
        before: str = "",
        search: str = "",
        lines: int = 200,
    ) -> LogLinesResponse:
        """Show the last lines of a job's output; `before` of the response is that of the page before."""
        query = {"rank": rank, "attempt": attempt, "before": before, "search": search, "lines": lines}
        return _parse(LogLinesResponse, self._client.get(_job_path(job, "logs/lines"), query))

    def plan_submission(self, job: Mapping[str, Any]) -> schemas.PlanResponse:
        """Forecast a job without submitting it."""
        return _parse(schemas.PlanResponse, self._client.post("/plan", dict(job), repeat=True))

    def convert_job_file(self, text: str) -> JobFileResponse:
        """Check a job file in YAML, and return it as the JSON that `submit_job` takes."""
        return _parse(JobFileResponse, self._client.post("/jobfile", text.encode(), repeat=True))

    def show_attempts(self, job: str) -> AttemptsResponse:
        """Show the attempts of a job, with allocation, caps, energy and outcome of each."""
        return _parse(AttemptsResponse, self._client.get(_job_path(job, "attempts")))

    def show_series(self, job: str, *, points: int = 1000) -> SeriesResponse:
        """Show progress, energy and metrics that a job's session reported, over time."""
        return _parse(SeriesResponse, self._client.get(_job_path(job, "series"), {"points": points}))

    def show_sweep(self, job: str) -> SweepResponse:
        """Show all members of a sweep, given by its first job."""
        return _parse(SweepResponse, self._client.get(f"/sweeps/{quote(str(job), safe='')}"))

    def show_groups(self) -> GroupsResponse:
        """List the groups of recurring jobs."""
        return _parse(GroupsResponse, self._client.get("/groups"))

    def show_group(self, name: str) -> GroupResponse:
        """Show a group of recurring jobs: batch sizes tried, their cost, and the belief about them."""
        return _parse(GroupResponse, self._client.get("/group", {"name": name}))

    # -- studies

    def start_study(
        self,
        policy: Sequence[str],
        trace: bytes | None = None,
        *,
        cluster: str = "",
        budget: str = "",
        user: str = "",
        name: str = "",
        since: float = 0.0,
    ) -> WhatIfResponse:
        """Start a what-if study of *trace*, the content of a file; None: of the service's history."""
        query = {"policy": list(policy), "cluster": cluster, "budget": budget, "user": user}
        return _parse(
            WhatIfResponse, self._client.post("/whatif", trace, {**query, "name": name, "since": since})
        )

    def list_studies(self) -> WhatIfsResponse:
        """List the what-if studies of the caller; of all callers for an operator."""
        return _parse(WhatIfsResponse, self._client.get("/whatif"))

    def show_study(self, id: str) -> WhatIfResponse:
        """Show a what-if study: its progress, and at last its result."""
        return _parse(WhatIfResponse, self._client.get(f"/whatif/{quote(id, safe='')}"))

    # -- cluster

    def show_me(self) -> MeResponse:
        """Show name, user and role of the caller."""
        return _parse(MeResponse, self._client.get("/me"))

    def show_gpus(self) -> GpusResponse:
        """Show jobs, power, cap and its origin of every GPU now."""
        return _parse(GpusResponse, self._client.get("/gpus"))

    def follow_changes(self) -> Iterator[ServerSentEvent]:
        """Yield the ids of changed jobs without end, at most once a second."""
        yield from self._client.follow("/live", {})

    def show_teams(self, *, since: float = 0.0) -> TeamsResponse:
        """List all teams, with their jobs, and the energy of attempts that ended since a time."""
        return _parse(TeamsResponse, self._client.get("/teams", {"since": since}))

    def show_bill(self, *, month: str = "", team: str = "") -> BillResponse:
        """Show the bill of a month, such as 2026-11, of all teams or one; without a month of this one."""
        return _parse(BillResponse, self._client.get("/bill", {"month": month, "team": team}))

    def show_team_bill(self, team: str, *, month: str = "") -> BillResponse:
        """Show the bill of one team in a month."""
        return _parse(BillResponse, self._client.get(f"/teams/{quote(team, safe='')}/bill", {"month": month}))

    def show_cluster(self) -> schemas.ClusterResponse:
        """Show the GPUs, the policy, and the state of the scheduler loop."""
        return _parse(schemas.ClusterResponse, self._client.get("/cluster"))

    def prune(
        self,
        *,
        older_than: str | None = None,
        max_size: str | None = None,
        archive: str | None = None,
        dry_run: bool = False,
    ) -> schemas.PruneResponse:
        """Delete or archive old jobs, logs and events."""
        limits = {"older_than": older_than, "max_size": max_size, "archive": archive, "dry_run": dry_run}
        return _parse(schemas.PruneResponse, self._client.post("/prune", limits, repeat=True))

    def list_events(
        self, *, after: int = -1, since: float = 0.0, job: str = "", limit: int = 100
    ) -> schemas.EventsResponse:
        """List events, oldest first; `next` of the response is `after` of the next page."""
        query = {"after": after, "since": since, "job": job, "limit": limit}
        return _parse(schemas.EventsResponse, self._client.get("/events", query))

    def follow_events(
        self, *, after: int = -1, since: float = 0.0, job: str = ""
    ) -> Iterator[ServerSentEvent]:
        """Yield events without end, from now on or after *after*."""
        yield from self._client.follow("/events", {"after": after, "since": since, "job": job})

    def show_run_log(self, *, epoch: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the lines of the run log of an epoch; 0 is the current one."""
        rest = b""
        for block in self._client.text("/log", {"epoch": epoch}):
            *lines, rest = (rest + block).split(b"\n")
            yield from (json.loads(line) for line in lines if line)
        if rest:
            yield json.loads(rest)

    def show_budgets(self) -> schemas.BudgetsResponse:
        """Show the energy budgets in force."""
        return _parse(schemas.BudgetsResponse, self._client.get("/budgets"))

    def set_budgets(
        self, budgets: Sequence[str], *, overshoot: float | None = None
    ) -> schemas.BudgetsResponse:
        """Replace the energy budgets."""
        body = {"budgets": list(budgets), "overshoot": overshoot}
        return _parse(schemas.BudgetsResponse, self._client.put("/budgets", body))

    def show_power(
        self, *, since: float | None = None, until: float | None = None, step: float = 10, limit: int = 1000
    ) -> PowerResponse:
        """Show the power, the caps and the jobs of all GPUs over time."""
        query = {"since": since, "until": until, "step": step, "limit": limit}
        return _parse(PowerResponse, self._client.get("/power", query))

    # -- operators

    def show_quotas(self) -> access_schemas.QuotasResponse:
        """Show quotas and what is used of them."""
        return _parse(access_schemas.QuotasResponse, self._client.get("/quotas"))

    def set_quota(
        self,
        *,
        team: str | None = None,
        user: str | None = None,
        gpus: int | None = None,
        gpu_hours_per_week: float | None = None,
        share: float | None = None,
    ) -> access_schemas.QuotasResponse:
        """Set quota or share of a team or user."""
        given = {"team": team, "user": user, "gpus": gpus, "gpu_hours_per_week": gpu_hours_per_week}
        body = {name: value for name, value in {**given, "share": share}.items() if value is not None}
        return _parse(access_schemas.QuotasResponse, self._client.put("/quotas", body))

    def unset_quota(self, *, team: str = "", user: str = "") -> access_schemas.QuotasResponse:
        """Remove quota and share of a team or user."""
        query = {"team": team, "user": user}
        return _parse(access_schemas.QuotasResponse, self._client.delete("/quotas", query))

    def show_audit(
        self, *, since: float = 0.0, by: str = "", after: int = 0, limit: int = 100
    ) -> access_schemas.AuditResponse:
        """List what operators did, oldest first."""
        query = {"since": since, "by": by, "after": after, "limit": limit}
        return _parse(access_schemas.AuditResponse, self._client.get("/audit", query))

    def list_tokens(self) -> schemas.TokensResponse:
        """List tokens, oldest first."""
        return _parse(schemas.TokensResponse, self._client.get("/tokens"))

    def create_token(
        self, name: str, role: Role, *, user: str | None = None, lasts_s: float | None = None
    ) -> schemas.TokenResponse:
        """Create a token; its value is in the response only."""
        body = {"name": name, "role": role, "user": user, "lasts_s": lasts_s}
        return _parse(schemas.TokenResponse, self._client.post("/tokens", body))

    def rotate_token(self, name: str, *, grace_s: float = 0.0) -> schemas.TokenResponse:
        """Replace the value of a token."""
        path = f"/tokens/{quote(name, safe='')}/rotate"
        return _parse(schemas.TokenResponse, self._client.post(path, {"grace_s": grace_s}))

    def revoke_token(self, name: str) -> None:
        """Revoke a token."""
        self._client.delete(f"/tokens/{quote(name, safe='')}")


def _job_path(job: str, part: str = "") -> str:
    return f"/jobs/{quote(str(job), safe='')}{f'/{part}' if part else ''}"


def _parse(model: type[M], document: Any) -> M:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BackendError(
            f"the service answered with another {model.__name__}: {where}: {first['msg']}",
            "use the same version of wattline on both sides",
        ) from None
