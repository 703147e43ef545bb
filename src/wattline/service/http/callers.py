"""The caller of a request: by a bearer token, by the cookie of a session, or by the header of a proxy."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request

from wattline.errors import NotAllowed
from wattline.service.http.auth import Principal, TokenStore
from wattline.service.http.sessions import SessionStore, check_csrf_token
from wattline.service.web_settings import WebSettings

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def authenticate_request(request: Request, bearer: str | None) -> Principal:
    """Return the caller; raise `UnknownToken` if there is none.

    A browser sends cookies with requests of other sites, too. So a request with a cookie that changes
    something needs this service's own Origin and the CSRF token of its session.
    """
    tokens: TokenStore = request.app.state.tokens
    if bearer is not None:
        return tokens.authenticate(bearer)
    sessions: SessionStore = request.app.state.sessions
    settings: WebSettings = request.app.state.web
    secret, name = request.cookies.get(settings.cookie, ""), read_proxy_user(request)
    if secret or name:
        check_host(request)
    is_safe = request.method in _SAFE_METHODS
    if secret:
        caller = sessions.authenticate(secret)
        if name and caller.name != name:
            raise NotAllowed(f"the session is of {caller.name}, and the proxy named {name}", "load / again")
        if not is_safe:
            check_origin(request)
            check_csrf_token(secret, request.headers.get("X-CSRF-Token", ""))
    elif name and is_safe:
        caller = sessions.authenticate_name(name)
    else:
        caller = tokens.authenticate(None)
    return replace(caller, has_cookie=True)


def check_host(request: Request) -> None:
    """Raise `NotAllowed` if the request names another host than this service."""
    settings: WebSettings = request.app.state.web
    host = request.headers.get("host", "")
    if not settings.accepts_host(host):
        raise NotAllowed(
            f"the header Host is {host[:100]!r}, expected a name of this service",
            "add it to hosts in the table [web] of settings.toml",
        )


def check_origin(request: Request) -> None:
    """Raise `NotAllowed` unless the header Origin is this service's own."""
    settings: WebSettings = request.app.state.web
    expected = settings.origin or f"{request.url.scheme}://{request.headers.get('host', '')}"
    origin = request.headers.get("origin", "")
    if origin != expected:
        raise NotAllowed(
            f"the header Origin is {origin[:100]!r}, expected {expected}",
            "behind a proxy set origin in the table [web] of settings.toml",
        )


def read_proxy_user(request: Request) -> str:
    """Return the name that a trusted proxy gives its user; empty: none."""
    settings: WebSettings = request.app.state.web
    if not settings.user_header or request.client is None or request.client.host not in settings.proxies:
        return ""
    return request.headers.get(settings.user_header, "")
