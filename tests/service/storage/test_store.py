from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.errors import ConfigError, StoreError
from wattline.service.states import FINAL_STATES
from wattline.service.storage import schema
from wattline.service.storage.events import NewEvent
from wattline.service.storage.store import Store

SUBMISSION = {"spec": {"command": ["true"]}, "columns": {"gpus": 1, "key": ""}}
RESULTS = {
    "message": "",
    "completed_fraction": 0.5,
    "service_s": 1.0,
    "energy_j": 2.0,
    "energy_method": "simulated",
}


def accepted(job: str, at_s: float = 1.0) -> NewEvent:
    data = {"name": "x", "user": "", "team": "", "priority": 0.0, "sweep": "", "submit_s": at_s, "fuse": ""}
    return NewEvent(at_s, "accepted", job, {**data, "submission": SUBMISSION})


def started(job: str, attempt: int = 1) -> NewEvent:
    return NewEvent(2.0, "started", job, {"attempt": attempt, "gpus": [0], "kind": "a100"})


def test_appended_events_are_there_after_reopening(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.append(accepted("1"), started("1"))
        assert (
            store.append(NewEvent(3.0, "ended", "1", {"state": "SUCCEEDED", "exit_code": 0, **RESULTS})) == 3
        )
    with Store.open(tmp_path) as store:
        job = store.job("1")
        assert job is not None
        assert (job.state, job.start_s, job.end_s, job.energy_j) == ("SUCCEEDED", 2.0, 3.0, 2.0)
        assert [event.kind for event in store.events()] == ["accepted", "started", "ended"]
        assert store.last_event_s() == 3.0


@pytest.mark.slow
def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    code = f"from wattline.service.storage.store import Store; Store.open({str(tmp_path)!r})"
    with Store.open(tmp_path):
        with pytest.raises(ConfigError, match=f"process {os.getpid()} serves it already"):
            Store.open(tmp_path)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "serves it already" in done.stderr
    Store.open(tmp_path).close()


def test_the_events_of_one_call_are_written_all_or_none(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.append(accepted("1"))
        with pytest.raises(StoreError, match="cannot be written"):
            store.append(accepted("2"), accepted("1"))
        assert store.job("2") is None
        store.append(accepted("2"))  # the writer survives the error
        assert [event.job for event in store.events()] == ["1", "2"]


def test_no_write_of_concurrent_threads_is_lost(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        numbers: list[int] = []

        def write(first: int) -> None:
            numbers.extend(store.append(accepted(str(job))) for job in range(first, first + 50))

        threads = [threading.Thread(target=write, args=(100 * n,)) for n in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(numbers)) == 400
        assert len(store.jobs()) == 400


def test_a_full_disk_raises_and_earlier_events_stay(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.append(accepted("1"))
        pages = store._writer_connection.execute("PRAGMA page_count").fetchone()[0]
        store._writer_connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(StoreError, match=r"cannot be written: database or disk is full"):
            store.append(*(accepted(str(n)) for n in range(2, 500)))
        assert "full" in store.problem
        assert [job.id for job in store.jobs()] == ["1"]
        store._writer_connection.execute("PRAGMA max_page_count=1000000")
        store.append(accepted("2"))
        assert store.problem == ""


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match=f"{file}/state: cannot hold the state of a service"):
        Store.open(file / "state")
    tmp_path.chmod(0o500)
    me = os.geteuid()
    try:
        if me == 0:
            os.seteuid(65534)  # root writes everywhere
        with pytest.raises(ConfigError, match="cannot hold the state of a service: Permission denied"):
            Store.open(tmp_path / "state")
    finally:
        os.seteuid(me)


def test_a_file_that_is_not_a_store_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_text("not a database, and longer than its header is" * 10)
    before = (tmp_path / "state.db").read_bytes()
    with pytest.raises(ConfigError, match=r"state\.db: cannot be used: file is not a database"):
        Store.open(tmp_path)
    assert (tmp_path / "state.db").read_bytes() == before


@pytest.mark.slow
@given(times_s=st.lists(st.integers(0, 20), min_size=1, max_size=30).map(sorted), at_s=st.integers(0, 21))
def test_the_last_event_before_a_time_is_found_by_bisection(
    tmp_path_factory: pytest.TempPathFactory, times_s: list[int], at_s: int
) -> None:
    with Store.open(tmp_path_factory.mktemp("events")) as store:
        store.append(*(NewEvent(float(one), "note", None, {}) for one in times_s))
        store._writer_connection.execute("DELETE FROM event WHERE seq % 3 = 1")
        found = store.last_seq_before(float(at_s))
        assert [event.seq for event in store.events(found)] == [
            seq for seq, one in enumerate(times_s, 1) if seq % 3 != 1 and one >= at_s
        ]


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "state.db")
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(ConfigError, match="has schema version 99, expected at most 3"):
        Store.open(tmp_path)


def test_the_migrations_between_two_versions_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path) as store:
        store.append(accepted("1"))

    def add_note(connection: sqlite3.Connection) -> None:
        schema._drop(connection, "job", "setting", "idempotency_key")
        connection.execute("ALTER TABLE epoch ADD COLUMN note TEXT")

    def rename_note(connection: sqlite3.Connection) -> None:
        connection.execute("ALTER TABLE epoch RENAME COLUMN note TO comment")

    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 2)
    monkeypatch.setitem(schema.MIGRATIONS, schema.VERSION - 2, add_note)
    monkeypatch.setitem(schema.MIGRATIONS, schema.VERSION - 1, rename_note)
    with Store.open(tmp_path) as store:
        assert store._rows("SELECT comment FROM epoch") == []
        assert store._rows("PRAGMA user_version") == [(schema.VERSION,)]
        assert [job.id for job in store.jobs()] == ["1"]


