"""Routes of browser sessions: log in with a token, log out, and the caller."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from wattline.errors import ConfigError
from wattline.service.http.auth import UnknownToken
from wattline.service.http.callers import check_host, check_origin
from wattline.service.http.routes import Caller, refuse_unknown_parameters
from wattline.service.http.sessions import SESSION_S, SessionStore
from wattline.service.web_settings import WebSettings

session_router = APIRouter(dependencies=[Depends(refuse_unknown_parameters)])


class MeResponse(BaseModel):
    """The caller of a request."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="of the token")
    user: str = Field(description="user that its jobs run as; empty: the user of the service")
    role: str


_OWN_PATH = re.compile(r"/(?![/\\])[!-\[\]-~]{0,1999}")  # printable ASCII without a backslash
_TOKEN_BODY = {"type": "object", "properties": {"token": {"type": "string"}}, "required": ["token"]}


@session_router.post(
    "/api/v1/session",
    tags=["session"],
    status_code=204,
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/json": {"schema": _TOKEN_BODY}}}
    },
)
async def log_in(request: Request) -> Response:
    """Start the session of a token, by JSON or by a form. The response sets a cookie for 12 hours."""
    check_host(request)
    if "origin" in request.headers:
        check_origin(request)
    address = "" if request.client is None else request.client.host
    if not request.app.state.rate_limiter.allow(f"log in from {address}"):
        raise HTTPException(429, f"too many logins from {address}", headers={"Retry-After": "1"})
    is_form = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
    body = await request.body()
    fields = _parse_form(body) if is_form else _parse_json(body)
    sessions: SessionStore = request.app.state.sessions
    settings: WebSettings = request.app.state.web
    try:
        secret = await run_in_threadpool(sessions.create, fields["token"].strip())
    except UnknownToken:
        if not is_form:
            raise
        again = {"failed": "1"} | ({"next": fields["next"]} if fields["next"] else {})
        return RedirectResponse(f"{settings.base_path}/login?{urlencode(again)}", 303)
    response: Response = Response(status_code=204)
    if is_form:
        response = RedirectResponse(f"{settings.base_path}{fields['next'] or '/'}", 303)
    set_session_cookie(response, settings, secret)
    return response


def set_session_cookie(response: Response, settings: WebSettings, secret: str) -> None:
    """Add the cookie of a session to a response."""
    response.set_cookie(
        settings.cookie,
        secret,
        max_age=int(SESSION_S),
        path="/",
        secure=settings.is_secure,
        httponly=True,
        samesite="lax",
    )


def _parse_form(body: bytes) -> dict[str, str]:
    values = parse_qs(body.decode("ascii", "replace"), max_num_fields=10)
    return {"token": values.get("token", [""])[0], "next": check_own_path(values.get("next", [""])[0])}


def check_own_path(text: str) -> str:
    """Return *text* if it is a path of this service, so that no form leads to another one; else nothing."""
    return text if _OWN_PATH.fullmatch(text) else ""


def _parse_json(body: bytes) -> dict[str, str]:
    try:
        content: Any = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("token"), str) or len(content) != 1:
        raise ConfigError('the body is not {"token": "…"}', "type the token that wattline token add printed")
    return {"token": content["token"]}


@session_router.delete("/api/v1/session", tags=["session"], status_code=204)
def log_out(request: Request, caller: Caller) -> Response:
    """End the session of the cookie, if there is one."""
    settings: WebSettings = request.app.state.web
    secret = request.cookies.get(settings.cookie, "")
    if secret and caller.has_cookie:
        request.app.state.sessions.end(secret)
    response = Response(status_code=204)
    response.delete_cookie(settings.cookie, path="/", secure=settings.is_secure, httponly=True)
    return response


@session_router.get("/api/v1/me", tags=["session"])
def show_me(caller: Caller) -> MeResponse:
    """Show name, user and role of the caller."""
    return MeResponse(name=caller.name, user=caller.user, role=caller.role)
