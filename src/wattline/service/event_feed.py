"""Distribution of events to streams: one thread reads new events once, and every stream gets the same text.

Streams are asyncio tasks, of one or several event loops. A stream that falls behind by more than a limit is
dropped, with the place to resume from, so that memory is bounded. History is read by one other thread, page
by page.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from wattline.service.storage.events import redact_submission
from wattline.service.storage.store import Store

_PAGE_EVENTS = 500
_CACHED_PAGES = 16  # full pages of history, which many streams may ask for
_INTERVAL_S = 0.1  # between two deliveries; events in between are sent together
_INTERVAL_PER_STREAM_S = 0.001
_SLICE, _SLICE_PAUSE_S = 16, 0.005  # streams that are woken at once; requests are answered in between
_PAGE_PAUSE_S = 0.005  # between two pages of history, whatever number of streams reads it
_BACKLOG_BYTES = 1 << 20  # of one stream


class EventText(NamedTuple):
    """Server-sent events, encoded once for all streams, up to the sequence number *last*."""

    last: int
    text: bytes


class HistoryPage(NamedTuple):
    """A page of stored events; more follow if it *is_full*."""

    last: int
    text: bytes
    is_full: bool


class EventSubscription:
    """The events of one stream that were not sent yet. Used by the event loop of the stream only."""

    def __init__(self, job: str | None, position: int, cut: bool) -> None:
        self.job, self.position = job, position  # only events after *position* come
        self._cut = cut  # the first chunk may have earlier ones
        self.loop = asyncio.get_running_loop()
        self.dropped = False  # it was too slow: no more events come
        self._backlog: deque[EventText] = deque()
        self._backlog_bytes = 0
        self._woken = asyncio.Event()

    def put(self, chunk: EventText) -> None:
        """Add events, or drop the stream if its backlog is full."""
        if self.dropped or chunk.last <= self.position:
            return
        if self._cut:  # its first events may have been sent as history
            chunk, self._cut = _cut(chunk, self.position), False
        if self._backlog and self._backlog_bytes + len(chunk.text) > _BACKLOG_BYTES:
            self.dropped = True
        else:
            self._backlog.append(chunk)
            self._backlog_bytes += len(chunk.text)
        self._woken.set()

    def wake(self) -> None:
        """End the current or the next `take`."""
        self._woken.set()

    async def take(self, timeout_s: float) -> bytes:
        """Return all events that wait, at once if there are some; empty after *timeout_s* or a `wake`."""
        if not self._backlog and not self.dropped:
            try:
                await asyncio.wait_for(self._woken.wait(), timeout_s)
            except TimeoutError:
                return b""
        self._woken.clear()
        text = b"".join(chunk.text for chunk in self._backlog)
        if self._backlog:
            self.position = self._backlog[-1].last
        self._backlog.clear()
        self._backlog_bytes = 0
        return text


class EventFeed:
    """New events of a store for all streams. `close` ends the thread and wakes the streams."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()  # guards the subscriptions and the position
        self._subscriptions: set[EventSubscription] = set()
        self._position = 0  # sequence number of the last event that was delivered
        self._changed = threading.Event()
        self._closed = False
        self._pages: dict[tuple[int, str | None], HistoryPage] = {}
        self._page_end_s = 0.0
        self._history = ThreadPoolExecutor(1, "wattline-history")
        self._thread: threading.Thread | None = None
        store.add_listener(self._changed.set)

    @property
    def is_closed(self) -> bool:
        """True once streams have to end."""
        return self._closed

    def close(self) -> None:
        """Stop reading, and let all streams end."""
        self._closed = True
        self._changed.set()
        self._history.shutdown(wait=False)
        with self._lock:
            subscriptions = list(self._subscriptions)
        for one in subscriptions:
            _call(one.loop, one.wake)

    def subscribe(self, job: str | None, after: int | None = None) -> EventSubscription:
        """Start a subscription of the events from now on, of one job or all.

        *after* is the last event that was read as history. If the subscription has a larger position, those
        in between have to be read, too.
        """
        with self._lock:
            if not self._subscriptions:
                self._position = self._store.last_seq
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="wattline-events", daemon=True)
                self._thread.start()
            ahead = after is not None and after > self._position
            subscription = EventSubscription(job, max(after or 0, self._position), ahead)
            self._subscriptions.add(subscription)
            return subscription

    def unsubscribe(self, subscription: EventSubscription) -> None:
        """End a subscription."""
        with self._lock:
            self._subscriptions.discard(subscription)

    async def read_history(self, after: int, job: str | None, until: int | None = None) -> HistoryPage:
        """Return a page of the events after a sequence number, up to *until*."""
        if self._closed:
            return HistoryPage(after, b"", False)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._history, self._read_page, after, job, until)

    def _read_page(self, after: int, job: str | None, until: int | None) -> HistoryPage:
        time.sleep(max(self._page_end_s + _PAGE_PAUSE_S - time.monotonic(), 0.0))
        try:
            return self._find_page(after, job, until)
        finally:
            self._page_end_s = time.monotonic()

    def _find_page(self, after: int, job: str | None, until: int | None) -> HistoryPage:
        page = self._pages.get((after, job)) if until is None else None
        if page is not None:
            return page
        events = self._store.event_texts(after, job, _PAGE_EVENTS, until)
        text = b"".join(format_event(*event) for event in events)
        page = HistoryPage(events[-1][0] if events else after, text, len(events) == _PAGE_EVENTS)
        if page.is_full and until is None:  # it can never change
            self._pages[after, job] = page
            while len(self._pages) > _CACHED_PAGES:
                self._pages.pop(next(iter(self._pages)))
        return page

    def forget_history(self) -> None:
        """Drop the cached pages, after events were deleted."""
        with suppress(RuntimeError):  # it is closed
            self._history.submit(self._pages.clear)

    # -- the reader thread

    def _run(self) -> None:
        while not self._closed:
            self._changed.wait()
            self._changed.clear()
            with self._lock:
                position, wanted = self._position, bool(self._subscriptions)
            if not wanted or self._closed:
                continue
            events = self._store.event_texts(position, None, _PAGE_EVENTS, None)
            if not events:
                continue
            texts = [
                (job, EventText(seq, format_event(seq, at_s, kind, job, data)))
                for seq, at_s, kind, job, data in events
            ]
            with self._lock:
                self._position = events[-1][0]
                subscriptions = list(self._subscriptions)
            self._deliver(texts, subscriptions)
            if len(events) == _PAGE_EVENTS:
                self._changed.set()
            else:
                time.sleep(max(_INTERVAL_S, _INTERVAL_PER_STREAM_S * len(subscriptions)))

    def _deliver(
        self, texts: Sequence[tuple[str | None, EventText]], subscriptions: Sequence[EventSubscription]
    ) -> None:
        chunks: dict[str | None, EventText] = {None: _join([text for _, text in texts])}
        for job, text in texts:
            if job is not None:
                chunks[job] = _join([chunks[job], text]) if job in chunks else text
        wanted = [(one, chunks[one.job]) for one in subscriptions if one.job in chunks]
        for first in range(0, len(wanted), _SLICE):
            if first:
                time.sleep(_SLICE_PAUSE_S)
            for one, chunk in wanted[first : first + _SLICE]:
                _call(one.loop, one.put, chunk)


def format_event(seq: int, at_s: float, kind: str, job: str | None, data: str) -> bytes:
    """Return a stored event as a server-sent event; *data* is JSON, without secrets in the result."""
    content = redact_submission(data) if kind == "accepted" else data
    head = json.dumps({"at_s": at_s, "kind": kind, "job": job})
    return f'id: {seq}\nevent: {kind}\ndata: {head[:-1]}, "data": {content}}}\n\n'.encode()


def _cut(chunk: EventText, after: int) -> EventText:
    """Return a chunk without the events up to *after*."""
    events = chunk.text.split(b"\n\n")[:-1]
    later = [event + b"\n\n" for event in events if int(event[4 : event.index(b"\n")]) > after]
    return EventText(chunk.last, b"".join(later))


def _join(texts: Sequence[EventText]) -> EventText:
    return EventText(texts[-1].last, b"".join(text.text for text in texts))


def _call(loop: asyncio.AbstractEventLoop, function: object, *arguments: object) -> None:
    """Call a function in an event loop; nothing happens if the loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)  # type: ignore[arg-type]
