"""Sums of the energy of teams: what is added to kept sums equals sums over all events."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wattline.service.storage.events import NewEvent
from wattline.service.storage.pruning import StorePruner
from wattline.service.storage.store import Store
from wattline.service.storage.usage_table import ENDS
from wattline.service.team_usage import read_team_usage

TEAMS = ("", "nlp", "vision")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path) as one:
        yield one


def accept(store: Store, number: int, team: str, at_s: float) -> None:
    data = {
        "name": "x", "user": "", "team": team, "priority": 0, "sweep": "", "submit_s": at_s, "fuse": "",
        "submission": {"spec": {}, "columns": {"gpus": 1}},
    }  # fmt: skip
    store.append(NewEvent(at_s, "accepted", str(number), data))


def end_attempt(
    store: Store, job: str, at_s: float, kind: str, energy_j: float | None, method: str = "nvml"
) -> None:
    data = {
        "message": "", "completed_fraction": 0, "service_s": 1.0, "energy_method": method,
        "energy_j": energy_j, **({"state": "FAILED"} if kind == "ended" else {}),
    }  # fmt: skip
    store.append(NewEvent(at_s, kind, job, data))


def sum_raw(path: Path, since_s: float) -> dict[str, tuple[float, int]]:
    """Return joules and unknown attempts of teams by all events."""
    with sqlite3.connect(path) as log:
        teams = dict(log.execute("SELECT id, team FROM job").fetchall())
        events = log.execute("SELECT at_s, kind, job, data FROM event WHERE job IS NOT NULL ORDER BY seq")
        last: dict[str, Any] = {}
        sums: dict[str, tuple[float, int]] = dict.fromkeys(teams.values(), (0.0, 0))
        for at_s, kind, job, text in events.fetchall():
            if kind not in ENDS or job not in teams:
                continue
            data, before_j = json.loads(text), last.get(job, 0.0)
            last[job] = data["energy_j"]
            joules, unknown = sums[teams[job]]
            if at_s < since_s:
                continue
            if None in (before_j, last[job]) or data["energy_method"] == "unmetered":
                sums[teams[job]] = (joules, unknown + 1)
            else:
                sums[teams[job]] = (joules + last[job] - before_j, unknown)
    return sums


def check(store: Store, *times_s: float) -> None:
    for since_s in times_s:
        found = {one.team: (one.energy_j, one.unknown) for one in read_team_usage(store, since_s)}
        expected = sum_raw(store.path, since_s)
        assert found == {team: (pytest.approx(joules), count) for team, (joules, count) in expected.items()}


def test_kept_sums_equal_sums_over_all_events(store: Store) -> None:
    choose, total_j = random.Random(5), dict[str, float]()
    for step in range(120):
        at_s = 1000.0 + step
        job = str(choose.randint(1, 12))
        if store.job(job) is None:
            accept(store, int(job), choose.choice(TEAMS), at_s)
        elif store.job_state(job) != "FAILED":
            total_j[job] = total_j.get(job, 0.0) + choose.uniform(1, 100)
            method = choose.choice(("nvml", "nvml", "rapl", "unmetered"))
            known = choose.random() > 0.15
            kind = choose.choice(("stopped", "retry", "stopped", "ended"))
            end_attempt(store, job, at_s, kind, total_j[job] if known else None, method)
        if step % 3 == 0:
            check(store, 0.0, 1050.0)
    check(store, 0.0, 1050.0, 1090.0, 1100.0, 1200.0, 0.0)  # more than are kept


def test_deleted_jobs_leave_the_sums(store: Store) -> None:
    for number in (1, 2, 3):
        accept(store, number, "nlp", 10.0)
        end_attempt(store, str(number), 20.0, "ended", 5.0 * number)
    (before,) = read_team_usage(store, 0.0)
    assert before.energy_j == 30.0
    StorePruner(store).delete_jobs(["1"])
    (after,) = read_team_usage(store, 0.0)
    assert (after.energy_j, after.counts) == (25.0, {"FAILED": 2})
    check(store, 0.0)


def test_a_read_adds_only_what_is_new(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    accept(store, 1, "nlp", 10.0)
    end_attempt(store, "1", 20.0, "stopped", 5.0)
    first = store.team_energy.read(0.0)
    asked: list[Any] = []
    read_rows = store.team_energy._read_rows

    def note(statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        rows = read_rows(statement, values)
        asked.append(rows)
        return rows

    monkeypatch.setattr(store.team_energy, "_read_rows", note)
    assert store.team_energy.read(0.0) == first
    assert asked[-1] == []
    end_attempt(store, "1", 30.0, "ended", 12.0)
    assert store.team_energy.read(0.0)["nlp"].energy_j == 12.0
    assert len(asked[-1]) == 1
