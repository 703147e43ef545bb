"""Stores of earlier schemas: schema_N.sql is a dump of one, made by the controller of that version."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from support.controllers import run_controller, wait_until_over, wait_until_running
from wattline.service.http.auth import TokenStore
from wattline.service.storage.schema import VERSION
from wattline.service.storage.store import Store

DUMP = Path(__file__).parent / "schema_1.sql"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    connection = sqlite3.connect(tmp_path / "state.db")
    connection.executescript(DUMP.read_text())
    connection.close()
    return tmp_path


def test_jobs_of_schema_1_keep_their_state(folder: Path) -> None:
    connection = sqlite3.connect(folder / "state.db")
    old = connection.execute(
        "SELECT id, state, held, cancelled, priority, sweep, first_s, start_s, end_s, starts, kills, due_s,"
        " done, service_s, energy_j, method, code, message FROM job ORDER BY number"
    ).fetchall()
    connection.close()
    with Store.open(folder) as store:
        new = [
            (
                *(job.id, job.state, job.held, job.cancelled, job.priority, job.sweep, job.first_start_s),
                *(job.start_s, job.end_s, job.starts, job.kill_count, job.retry_at_s, job.completed_fraction),
                *(job.service_s, job.energy_j, job.energy_method, job.exit_code, job.message),
            )
            for job in store.jobs()
        ]
        assert new == old
        assert store._rows("PRAGMA user_version") == [(VERSION,)]
        killed, running = store.jobs_numbered(3, 3)[0], store.jobs_numbered(7, 7)[0]
        assert (killed.state, killed.kill_count) == ("PENDING", 1)
        assert running.submission["spec"]["command"] == ["sleep", "600"]
        assert running.submission["columns"]["duration_s"] == 3600
        assert (running.allocation["gpus"], running.allocation["fused_with"]) == ([0], [])


def test_settings_keys_tokens_and_readings_of_schema_1_are_kept(folder: Path) -> None:
    with Store.open(folder) as store:
        assert store.setting("budgets") == ["800W"]
        found = store.idempotent_submission("/first")
        assert found is not None
        assert found[1] == ["1"]
        (token,) = store.tokens("ann")
        assert (token["role"], token["expires_s"]) == ("viewer", None)
        assert token["created_s"] == pytest.approx(1794884685.886)
        assert set(store.meter_totals()) == {"*", ""}
        assert store.epoch_header(1) is not None


def test_events_of_schema_1_have_the_new_names(folder: Path) -> None:
    with Store.open(folder) as store:
        events = store.events()
        assert [event.seq for event in events] == list(range(1, 23))
        (retry,) = (event.data for event in events if event.kind == "retry")
        assert (retry["kill_count"], retry["energy_method"]) == (1, "simulated")
        assert retry["retry_at_s"] == pytest.approx(1794884690.83)
        assert {"setting", "idempotency_key"} <= {event.kind for event in events}
        secret = next(event for event in events if event.kind == "accepted" and event.job == "4")
        assert "abc123" not in str(secret.redacted().data)
        before = store.jobs()
        store.rebuild()
        assert store.jobs() == before
    with Store.open(folder) as store:  # the second time there is nothing to migrate
        assert store.jobs() == before


@pytest.mark.slow
def test_a_controller_continues_with_a_store_of_schema_1(folder: Path) -> None:
    with run_controller(folder, "simulated:2xa100") as controller:
        assert controller.view().budgets == ("800W",)
        assert controller.release("4").held is False
        assert wait_until_over(controller, "4").state == "SUCCEEDED"
        assert wait_until_running(controller, "7").allocation["gpus"]
        assert TokenStore(controller.store, controller.clock).list_tokens()[0]["name"] == "ann"
        assert controller.job("1").state == "SUCCEEDED"


@pytest.mark.slow
def test_a_controller_continues_with_a_store_of_schema_2(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "state.db")
    connection.executescript((DUMP.parent / "schema_2.sql").read_text())
    old = connection.execute("SELECT id, state, priority, energy_j FROM job ORDER BY number").fetchall()
    connection.close()
    with Store.open(tmp_path) as store:
        assert [(job.id, job.state, job.priority, job.energy_j) for job in store.jobs()] == old
    with run_controller(tmp_path, "simulated:2xa100") as controller:
        assert controller.view().budgets == ("800W",)
        assert controller.release("4").held is False
        assert wait_until_over(controller, "4").state == "SUCCEEDED"
        assert TokenStore(controller.store, controller.clock).list_tokens()[0]["name"] == "ann"
