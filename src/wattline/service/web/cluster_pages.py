"""Pages of the whole cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from wattline.service.web.overview import SPANS, build_overview
from wattline.service.web.page import Opened, PageRoute, Zoom

cluster_pages = APIRouter(route_class=PageRoute, include_in_schema=False)


@cluster_pages.get("/")
def show_overview(
    page: Opened, zoom: Zoom, span: Annotated[Literal["1h", "6h", "1d", "7d"], Query()] = "1h"
) -> Response:
    """Show power, GPUs and the queue."""
    overview = build_overview(page.controller, page.zone, span, zoom)
    return page.render("overview.html", "Overview", overview=overview, span=span, spans=list(SPANS))
