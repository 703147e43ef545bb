"""Server-sent event streams of job logs and of events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

from wattline.service.controller import Controller
from wattline.service.job_logs import LogTail, find_log
from wattline.service.states import LIVE_STATES

_POLL_S = 0.2
_KEEP_ALIVE_S = 15.0
_KEEP_ALIVE = ": keep-alive\n\n"
_EVENT_PAGE = 100


async def stream_log(
    controller: Controller, job: str, attempt: int | None, rank: int, tail: int | None, since: str = ""
) -> AsyncIterator[str]:
    """Yield new lines of a log until the job ends; the last event is `end`, with its state.

    With *attempt* None the stream follows all attempts. *since* is the Last-Event-ID, `attempt:offset`: the
    stream continues after it. *tail* limits the lines of the first log; None: all.
    """
    log: LogTail | None = None
    quiet_since_s = time.monotonic()
    while not controller.streams_closed:
        state = (await asyncio.to_thread(controller.job, job)).state
        ended = state not in LIVE_STATES
        path = find_log(controller.folder, job, attempt, rank)
        if path is not None and (log is None or log.path != path):
            log = LogTail(path)
            number, _, offset = since.partition(":")
            if number == path.parent.name and offset.isdecimal():
                log.skip_to_offset(int(offset))
            elif tail is not None:
                log.skip_to_last(tail)
            tail, since = None, ""
        lines = [] if log is None else await asyncio.to_thread(log.read_lines, ended)
        for number_of_line, line in enumerate(lines, 1):
            if log is not None and log.path is not None and number_of_line == len(lines):
                yield f"id: {log.path.parent.name}:{log.offset}\n"
            yield "".join(f"data: {part}\n" for part in line.split("\r")) + "\n"
        if lines:
            quiet_since_s = time.monotonic()
            continue
        if ended:
            yield f"event: end\ndata: {state}\n\n"
            return
        if time.monotonic() - quiet_since_s > _KEEP_ALIVE_S:
            quiet_since_s = time.monotonic()
            yield _KEEP_ALIVE
        await asyncio.sleep(_POLL_S)


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
