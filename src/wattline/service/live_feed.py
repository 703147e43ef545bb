"""Ids of changed jobs, for the pages in browsers: one reader for all of them, at most once a second.

A page that reads slowly gets the changes of several seconds together, so none is ever dropped.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import suppress
from typing import NamedTuple

from wattline.service.storage.store import Store

_INTERVAL_S = 1.0
_TICK_S = 10.0  # power samples are written that often; a message shows that the connection works
_MOST_IDS = 500  # in a message; a page with more changes reads everything again
_SLICE, _SLICE_PAUSE_S = 16, 0.005  # streams that are woken at once; requests are answered in between


class LiveChange(NamedTuple):
    """Jobs that changed; *jobs* None: more than a message holds."""

    seq: int
    jobs: frozenset[str] | None

    def merge(self, other: LiveChange) -> LiveChange:
        """Return both changes as one."""
        jobs = None if self.jobs is None or other.jobs is None else self.jobs | other.jobs
        return LiveChange(max(self.seq, other.seq), None if jobs and len(jobs) > _MOST_IDS else jobs)

    def format(self) -> str:
        """Return the change as a server-sent event."""
        jobs = None if self.jobs is None else sorted(self.jobs, key=int)
        data = json.dumps({"seq": self.seq, "jobs": jobs}, separators=(",", ":"))
        return f"id: {self.seq}\nevent: change\ndata: {data}\n\n"


class LiveStream:
    """The changes that one page has not received yet. Used by its event loop only."""

    def __init__(self, seq: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.change: LiveChange | None = LiveChange(seq, frozenset())  # the first shows the connection
        self.woken = asyncio.Event()
        self.woken.set()

    def put(self, change: LiveChange) -> None:
        """Add a change."""
        self.change = change if self.change is None else self.change.merge(change)
        self.woken.set()

    async def take(self) -> LiveChange | None:
        """Wait for a change and return it; None: the feed was closed."""
        await self.woken.wait()
        self.woken.clear()
        change, self.change = self.change, None
        return change


class LiveFeed:
    """The changes of a store for all pages. `close` ends the thread and the streams."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()  # guards the streams
        self._streams: set[LiveStream] = set()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None
        self.is_closed = False
        store.add_listener(self._changed.set)

    def subscribe(self) -> LiveStream:
        """Start a stream of the changes from now on."""
        with self._lock:
            stream = LiveStream(self._store.last_seq)
            self._streams.add(stream)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="wattline-live", daemon=True)
                self._thread.start()
            return stream

    def unsubscribe(self, stream: LiveStream) -> None:
        """End a stream."""
        with self._lock:
            self._streams.discard(stream)

    def close(self) -> None:
        """Stop reading, and let all streams end."""
        self.is_closed = True
        self._changed.set()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            with suppress(RuntimeError):  # its loop has ended
                stream.loop.call_soon_threadsafe(stream.woken.set)

    def _run(self) -> None:
        position = self._store.last_seq
        while not self.is_closed:
            self._changed.wait(_TICK_S)
            self._changed.clear()
            with self._lock:
                streams = list(self._streams)
            if self.is_closed:
                return
            if not streams:
                position = self._store.last_seq
                continue
            change = self._read(position)
            position = change.seq
            for first in range(0, len(streams), _SLICE):
                for stream in streams[first : first + _SLICE]:
                    with suppress(RuntimeError):
                        stream.loop.call_soon_threadsafe(stream.put, change)
                time.sleep(_SLICE_PAUSE_S)
            time.sleep(_INTERVAL_S)

    def _read(self, after: int) -> LiveChange:
        last = self._store.last_seq
        found = self._store.read_rows(
            "SELECT DISTINCT job FROM event WHERE seq > ? AND seq <= ? AND job IS NOT NULL LIMIT ?",
            (after, last, _MOST_IDS + 1),
        )
        jobs = frozenset(job for (job,) in found)
        return LiveChange(last, None if len(jobs) > _MOST_IDS else jobs)
