"""Changes for pages: one reader for all streams, ids together, and none lost by a slow page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from wattline.service.live_feed import LiveChange, LiveFeed
from wattline.service.storage.events import NewEvent
from wattline.service.storage.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path) as one:
        yield one


def notice(job: str) -> NewEvent:
    return NewEvent(1.0, "notice", job, {"message": ""})


def test_every_stream_gets_the_ids_of_changed_jobs(store: Store) -> None:
    async def follow() -> None:
        feed = LiveFeed(store)
        streams = [feed.subscribe() for _ in range(5)]
        for stream in streams:
            first = await stream.take()
            assert first == LiveChange(store.last_seq, frozenset())
        store.append(notice("7"), notice("8"), notice("7"))
        for stream in streams:
            change = await asyncio.wait_for(stream.take(), 30)
            assert change is not None
            assert change.jobs == {"7", "8"}
            assert change.seq == store.last_seq
        feed.close()
        assert await asyncio.wait_for(streams[0].take(), 30) is None

    asyncio.run(follow())


def test_a_slow_page_gets_all_changes_together(store: Store) -> None:
    async def follow() -> None:
        feed = LiveFeed(store)
        stream = feed.subscribe()
        stream.put(LiveChange(3, frozenset({"1"})))
        stream.put(LiveChange(5, frozenset({"2", "1"})))
        assert await stream.take() == LiveChange(5, frozenset({"1", "2"}))
        stream.put(LiveChange(6, None))
        stream.put(LiveChange(7, frozenset({"1"})))
        assert await stream.take() == LiveChange(7, None)
        feed.close()

    asyncio.run(follow())


def test_many_changes_are_sent_as_unknown(store: Store) -> None:
    many = LiveChange(1, frozenset(map(str, range(400))))
    assert many.merge(LiveChange(2, frozenset(map(str, range(300, 500))))).jobs is not None
    assert many.merge(LiveChange(2, frozenset(map(str, range(300, 900))))) == LiveChange(2, None)
    feed = LiveFeed(store)
    store.append(*(notice(str(n)) for n in range(501)))
    assert feed._read(0) == LiveChange(501, None)
    assert feed._read(500) == LiveChange(501, frozenset({"500"}))
    feed.close()


def test_a_change_is_a_server_sent_event() -> None:
    text = LiveChange(12, frozenset({"10", "9"})).format()
    assert text.startswith("id: 12\nevent: change\ndata: ")
    assert text.endswith("\n\n")
    assert json.loads(text.splitlines()[2].removeprefix("data: ")) == {"seq": 12, "jobs": ["9", "10"]}
