from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.service.storage.events import NewEvent
from wattline.service.storage.selection import JobSelection
from wattline.service.storage.store import Store

NUMBERS = range(1, 26)


def accept(number: int) -> NewEvent:
    names = {"name": f"n{number}", "user": "", "team": "", "sweep": "", "fuse": ""}
    data = {**names, "priority": 0.0, "submit_s": 1.0, "submission": {}}
    return NewEvent(1.0, "accepted", str(number), data)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder: Path = tmp_path_factory.mktemp("selection")
    with Store.open(folder) as one:
        one.append(*map(accept, NUMBERS))
        yield one


def spell(pair: tuple[int, int | None]) -> str:
    first, last = pair
    return f"{first}" if last is None else f"{first}..{last}"


@given(spans=st.lists(st.tuples(st.integers(0, 30), st.none() | st.integers(0, 30)), min_size=1, max_size=5))
def test_ids_and_ranges_select_the_numbers_in_them(store: Store, spans: list[tuple[int, int | None]]) -> None:
    selection = JobSelection(jobs=tuple(map(spell, spans)))
    expected = {n for a, b in spans for n in range(a, (a if b is None else b) + 1)} & set(NUMBERS)
    assert [int(job.id) for job in store.select_jobs(selection)] == sorted(expected)


def test_many_ids_and_open_ranges_select_jobs(store: Store) -> None:
    many = JobSelection(jobs=tuple(map(str, range(20_000))))
    assert len(store.select_jobs(many)) == len(NUMBERS)
    assert [job.id for job in store.select_jobs(JobSelection(jobs=("24..",)))] == ["24", "25"]
    assert [job.id for job in store.select_jobs(JobSelection(name="n2?", jobs=("1..21",)))] == ["20", "21"]
