"""All pages, as part of the service's application."""

from __future__ import annotations

from fastapi import FastAPI

from wattline.service.web.account_pages import account_pages
from wattline.service.web.cluster_pages import cluster_pages
from wattline.service.web.job_pages import job_pages
from wattline.service.web.study_pages import study_pages


def add_pages(app: FastAPI) -> None:
    """Add the routes of all pages."""
    for router in (account_pages, cluster_pages, job_pages, study_pages):
        app.include_router(router)
