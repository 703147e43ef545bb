"""The FastAPI application of the service."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.middleware.gzip import GZipMiddleware

from wattline import __version__
from wattline.service.controller import Controller
from wattline.service.http.access_routes import access_router
from wattline.service.http.auth import TokenStore
from wattline.service.http.base_path import BasePath
from wattline.service.http.bill_routes import bill_router
from wattline.service.http.detail_routes import detail_router
from wattline.service.http.energy_routes import energy_router
from wattline.service.http.job_list_routes import job_list_router
from wattline.service.http.live_routes import live_router
from wattline.service.http.log_routes import log_router
from wattline.service.http.metrics_routes import add_metrics
from wattline.service.http.problems import PROBLEMS, describe_problems, handle_problems
from wattline.service.http.rate_limit import BodyLimit, RateLimiter
from wattline.service.http.routes import router
from wattline.service.http.security_headers import SecurityHeaders
from wattline.service.http.session_routes import session_router
from wattline.service.http.sessions import SessionStore
from wattline.service.http.study_routes import study_router
from wattline.service.http.whatif_routes import whatif_router
from wattline.service.web.app import add_pages
from wattline.service.web_settings import DEFAULT_WEB, WebSettings


def create_app(controller: Controller, *, rate: float = 500.0, web: WebSettings = DEFAULT_WEB) -> FastAPI:
    """Return the application for a started controller; *rate* is the limit of one caller in requests/s."""
    app = FastAPI(
        title="Wattline",
        version=__version__,
        description="Decides when, where and at what power deep-learning training jobs run.",
        responses=PROBLEMS,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    app.state.controller = controller
    app.state.tokens = TokenStore(controller.store, controller.clock, controller.folder)
    app.state.sessions = SessionStore(controller.store, app.state.tokens, controller.clock)
    app.state.web = web
    app.state.whatif = controller.whatif
    app.state.rate_limiter = RateLimiter(rate)
    app.add_middleware(BodyLimit)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)
    if web.base_path:
        app.add_middleware(BasePath, base_path=web.base_path)
    handle_problems(app)
    describe_problems(app)
    app.include_router(job_list_router)
    app.include_router(router)
    app.include_router(session_router)
    app.include_router(live_router)
    app.include_router(detail_router)
    app.include_router(log_router)
    app.include_router(study_router)
    app.include_router(whatif_router)
    app.include_router(energy_router)
    app.include_router(access_router)
    app.include_router(bill_router)
    add_metrics(app, controller)
    add_pages(app)
    return app
