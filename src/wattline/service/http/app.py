"""The FastAPI application of the service."""

from __future__ import annotations

from fastapi import FastAPI

from wattline import __version__
from wattline.service.controller import Controller
from wattline.service.http.access_routes import access_router
from wattline.service.http.auth import TokenStore
from wattline.service.http.energy_routes import energy_router
from wattline.service.http.problems import PROBLEMS, describe_problems, handle_problems
from wattline.service.http.rate_limit import BodyLimit, RateLimiter
from wattline.service.http.routes import router


def create_app(controller: Controller, *, rate: float = 500.0) -> FastAPI:
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
    app.state.rate_limiter = RateLimiter(rate)
    app.add_middleware(BodyLimit)
    handle_problems(app)
    describe_problems(app)
    app.include_router(router)
    app.include_router(energy_router)
    app.include_router(access_router)
    return app
