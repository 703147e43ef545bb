"""Server-sent event stream of events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

from wattline.service.controller import Controller

_POLL_S = 0.2
_KEEP_ALIVE_S = 15.0
_KEEP_ALIVE = ": keep-alive\n\n"
_EVENT_PAGE = 100


async def stream_events(controller: Controller, after: int, job: str | None) -> AsyncIterator[str]:
    """Yield the events with a seq above *after*, of one job or all, without end."""
    quiet_since_s = time.monotonic()
    while not controller.streams_closed:
        events = await asyncio.to_thread(controller.store.events, after, job, _EVENT_PAGE)
        for event in (one.redacted() for one in events):
            after = event.seq
            content = {"at_s": event.at_s, "kind": event.kind, "job": event.job, "data": event.data}
            yield f"id: {event.seq}\nevent: {event.kind}\ndata: {json.dumps(content)}\n\n"
        if events:
            quiet_since_s = time.monotonic()
            continue
        if time.monotonic() - quiet_since_s > _KEEP_ALIVE_S:
            quiet_since_s = time.monotonic()
            yield _KEEP_ALIVE
        await asyncio.sleep(_POLL_S)
