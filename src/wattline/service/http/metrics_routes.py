"""Routes of the metrics: the text format of Prometheus, and a Grafana dashboard that reads them."""

from __future__ import annotations

import json
from importlib.resources import files

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from wattline.service.controller import Controller
from wattline.service.http.auth import TokenStore
from wattline.service.http.routes import refuse_unknown_parameters
from wattline.service.metrics.collector import ServiceCollector

metrics_router = APIRouter(dependencies=[Depends(refuse_unknown_parameters)])


def add_metrics(app: FastAPI, controller: Controller) -> None:
    """Add the routes of the metrics to an application."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServiceCollector(controller))
    app.state.metrics_registry = registry
    app.include_router(metrics_router)


def _check_token(request: Request) -> None:
    """Raise unless the caller may read metrics: any caller may, unless the settings require a token.

    The OpenAPI document therefore states no security for these routes.
    """
    controller: Controller = request.app.state.controller
    if controller.settings.metrics.require_token:
        tokens: TokenStore = request.app.state.tokens
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        tokens.authenticate(token if scheme.lower() == "bearer" else None)


@metrics_router.get(
    "/metrics",
    tags=["health"],
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    dependencies=[Depends(_check_token)],
)
def show_metrics(request: Request) -> Response:
    """Return all metrics in the text format of Prometheus."""
    return Response(generate_latest(request.app.state.metrics_registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


@metrics_router.get("/metrics/grafana.json", tags=["health"], dependencies=[Depends(_check_token)])
def show_grafana_dashboard() -> JSONResponse:
    """Return a Grafana dashboard of these metrics, to be imported there."""
    return JSONResponse(read_grafana_dashboard())


def read_grafana_dashboard() -> dict[str, object]:
    """Return the dashboard that is part of the package."""
    text = files("wattline.service.metrics").joinpath("grafana_dashboard.json").read_text("utf-8")
    dashboard: dict[str, object] = json.loads(text)
    return dashboard
