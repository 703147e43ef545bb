"""Server-sent event stream of events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from wattline.service.event_feed import EventFeed, HistoryPage

_KEEP_ALIVE_S = 15.0
_KEEP_ALIVE = b": keep-alive\n\n"


async def stream_events(feed: EventFeed, after: int | None, job: str | None) -> AsyncIterator[bytes]:
    """Yield events without end: those after the sequence number *after*, or those from now on if it is None.

    A stream that reads too slowly ends with the event `dropped`. Its id is where to resume.
    """
    if after is not None:
        async for page in _read_pages(feed, after, job):
            after = page.last
            yield page.text
    subscription = feed.subscribe(job, after)
    try:
        if after is None:
            yield b"id: %d\n\n" % subscription.position  # where to resume if the connection breaks now
        elif after < subscription.position:  # events between the last page and the subscription
            async for page in _read_pages(feed, after, job, subscription.position):
                yield page.text
        while not feed.is_closed:
            text = await subscription.take(_KEEP_ALIVE_S)
            if text:
                yield text
            elif subscription.dropped:
                yield _format_drop(subscription.position)
                return
            elif not feed.is_closed:
                yield _KEEP_ALIVE
    finally:
        feed.unsubscribe(subscription)


async def _read_pages(
    feed: EventFeed, after: int, job: str | None, until: int | None = None
) -> AsyncIterator[HistoryPage]:
    is_full = True
    while is_full:
        page = await feed.read_history(after, job, until)
        if page.text:
            yield page
        after, is_full = page.last, page.is_full


def _format_drop(position: int) -> bytes:
    reason = "the stream was read too slowly; continue with Last-Event-ID"
    data = json.dumps({"resume_after": position, "reason": reason})
    return f"id: {position}\nevent: dropped\ndata: {data}\n\n".encode()
