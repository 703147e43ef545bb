from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from wattline.service import event_feed
from wattline.service.event_feed import EventFeed
from wattline.service.http.sse import stream_events
from wattline.service.storage.events import NewEvent
from wattline.service.storage.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path) as one:
        yield one


def note(number: int, job: str | None = None, **data: Any) -> NewEvent:
    return NewEvent(float(number), "note", job, {"number": number, **data})


def parse(text: bytes) -> list[dict[str, Any]]:
    """Return the contents of the events in a piece of a stream, each with its id and kind."""
    found = []
    for block in text.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            found.append({**json.loads(fields["data"]), "id": int(fields["id"]), "kind": fields["event"]})
    return found


async def take(stream: AsyncIterator[bytes], count: int) -> list[dict[str, Any]]:
    """Return the next *count* events of a stream."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += parse(await asyncio.wait_for(anext(stream), 20))
    return found


async def begin(stream: AsyncIterator[bytes]) -> bytes:
    """Return the first piece of a stream, after which it is subscribed."""
    return await asyncio.wait_for(anext(stream), 20)


def test_a_stream_starts_now_unless_it_asks_for_history(store: Store) -> None:
    store.append(*(note(n) for n in range(1, 1001)))
    feed = EventFeed(store)

    async def follow() -> None:
        live, history = stream_events(feed, None, None), stream_events(feed, 990, None)
        assert await begin(live) == b"id: 1000\n\n"
        assert [event["id"] for event in await take(history, 10)] == list(range(991, 1001))
        later = asyncio.create_task(take(history, 1))
        await asyncio.to_thread(store.append, note(1001))
        assert [event["data"]["number"] for event in await take(live, 1)] == [1001]
        assert [event["id"] for event in await later] == [1001]

    asyncio.run(follow())
    feed.close()


@pytest.mark.slow
def test_all_history_comes_in_pages_without_gaps_while_events_are_written(store: Store) -> None:
    store.append(*(note(n, str(n % 3)) for n in range(1, 3001)))
    feed = EventFeed(store)

    async def follow() -> None:
        everything, one_job = stream_events(feed, 0, None), stream_events(feed, 0, "1")
        first = asyncio.create_task(take(everything, 5000))
        second = asyncio.create_task(take(one_job, 1667))
        for n in range(3001, 5001):
            if n % 100 == 0:
                await asyncio.to_thread(store.append, *(note(m, str(m % 3)) for m in range(n - 99, n + 1)))
        assert [event["id"] for event in await first] == list(range(1, 5001))
        assert [event["id"] for event in await second] == [n for n in range(1, 5001) if n % 3 == 1]

    asyncio.run(follow())
    feed.close()


def test_many_streams_are_served_by_one_reading(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = EventFeed(store)
    reads: list[int] = []
    read = store.event_texts

    def count_reads(*arguments: Any) -> Any:
        reads.append(1)
        return read(*arguments)

    monkeypatch.setattr(store, "event_texts", count_reads)

    async def follow() -> None:
        streams = [stream_events(feed, None, None) for _ in range(100)]
        for stream in streams:
            await begin(stream)
        tasks = [asyncio.create_task(take(stream, 20)) for stream in streams]
        for n in range(20):
            await asyncio.to_thread(store.append, note(n))
        for found in await asyncio.gather(*tasks):
            assert [event["data"]["number"] for event in found] == list(range(20))

    asyncio.run(follow())
    feed.close()
    assert len(reads) <= 2 * 20


def test_a_stream_that_is_not_read_is_dropped_and_resumes_without_a_gap(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "_BACKLOG_BYTES", 10_000)
    feed = EventFeed(store)

    async def follow() -> None:
        slow = stream_events(feed, None, None)
        assert await begin(slow) == b"id: 0\n\n"
        subscription = next(iter(feed._subscriptions))
        for first in range(1, 2001, 50):
            events = [note(n, text="x" * 100) for n in range(first, first + 50)]
            await asyncio.to_thread(store.append, *events)
        while not subscription.dropped:
            await asyncio.sleep(0.01)
        assert subscription._backlog_bytes <= 10_000 or len(subscription._backlog) == 1
        pieces = [piece async for piece in slow]  # it ends by itself
        *events, dropped = parse(b"".join(pieces))
        assert dropped["kind"] == "dropped"
        assert "Last-Event-ID" in dropped["reason"]
        assert [event["id"] for event in events] == list(range(1, dropped["id"] + 1))
        assert not feed._subscriptions
        rest = await take(stream_events(feed, dropped["id"], None), 2000 - dropped["id"])
        assert [event["id"] for event in rest] == list(range(dropped["id"] + 1, 2001))

    asyncio.run(follow())
    feed.close()


def test_streams_end_when_the_feed_is_closed(store: Store) -> None:
    feed = EventFeed(store)

    async def follow() -> None:
        stream = stream_events(feed, None, None)
        await begin(stream)
        rest = asyncio.create_task(anext(stream, None))
        await asyncio.sleep(0)
        await asyncio.to_thread(feed.close)
        assert await asyncio.wait_for(rest, 20) is None
        assert [piece async for piece in stream_events(feed, 0, None)] == []

    asyncio.run(follow())


def test_the_values_of_environment_variables_are_not_sent(store: Store) -> None:
    spec = {"command": ["true"], "env": {"KEY": "secret"}}
    names = {"name": "x", "user": "", "team": "", "sweep": "", "fuse": ""}
    data = {**names, "priority": 0.0, "submit_s": 1.0, "submission": {"spec": spec}}
    store.append(NewEvent(1.0, "accepted", "1", data))
    feed = EventFeed(store)

    async def follow() -> None:
        (event,) = await take(stream_events(feed, 0, None), 1)
        assert event["data"]["submission"]["spec"]["env"] == {"KEY": "…"}

    asyncio.run(follow())
    feed.close()
