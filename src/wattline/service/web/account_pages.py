"""Pages around a session: the login, the files of all pages, the audit log, and the API's documentation."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from wattline.service.audit import read_audit
from wattline.service.http.callers import check_host
from wattline.service.http.session_routes import check_own_path
from wattline.service.web.api_document import list_operations
from wattline.service.web.page import Opened, PageRoute, render_bare
from wattline.service.web.static_files import STATIC

account_pages = APIRouter(route_class=PageRoute, include_in_schema=False)

_SHOWN_CHANGES = 200


@account_pages.get("/login")
async def show_login(
    request: Request,
    failed: Annotated[bool, Query()] = False,
    ended: Annotated[bool, Query()] = False,
    next_path: Annotated[str, Query(alias="next", max_length=2000)] = "",
) -> Response:
    """Show the form for a token; afterwards the browser goes to *next_path* of this service."""
    check_host(request)
    return render_bare(request, "login.html", failed=failed, ended=ended, next=check_own_path(next_path))


@account_pages.get("/static/{version}/{name}")
async def send_static_file(request: Request, version: str, name: str) -> Response:
    """Send the stylesheet or a script."""
    return STATIC.respond(request, version, name)


@account_pages.get("/docs")
async def show_documentation(request: Request) -> Response:
    """Show all operations of the API, from its OpenAPI document."""
    check_host(request)
    document: dict[str, Any] = request.app.openapi()
    return render_bare(request, "docs.html", groups=list_operations(document), about=document["info"])


@account_pages.get("/audit")
def show_audit_log(page: Opened, since: Annotated[float, Query(ge=0, le=1e12)] = 0.0) -> Response:
    """Show what operators did, the latest first."""
    page.caller.require_role("operator")
    records: list[dict[str, Any]] = []
    after = 0
    while len(found := read_audit(page.controller.store, since_s=since, after=after, limit=1000)) == 1000:
        records, after = (records + found)[-_SHOWN_CHANGES:], found[-1]["seq"]
    shown = (records + found)[-_SHOWN_CHANGES:][::-1]
    return page.render("audit.html", "Audit log", records=shown, most=_SHOWN_CHANGES)
