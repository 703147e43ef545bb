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
from wattline.service.states import OVER
from wattline.service.storage.store import Happened, Store

ASKED = {"work": {"words": ["true"]}, "asks": {"gpus": 1, "key": ""}}
FACTS = {"message": "", "done": 0.5, "service_s": 1.0, "energy_j": 2.0, "method": "simulated"}


def accepted(job: str, at_s: float = 1.0) -> Happened:
    said = {"name": "x", "user": "", "team": "", "priority": 0.0, "sweep": "", "submit_s": at_s, "fuse": ""}
    return Happened(at_s, "accepted", job, {**said, "asked": ASKED})


def started(job: str, attempt: int = 1) -> Happened:
    return Happened(2.0, "started", job, {"attempt": attempt, "gpus": [0], "kind": "a100"})


def test_what_was_appended_is_there_after_opening_again(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.append(accepted("1"), started("1"))
        assert store.append(Happened(3.0, "ended", "1", {"state": "SUCCEEDED", "code": 0, **FACTS})) == 3
    with Store.open(tmp_path) as store:
        job = store.job("1")
        assert job is not None
        assert (job.state, job.start_s, job.end_s, job.energy_j) == ("SUCCEEDED", 2.0, 3.0, 2.0)
        assert [event.kind for event in store.events()] == ["accepted", "started", "ended"]
        assert store.last_s() == 3.0


def test_a_second_process_is_refused_and_told_who_serves(tmp_path: Path) -> None:
    code = f"from wattline.service.storage.store import Store; Store.open({str(tmp_path)!r})"
    with Store.open(tmp_path):
        with pytest.raises(ConfigError, match=f"process {os.getpid()} serves it already"):
            Store.open(tmp_path)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "serves it already" in done.stderr
    Store.open(tmp_path).close()


def test_events_of_one_call_are_all_there_or_none(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.append(accepted("1"))
        with pytest.raises(StoreError, match="cannot be written"):
            store.append(accepted("2"), accepted("1"))
        assert store.job("2") is None
        store.append(accepted("2"))  # it goes on
        assert [event.job for event in store.events()] == ["1", "2"]


def test_many_threads_write_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
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


def test_a_full_disk_is_told_and_what_was_written_stays(tmp_path: Path) -> None:
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


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match=f"{file}/state: cannot be used to keep the state"):
        Store.open(file / "state")
    tmp_path.chmod(0o500)
    me = os.geteuid()
    try:
        if me == 0:
            os.seteuid(65534)  # root writes everywhere
        with pytest.raises(ConfigError, match="cannot be used to keep the state: Permission denied"):
            Store.open(tmp_path / "state")
    finally:
        os.seteuid(me)


def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_text("not a database, and longer than its header is" * 10)
    before = (tmp_path / "state.db").read_bytes()
    with pytest.raises(ConfigError, match=r"state\.db: cannot be used: file is not a database"):
        Store.open(tmp_path)
    assert (tmp_path / "state.db").read_bytes() == before


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "state.db")
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(ConfigError, match="has schema 99, expected at most"):
        Store.open(tmp_path)


def test_an_older_schema_is_brought_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wattline.service.storage import store as module

    with Store.open(tmp_path) as store:
        store.append(accepted("1"))
    monkeypatch.setattr(module, "SCHEMA", module.SCHEMA + 1)
    monkeypatch.setitem(module._MIGRATIONS, module.SCHEMA - 1, "ALTER TABLE epoch ADD COLUMN note TEXT;")
    with Store.open(tmp_path) as store:
        assert store.rows("SELECT note FROM epoch") == []
        assert [job.id for job in store.jobs()] == ["1"]


STEP = st.sampled_from(
    [
        started("1", 1),
        started("1", 2),
        Happened(3.0, "stopped", "1", FACTS),
        Happened(3.0, "retry", "1", {**FACTS, "kills": 1, "due_s": 9.0, "fuse": ""}),
        Happened(3.0, "hold", "1", {"held": True}),
        Happened(3.0, "hold", "1", {"held": False}),
        Happened(3.0, "cancel", "1", {}),
        Happened(3.0, "priority", "1", {"priority": 7.0}),
        Happened(3.0, "retuned", "1", {"cap_w": 150}),
        Happened(3.0, "set", None, {"name": "budgets", "value": ["1kW"]}),
        Happened(3.0, "answered", None, {"key": "k", "request": "r", "jobs": ["1"]}),
        *(Happened(4.0, "ended", "1", {"state": state, "code": 1, **FACTS}) for state in OVER[:3]),
        Happened(5.0, "something-new", "1", {"x": 1}),
    ]
)


@given(st.lists(STEP, max_size=12))
def test_the_tables_are_what_follows_from_the_events(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Happened]
) -> None:
    def all_rows(store: Store) -> list[Any]:
        return [store.rows(f"SELECT * FROM {table}") for table in ("job", "setting", "answered")]

    with Store.open(tmp_path_factory.mktemp("store")) as store:
        store.append(accepted("1"))
        for step in steps:
            store.append(step)
        kept = all_rows(store)
        store.rebuild()
        assert all_rows(store) == kept
