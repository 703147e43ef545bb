"""Route of the changes of jobs, as a stream for pages in browsers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response, StreamingResponse

from wattline.service.http.routes import Caller, Service, refuse_unknown_parameters
from wattline.service.live_feed import LiveFeed

live_router = APIRouter(dependencies=[Depends(refuse_unknown_parameters)])


@live_router.get(
    "/api/v1/live",
    tags=["cluster"],
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def follow_changes(
    caller: Caller,
    controller: Service,
    follow: Annotated[bool, Query(description="false: only the first event")] = True,
) -> Response:
    """Send the ids of changed jobs as server-sent events, at most once a second, without end.

    Each event is `{"seq": 12, "jobs": ["3", "5"]}`; `jobs` is null if more than 500 changed. One comes at
    once, and one at least every 10 s.
    """
    return StreamingResponse(
        _stream_changes(controller.live, follow),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def _stream_changes(feed: LiveFeed, follow: bool) -> AsyncIterator[str]:
    stream = feed.subscribe()
    try:
        yield "retry: 2000\n"
        while not feed.is_closed:
            change = await stream.take()
            if change is not None:
                yield change.format()
            if not follow:
                return
    finally:
        feed.unsubscribe(stream)
