"""Lists of jobs: filters, order and counts equal those of a plain program over all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from web_page import write_jobs

from wattline.service.storage.events import NewEvent
from wattline.service.storage.job_list import SORTS, JobFilter, count_jobs, list_owners, read_job_list
from wattline.service.storage.projection import JobRow
from wattline.service.storage.store import Store

NOW_S = 2e9


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("list")
    write_jobs(folder, 300, 20)
    with Store.open(folder) as one:
        yield one


def ran_s(row: JobRow) -> float:
    return row.service_s


KEYS = {
    "id": lambda row: row.number,
    "name": lambda row: row.name.lower(),
    "state": lambda row: row.state,
    "user": lambda row: row.user,
    "team": lambda row: row.team,
    "priority": lambda row: row.priority,
    "gpus": lambda row: row.submission["columns"]["gpus"],
    "submitted": lambda row: row.submit_s,
    "waited": lambda row: (NOW_S if row.end_s is None else row.end_s) - row.submit_s - row.service_s,
    "ran": ran_s,
    "progress": lambda row: row.completed_fraction,
    "energy": lambda row: row.energy_j,
}


@pytest.mark.parametrize("sort", SORTS)
def test_every_order_is_that_of_the_values(store: Store, sort: str) -> None:
    expected = sorted(store.jobs(), key=lambda row: (KEYS[sort](row), row.number))
    for descending, filter in product((False, True), (JobFilter(), JobFilter(text="Train"))):
        order = expected[::-1] if descending else expected
        pages = [
            read_job_list(store, filter, NOW_S, sort=sort, descending=descending, offset=at, limit=70)
            for at in range(0, 300, 70)
        ]
        assert [row.id for page in pages for row in page] == [row.id for row in order]


@pytest.mark.parametrize(
    ("filter", "matches"),
    [
        (JobFilter(states=("FAILED", "PENDING")), lambda row: row.state in ("FAILED", "PENDING")),
        (JobFilter(team="team-3"), lambda row: row.team == "team-3"),
        (JobFilter(text="TRAIN-5-"), lambda row: "train-5-" in row.name),
        (JobFilter(text="17"), lambda row: "17" in row.name or row.id == "17"),
        (JobFilter(text="' OR 1=1 --"), lambda row: False),
        (JobFilter(after=20, before=40), lambda row: 20 < row.number < 40),
        (JobFilter(ids=("5", "9", "1000")), lambda row: row.id in ("5", "9")),
        (JobFilter(ids=()), lambda row: False),
        (JobFilter(condition="state = 'PENDING'"), lambda row: row.state == "PENDING"),
        (JobFilter(since_s=2e10), lambda row: row.end_s is None),
        (JobFilter(until_s=0.0), lambda row: False),
        (
            JobFilter(team="team-1", text="train", states=("FAILED",)),
            lambda row: (row.team, row.state) == ("team-1", "FAILED"),
        ),
    ],
)  # fmt: skip
def test_filters_and_counts_agree_with_the_rows(store: Store, filter: JobFilter, matches: object) -> None:
    assert callable(matches)
    expected = [row for row in store.jobs() if matches(row)]
    assert [row.id for row in read_job_list(store, filter, NOW_S, limit=1000)] == [row.id for row in expected]
    assert count_jobs(store, filter) == dict(Counter(row.state for row in expected))


def write_named(store: Store, *owned: tuple[str, str, str]) -> None:
    """Write a job for each name, user and team."""
    (like,) = [row for row in store.jobs() if row.id == "1"]
    first = len(store.jobs()) + 1
    store.append(
        *(
            NewEvent(1e9, "accepted", str(number), {
                "name": name, "user": user, "team": team, "priority": 0.0, "sweep": "", "submit_s": 1e9,
                "fuse": "", "submission": like.submission,
            })
            for number, (name, user, team) in enumerate(owned, first)
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100%", ["100% sure"]),
        ("a_b", ["a_b"]),
        ("\\", ["back\\slash"]),
        ("ÄRGER", ["Ärger"]),
        ("ärger", []),  # SQLite folds the case of ASCII letters only
        ("Är", ["Ärger"]),
        ("%", ["100% sure"]),
    ],
)  # fmt: skip
def test_a_text_has_no_wildcards(tmp_path: Path, text: str, expected: list[str]) -> None:
    write_jobs(tmp_path, 1, 0)
    with Store.open(tmp_path) as one:
        write_named(one, *((name, "", "") for name in ("100% sure", "a_b", "axb", "back\\slash", "Ärger")))
        found = read_job_list(one, JobFilter(text=text), NOW_S)
        assert [row.name for row in found] == expected


def test_owners_are_listed_once(store: Store, tmp_path: Path) -> None:
    assert list_owners(store) == (sorted(f"team-{n}" for n in range(11)), [])
    write_jobs(tmp_path, 1, 0)
    with Store.open(tmp_path) as one:
        write_named(one, ("a", "zoe", "x"), ("b", "zoe", ""), ("c", "amy", "x"), ("d", "amy", "y"))
        assert list_owners(one) == (["team-1", "x", "y"], ["amy", "zoe"])


@pytest.mark.parametrize("sort", ["id", "name", "gpus", "energy"])
def test_a_page_of_all_jobs_is_read_from_an_index(store: Store, sort: str) -> None:
    asked: list[str] = []
    plain = store.read_rows

    class Noting:
        def read_rows(self, statement: str, values: object = ()) -> list[tuple[object, ...]]:
            asked.append(statement)
            return plain(statement, values)  # type: ignore[arg-type]

    read_job_list(Noting(), JobFilter(), NOW_S, sort=sort)  # type: ignore[arg-type]
    values = {"limit": 1, "offset": 0}
    steps = [row[3] for row in plain(f"EXPLAIN QUERY PLAN {asked[0]}", values)]
    assert not [step for step in steps if "TEMP B-TREE" in step]
