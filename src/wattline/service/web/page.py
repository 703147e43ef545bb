"""A page: its caller, its errors, and the values that every template has."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Query
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from wattline import __version__
from wattline.errors import ConfigError, NotAllowed, NotFound, WattlineError
from wattline.service.controller import Controller
from wattline.service.http.auth import ROLES, Principal, UnknownToken
from wattline.service.http.callers import authenticate_request, check_host, read_proxy_user
from wattline.service.http.session_routes import set_session_cookie
from wattline.service.http.sessions import SessionStore, build_csrf_token
from wattline.service.web.environment import render
from wattline.service.web.text import build_time_filter, parse_zone, show_sentence
from wattline.service.web_settings import WebSettings

THEME_COOKIE, ZONE_COOKIE = "wattline_theme", "wattline_zone"


class PageRequest:
    """A request of a browser for a page."""

    def __init__(self, request: Request, caller: Principal) -> None:
        self.request, self.caller = request, caller
        self.controller: Controller = request.app.state.controller
        self.settings: WebSettings = request.app.state.web
        self.zone = parse_zone(request.cookies.get(ZONE_COOKIE, ""))

    def may(self, role: str) -> bool:
        """Return whether the caller has at least the rights of *role*."""
        return ROLES.index(self.caller.role) >= ROLES.index(role)

    def may_change(self, user: str) -> bool:
        """Return whether the caller may change a job of *user*."""
        return self.caller.role == "operator" or (self.caller.role == "user" and self.caller.user == user)

    def _find_unzoomed(self) -> str:
        """Return the parameters of this page without those of a zoom; empty: it is not zoomed."""
        asked = self.request.query_params.multi_items()
        others = [(name, value) for name, value in asked if name not in ("from", "to")]
        return f"?{urlencode(others)}" if len(others) < len(asked) else ""

    def render(self, template: str, title: str, **values: Any) -> Response:
        """Return the page of a template."""
        secret = self.request.cookies.get(self.settings.cookie, "")
        sessions: SessionStore = self.request.app.state.sessions
        is_new = not secret and bool(read_proxy_user(self.request))
        if is_new:
            secret = sessions.create_for_name(self.caller.name)
        now_s = self.controller.clock()
        common = {
            **_frame(self.request, self.settings),
            "title": title,
            "caller": self.caller,
            "may_submit": self.may("user"),
            "is_operator": self.may("operator"),
            "csrf": build_csrf_token(secret) if secret else "",
            "time": build_time_filter(self.zone, now_s),
            "zone_name": str(self.zone),
            "now_s": now_s,
            "problem": self.controller.problem,
            "simulated": self.controller.view().simulated,
            "unzoomed": self._find_unzoomed(),
        }
        response = HTMLResponse(render(template, {**common, **values}))
        if is_new:
            set_session_cookie(response, self.settings, secret)
        return response


def _frame(request: Request, settings: WebSettings) -> dict[str, Any]:
    theme = request.cookies.get(THEME_COOKIE, "")
    path = request.scope["path"].removeprefix(settings.base_path)
    return {
        "base": settings.base_path,
        "path": path,
        "theme": theme if theme in ("light", "dark") else "",
        "version": __version__,
    }


def render_bare(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """Return a page without a caller: the login, or an error."""
    settings: WebSettings = request.app.state.web
    has_session = bool(request.cookies.get(settings.cookie, ""))
    known = {**_frame(request, settings), "has_session": has_session}
    return HTMLResponse(render(template, {**known, **values}), status)


async def _open_page(request: Request) -> PageRequest:
    check_host(request)
    caller = authenticate_request(request, None)
    if not request.app.state.rate_limiter.allow(caller.name):
        raise HTTPException(429, f"too many requests by {caller.name}", headers={"Retry-After": "1"})
    return PageRequest(request, caller)


Opened = Annotated[PageRequest, Depends(_open_page)]


def _read_zoom(
    from_s: Annotated[float | None, Query(alias="from", ge=0, le=1e12)] = None,
    to_s: Annotated[float | None, Query(alias="to", ge=0, le=1e12)] = None,
) -> tuple[float, float] | None:
    if from_s is None or to_s is None:
        return None
    if not to_s > from_s:
        raise ConfigError(f"to is {to_s:g}, expected a time after from, {from_s:g}")
    return from_s, to_s


Zoom = Annotated[tuple[float, float] | None, Depends(_read_zoom)]
"""The time that charts show, by the parameters `from` and `to`; None: all."""


def _redirect_to_login(request: Request) -> Response:
    """Return the way to the login, which says so if a session has ended, and leads back to the page."""
    settings: WebSettings = request.app.state.web
    path = request.scope["path"].removeprefix(settings.base_path)
    asked = {"ended": "true"} if request.cookies.get(settings.cookie) else {}
    if path != "/" and request.method == "GET":
        query = f"?{request.url.query}" if request.url.query else ""
        asked["next"] = f"{path}{query}"
    parameters = f"?{urlencode(asked)}" if asked else ""
    return RedirectResponse(f"{settings.base_path}/login{parameters}", 303)


class PageRoute(APIRoute):
    """A route with errors that are pages, and the login for a caller that is unknown."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of requests."""
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            try:
                return await handle(request)
            except UnknownToken:
                return _redirect_to_login(request)
            except NotFound as error:
                message = show_sentence(error.message)
                return render_bare(request, "error.html", 404, message=message, hint=error.hint)
            except NotAllowed as error:
                message = show_sentence(error.message)
                return render_bare(request, "error.html", 403, message=message, hint=error.hint)
            except WattlineError as error:
                return render_bare(request, "error.html", 422, message=error.message, hint=error.hint)
            except RequestValidationError as error:
                first = error.errors()[0]
                message = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
                return render_bare(request, "error.html", 422, message=message, hint="")
            except HTTPException as error:
                return render_bare(
                    request, "error.html", error.status_code, message=str(error.detail), hint=""
                )

        return handle_page
