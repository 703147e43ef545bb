"""Logs and events as server-sent events: told as they come, until the job is over or the caller is gone."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

from wattline.service.controller import Controller
from wattline.service.job_logs import Tail, log_path

_FOLLOW_S = 0.2
_KEEP_ALIVE_S = 15.0


async def log_events(
    controller: Controller, job: str, attempt: int | None, rank: int, tail: int | None, since: str = ""
) -> AsyncIterator[str]:
    """Lines of a log as they come, over all attempts unless one was named; `end` says how it ended.

    *since* is the id of the last event that the caller has: it goes on after that.
    """
    current: Tail | None = None
    quiet_s = time.monotonic()
    while not controller.leaving:
        state = (await asyncio.to_thread(controller.job, job)).state
        over = state not in ("PENDING", "RUNNING")
        path = log_path(controller.folder, job, attempt, rank)
        if path is not None and (current is None or current.path != path):
            current = Tail(path)
            number, _, offset = since.partition(":")
            if number == path.parent.name and offset.isdecimal():
                current.skip_to(int(offset))
            elif tail is not None:
                current.skip_to_last(tail)
            tail, since = None, ""
        lines = [] if current is None else await asyncio.to_thread(current.lines, over)
        for place, line in enumerate(lines, 1):
            if current is not None and current.path is not None and place == len(lines):
                yield f"id: {current.path.parent.name}:{current.offset}\n"
            yield "".join(f"data: {part}\n" for part in line.split("\r")) + "\n"
        if lines:
            quiet_s = time.monotonic()
            continue
        if over:
            yield f"event: end\ndata: {state}\n\n"
            return
        if time.monotonic() - quiet_s > _KEEP_ALIVE_S:
            quiet_s = time.monotonic()
            yield ": still there\n\n"
        await asyncio.sleep(_FOLLOW_S)


async def event_stream(controller: Controller, after: int, job: str | None) -> AsyncIterator[str]:
    """Events after number *after*, of a job or all, without end."""
    quiet_s = time.monotonic()
    while not controller.leaving:
        found = await asyncio.to_thread(controller.store.events, after, job, 100)
        for event in (one.public() for one in found):
            after = event.seq
            words = {"at_s": event.at_s, "kind": event.kind, "job": event.job, "data": event.data}
            yield f"id: {event.seq}\nevent: {event.kind}\ndata: {json.dumps(words)}\n\n"
        if found:
            quiet_s = time.monotonic()
            continue
        if time.monotonic() - quiet_s > _KEEP_ALIVE_S:
            quiet_s = time.monotonic()
            yield ": still there\n\n"
        await asyncio.sleep(_FOLLOW_S)
