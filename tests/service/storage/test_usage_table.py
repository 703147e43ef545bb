from __future__ import annotations

from pathlib import Path

import pytest

from wattline.core.usage import BUCKET_S, KEPT_S, Usage
from wattline.service.storage.events import NewEvent
from wattline.service.storage.store import Store

RESULTS = {
    "message": "",
    "completed_fraction": 0.5,
    "service_s": 1.0,
    "energy_j": 2.0,
    "energy_method": "simulated",
}
START_S = 1000 * BUCKET_S


def accepted(job: str, team: str = "vision", user: str = "ann") -> NewEvent:
    data = {
        "name": "x",
        "user": user,
        "team": team,
        "priority": 0.0,
        "sweep": "",
        "submit_s": 0.0,
        "fuse": "",
    }
    return NewEvent(START_S, "accepted", job, {**data, "submission": {"spec": {}, "columns": {}}})


def started(job: str, at_s: float, gpus: int, *others: str) -> NewEvent:
    data = {"attempt": 1, "gpus": list(range(gpus)), "kind": "a100", "fused_with": list(others)}
    return NewEvent(at_s, "started", job, data)


def ended(job: str, at_s: float, kind: str = "ended") -> NewEvent:
    return NewEvent(at_s, kind, job, {"state": "SUCCEEDED", "exit_code": 0, **RESULTS})


def hours(store: Store, now_s: float) -> dict[tuple[str, str], float]:
    usage = Usage.from_rows(store.usage_rows(now_s), now_s)
    used = usage.recent_gpu_s(KEPT_S) / 3600.0
    return {account: float(h) for account, h in zip(usage.accounts, used, strict=True)}


def test_attempts_are_charged_when_they_end_and_while_they_run(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.append(accepted("1"), accepted("2", user="bob"), started("1", START_S, 2))
        assert hours(store, START_S + 1.5 * BUCKET_S) == pytest.approx({("vision", "ann"): 3.0})
        store.append(ended("1", START_S + 2 * BUCKET_S, "stopped"), started("2", START_S + 2 * BUCKET_S, 4))
        store.append(ended("1", START_S + 3 * BUCKET_S))  # it did not run any more: cancelled while it waited
    with Store.open(tmp_path) as store:
        found = hours(store, START_S + 2.5 * BUCKET_S)
        assert found == pytest.approx({("vision", "ann"): 4.0, ("vision", "bob"): 2.0})
        store.rebuild()
        assert hours(store, START_S + 2.5 * BUCKET_S) == found


def test_an_array_is_charged_once_until_its_last_member_ends(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.append(accepted("1"), accepted("2"))
        store.append(started("1", START_S, 2, "2"), started("2", START_S, 2, "1"))
        assert hours(store, START_S + BUCKET_S) == pytest.approx({("vision", "ann"): 2.0})
        store.append(ended("1", START_S + BUCKET_S))
        store.append(ended("2", START_S + 3 * BUCKET_S))
        assert hours(store, START_S + 4 * BUCKET_S) == pytest.approx({("vision", "ann"): 6.0})


def test_old_buckets_are_read_by_the_day_and_dropped_in_the_end(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.append(accepted("1"), started("1", START_S, 1), ended("1", START_S + 48 * BUCKET_S))
        late_s = START_S + 20 * 24 * BUCKET_S
        rows = store.usage_rows(late_s)
        assert len(rows) <= 3
        assert sum(row[-1] for row in rows) == pytest.approx(48 * BUCKET_S)
        after_s = START_S + KEPT_S + 100 * BUCKET_S
        store.append(accepted("2"), started("2", after_s, 1), ended("2", after_s + BUCKET_S))
        assert hours(store, after_s + 2 * BUCKET_S) == pytest.approx({("vision", "ann"): 1.0})
