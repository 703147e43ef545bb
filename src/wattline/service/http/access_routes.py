"""Routes of the API for operators: quotas and shares, the audit log, and tokens."""

from __future__ import annotations

import os
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response

from wattline.core.quotas import QuotaRule
from wattline.errors import ConfigError, Conflict
from wattline.service.audit import read_audit
from wattline.service.controller import Controller
from wattline.service.fair_share import change_rule, describe_accounts, describe_quotas, remove_rule
from wattline.service.http import schemas
from wattline.service.http.access_schemas import (
    AuditResponse,
    QuotaRequest,
    QuotasResponse,
    RotationRequest,
)
from wattline.service.http.routes import Caller, Service, Tokens, refuse_unknown_parameters

access_router = APIRouter(dependencies=[Depends(refuse_unknown_parameters)])

TokenName = Annotated[str, Path(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
OwnerName = Annotated[str, Query(max_length=64, description="either a team or a user")]


def _quotas_response(controller: Controller) -> QuotasResponse:
    view = controller.view()
    return QuotasResponse(quotas=describe_quotas(view), accounts=describe_accounts(view))  # type: ignore[arg-type]


@access_router.get("/api/v1/quotas", tags=["quotas"])
def show_quotas(caller: Caller, controller: Service) -> QuotasResponse:
    """Show quotas and what is used of them, and the fair share of all users and teams."""
    return _quotas_response(controller)


@access_router.put("/api/v1/quotas", tags=["quotas"])
def set_quota(quota: QuotaRequest, caller: Caller, controller: Service) -> QuotasResponse:
    """Set quota or share of a user or team. Running jobs run on; nothing new starts beyond it."""
    caller.require_role("operator")
    given = quota.model_dump(exclude_none=True)
    if ("team" in given) == ("user" in given):
        raise Conflict("team, user: expected exactly one of both", "--team vision, or --user ann")
    if len(given) == 1:
        raise Conflict("expected at least one of gpus, gpu_hours_per_week and share", "--gpus 8")
    rule = QuotaRule.from_dict(given)
    controller.change_quotas(lambda quotas: change_rule(quotas, rule), caller.name)
    return _quotas_response(controller)


@access_router.delete("/api/v1/quotas", tags=["quotas"])
def unset_quota(
    caller: Caller, controller: Service, team: OwnerName = "", user: OwnerName = ""
) -> QuotasResponse:
    """Remove quota and share of a user or team."""
    caller.require_role("operator")
    if bool(team) == bool(user):
        raise Conflict("team, user: expected exactly one of both", "--team vision, or --user ann")
    owner = "team" if team else "user"
    controller.change_quotas(lambda quotas: remove_rule(quotas, owner, team or user), caller.name)
    return _quotas_response(controller)


@access_router.get("/api/v1/audit", tags=["audit"])
def show_audit(
    caller: Caller,
    controller: Service,
    since: Annotated[float, Query(ge=0, le=1e12, description="seconds since 1970")] = 0.0,
    by: Annotated[str, Query(max_length=64, description="name of a token; empty: all")] = "",
    after: Annotated[int, Query(ge=0, le=2**62, description="only records with a larger seq")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> AuditResponse:
    """List what operators did, oldest first."""
    caller.require_role("operator")
    records = read_audit(controller.store, since_s=since, by=by, after=after, limit=limit)
    return AuditResponse(records=records)  # type: ignore[arg-type]


# -- tokens


@access_router.get("/api/v1/tokens", tags=["tokens"])
def list_tokens(caller: Caller, tokens: Tokens) -> schemas.TokensResponse:
    """List tokens, oldest first. Their values are not stored."""
    caller.require_role("operator")
    caller.require_bearer()
    return schemas.TokensResponse(tokens=tokens.list_tokens())


@access_router.post("/api/v1/tokens", status_code=201, tags=["tokens"])
def create_token(new: schemas.TokenRequest, caller: Caller, tokens: Tokens) -> schemas.TokenResponse:
    """Create a token with a new name. Its value is in this response only."""
    caller.require_role("operator")
    caller.require_bearer()
    if new.role == "user" and not new.user and os.geteuid() == 0:
        raise ConfigError("the service runs as root, and the token has no user for its jobs", "--user NAME")
    token = tokens.create(new.name, new.role, new.user or "", new.lasts_s, caller.name)
    return schemas.TokenResponse(token=token)


@access_router.post("/api/v1/tokens/{name}/rotate", tags=["tokens"])
def rotate_token(
    name: TokenName, rotation: RotationRequest, caller: Caller, tokens: Tokens
) -> schemas.TokenResponse:
    """Replace the value of a token. The old value is valid for `grace_s` more, by default not at all."""
    caller.require_role("operator")
    caller.require_bearer()
    return schemas.TokenResponse(token=tokens.rotate(name, rotation.grace_s, caller.name))


@access_router.delete("/api/v1/tokens/{name}", status_code=204, tags=["tokens"])
def revoke_token(name: TokenName, caller: Caller, tokens: Tokens) -> Response:
    """Revoke a token, also the service's own: commands on this machine then need another one."""
    caller.require_role("operator")
    caller.require_bearer()
    tokens.revoke(name, caller.name)
    return Response(status_code=204)