def test_a_migration_that_fails_leaves_the_file_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path) as store:
        store.append(accepted("1"))

    def fail(connection: sqlite3.Connection) -> None:
        schema._drop(connection, "job", "setting", "idempotency_key")
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(schema, "VERSION", schema.VERSION + 1)
        patch.setitem(schema.MIGRATIONS, schema.VERSION - 1, fail)
        with pytest.raises(ConfigError, match="disk I/O error"):
            Store.open(tmp_path)
    with Store.open(tmp_path) as store:
        assert [job.id for job in store.jobs()] == ["1"]


STEP = st.sampled_from(
    [
        started("1", 1),
        started("1", 2),
        NewEvent(3.0, "stopped", "1", RESULTS),
        NewEvent(3.0, "retry", "1", {**RESULTS, "kill_count": 1, "retry_at_s": 9.0, "fuse": ""}),
        NewEvent(3.0, "hold", "1", {"held": True}),
        NewEvent(3.0, "hold", "1", {"held": False}),
        NewEvent(3.0, "cancel", "1", {}),
        NewEvent(3.0, "priority", "1", {"priority": 7.0}),
        NewEvent(3.0, "retuned", "1", {"cap_w": 150}),
        NewEvent(3.0, "setting", None, {"name": "budgets", "value": ["1kW"]}),
        NewEvent(3.0, "idempotency_key", None, {"key": "k", "request_hash": "r", "jobs": ["1"]}),
        *(
            NewEvent(4.0, "ended", "1", {"state": state, "exit_code": 1, **RESULTS})
            for state in FINAL_STATES[:3]
        ),
        NewEvent(5.0, "something-new", "1", {"x": 1}),
    ]
)


@given(st.lists(STEP, max_size=12))
def test_rebuilding_the_projection_gives_the_same_tables(
    tmp_path_factory: pytest.TempPathFactory, steps: list[NewEvent]
) -> None:
    def all_rows(store: Store) -> list[Any]:
        return [store._rows(f"SELECT * FROM {table}") for table in ("job", "setting", "idempotency_key")]

    with Store.open(tmp_path_factory.mktemp("store")) as store:
        store.append(accepted("1"))
        for step in steps:
            store.append(step)
        projected = all_rows(store)
        store.rebuild()
        assert all_rows(store) == projected
