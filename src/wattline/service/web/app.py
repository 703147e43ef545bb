"""All pages, as part of the service's application."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from wattline.service.web.account_pages import account_pages
from wattline.service.web.cluster_pages import cluster_pages
from wattline.service.web.job_pages import job_pages
from wattline.service.web.page import render_bare
from wattline.service.web.study_pages import study_pages


def add_pages(app: FastAPI) -> None:
    """Add the routes of all pages."""
    for router in (account_pages, cluster_pages, job_pages, study_pages):
        app.include_router(router)
    answer_api = app.exception_handlers[HTTPException]

    @app.exception_handler(404)
    async def show_missing_page(request: Request, error: HTTPException) -> Response:
        """Answer a browser with a page, and all other callers with a problem document."""
        path = request.scope["path"].removeprefix(request.app.state.web.base_path)
        if path.startswith("/api/") or "text/html" not in request.headers.get("accept", ""):
            answer: Response = await answer_api(request, error)  # type: ignore[misc]
            return answer
        return render_bare(request, "error.html", 404, message=f"There is no page {path}.", hint="")
