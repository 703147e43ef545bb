from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.controllers import open_client, run_controller, submit_text, wait_until, wait_until_over
from wattline.errors import StoreError
from wattline.service.archive import read_archive
from wattline.service.retention import Pruner, PruneReport
from wattline.service.settings import DAY_S, RetentionSettings, ServiceSettings
from wattline.service.storage.events import NewEvent
from wattline.service.storage.store import Store

NOW_S = 1000 * DAY_S
RESULTS = {"message": "", "completed_fraction": 1.0, "service_s": 1.0, "energy_j": 2.0, "energy_method": "x"}
NEVER = RetentionSettings(float("inf"), float("inf"), float("inf"), float("inf"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path) as one:
        yield one


def add_job(store: Store, number: int, age_d: float | None, sweep: str = "", **more: object) -> None:
    """Add a job that ended *age_d* days ago, with a folder; None: it is PENDING."""
    at_s = NOW_S - DAY_S * (age_d or 0.0) - 10
    data = {"name": f"n{number}", "user": "", "team": "", "sweep": sweep, "fuse": "", "priority": 0.0, **more}
    submission = {"spec": {"command": ["x" * 1000]}, "columns": {}}
    store.append(
        NewEvent(at_s, "accepted", str(number), {**data, "submit_s": at_s, "submission": submission})
    )
    if age_d is not None:
        store.append(NewEvent(at_s + 10, "ended", str(number), {"state": "SUCCEEDED", **RESULTS}))
    attempt = store.path.parent / "jobs" / str(number) / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "rank0.log").write_text(f"output of {number}\n" * 1000)
    (attempt / "exit.json").write_text("{}")


def prune(store: Store, settings: RetentionSettings, dry_run: bool = False) -> PruneReport:
    return Pruner(store, store.path.parent, lambda: NOW_S).prune(settings, dry_run)


def ids(store: Store) -> list[str]:
    return [job.id for job in store.jobs()]


def test_old_jobs_go_with_their_events_and_folders_and_the_projection_stays(store: Store) -> None:
    for number, age_d in enumerate((100, 95, 80, 1, None, 2), 1):
        add_job(store, number, age_d)
    settings = RetentionSettings(logs_s=float("inf"))
    planned = prune(store, settings, dry_run=True)
    assert (planned.jobs, planned.events, planned.kept_jobs) == (2, 4, 4)
    assert planned.bytes > 20_000
    assert len(ids(store)) == 6
    done = prune(store, settings)
    assert (done.jobs, done.events, done.bytes) == (planned.jobs, planned.events, planned.bytes)
    assert ids(store) == ["3", "4", "5", "6"]
    assert sorted(path.name for path in (store.path.parent / "jobs").iterdir()) == ["3", "4", "5", "6"]
    assert store.events(0, "1") == []
    before = store.jobs()
    store.rebuild()
    assert store.jobs() == before
    assert prune(store, settings).jobs == 0


def test_jobs_that_are_needed_are_kept(store: Store) -> None:
    add_job(store, 1, 200)
    add_job(store, 2, 200, sweep="2")
    add_job(store, 3, None, sweep="2")
    add_job(store, 4, 200)
    add_job(store, 5, 200, sweep="5")
    add_job(store, 6, 200, sweep="5")
    waits = [{"job": "4", "when": "end"}, {"sweep": "5", "when": "success"}]
    add_job(store, 7, None, depends_on=waits, withheld=True)
    add_job(store, 8, 200)
    add_job(store, 9, 200)  # the newest: its number must not be used again
    assert prune(store, RetentionSettings(max_bytes=0)).jobs == 2
    assert ids(store) == ["2", "3", "4", "5", "6", "7", "9"]


def test_settings_and_recent_meter_readings_survive(store: Store) -> None:
    for n in range(5):
        store.append(NewEvent(float(n), "setting", None, {"name": "budgets", "value": [f"{n}kW"]}))
        store.append(
            NewEvent(float(n), "idempotency_key", None, {"key": f"{n}", "request_hash": "", "jobs": []})
        )
        store.add_epoch(n + 1, float(n), "{}", "{}")
    store.add_meter_readings([(1.0, "*", 5.0), (2.0, "*", 7.0), (NOW_S - 10, "a", 3.0), (3.0, "a", 1.0)])
    add_job(store, 1, 0.5)
    assert prune(store, RetentionSettings()).events == 9
    assert store.setting("budgets") == ["4kW"]
    assert store.idempotent_submission("1") is None
    assert (store.last_epoch(), store.epoch_header(4), store.epoch_header(5)) == (5, None, "{}")
    assert store.meter_totals() == {"*": 7.0, "a": 3.0}
    store.rebuild()
    assert store.setting("budgets") == ["4kW"]
    last = store.last_seq
    assert store.append(NewEvent(NOW_S, "note", None, {})) == last + 1


def test_audit_events_are_kept_a_year_longer(store: Store) -> None:
    for age_d in (500, 300, 100):
        store.append(NewEvent(NOW_S - age_d * DAY_S, "token", None, {"created": f"{age_d}", "by": "ann"}))
        store.append(NewEvent(NOW_S - age_d * DAY_S, "service", None, {"event": "started"}))
    add_job(store, 1, 0.5)
    assert prune(store, RetentionSettings()).events == 4
    assert [event.data["created"] for event in store.events() if event.kind == "token"] == ["300", "100"]


def test_the_oldest_jobs_go_first_when_there_is_too_much(store: Store) -> None:
    for number in range(1, 9):
        add_job(store, number, 9 - number)
    size = prune(store, NEVER, dry_run=True)
    assert (size.jobs, size.bytes) == (0, 0)
    store.run_maintenance(lambda connection: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
    database = store.path.stat().st_size
    report = prune(store, RetentionSettings(max_bytes=database + 5 * 24_000))
    assert 3 <= report.jobs < 8
    assert ids(store) == [str(n) for n in range(report.jobs + 1, 9)]


def test_logs_go_before_their_jobs(store: Store) -> None:
    add_job(store, 1, 40)
    add_job(store, 2, 5)
    report = prune(store, RetentionSettings())
    assert (report.jobs, report.log_files) == (0, 1)
    folder = store.path.parent / "jobs"
    assert [path.name for path in (folder / "1" / "attempts" / "1").iterdir()] == ["exit.json"]
    assert (folder / "2" / "attempts" / "1" / "rank0.log").exists()
    assert ids(store) == ["1", "2"]


def test_an_archive_can_be_read_again(store: Store, tmp_path: Path) -> None:
    for number in range(1, 4):
        add_job(store, number, 100)
    rows = store.jobs()
    report = prune(store, RetentionSettings(archive=str(tmp_path / "archive")))
    jobs = list(read_archive(report.archive))
    assert [one["job"]["name"] for one in jobs] == ["n1", "n2"]
    assert jobs[0]["job"]["submission"] == rows[0].submission
    assert [event["kind"] for event in jobs[0]["events"]] == ["accepted", "ended"]
    assert Path(report.archive).stat().st_mode & 0o777 == 0o600
    with tarfile.open(report.archive.replace(".jsonl.gz", "-logs.tar.gz")) as tar:
        assert tar.getnames() == ["1/attempts/1/rank0.log", "2/attempts/1/rank0.log"]


def test_nothing_is_deleted_if_the_archive_cannot_be_written(store: Store, tmp_path: Path) -> None:
    add_job(store, 1, 100)
    add_job(store, 2, 100)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="the archive cannot be written"):
        prune(store, RetentionSettings(archive=str(tmp_path / "file")))
    assert ids(store) == ["1", "2"]


def test_folders_that_a_crash_left_behind_are_deleted(store: Store) -> None:
    for number in range(1, 4):
        add_job(store, number, 1)
    with store._transaction():
        store._writer_connection.execute("DELETE FROM job WHERE id = '1'")
    assert prune(store, NEVER).bytes > 0
    assert sorted(path.name for path in (store.path.parent / "jobs").iterdir()) == ["2", "3"]


@pytest.mark.slow
def test_the_database_shrinks(store: Store) -> None:
    for number in range(1, 300):
        add_job(store, number, 100 if number < 290 else 1)
    before = store.path.stat().st_size
    assert prune(store, RetentionSettings()).database_bytes > 0
    assert store.path.stat().st_size < before / 2


@pytest.mark.slow
def test_an_operator_prunes_a_running_service(tmp_path: Path) -> None:
    with run_controller(tmp_path) as controller, open_client(controller) as client:
        done = [submit_text(controller, "run: echo x")[0].id for _ in range(3)]
        for job in done:
            wait_until_over(controller, job)
        runs = submit_text(controller, "run: sleep 60")[0].id
        path = "/api/v1/prune"
        planned = client.post(path, json={"older_than": "0s", "dry_run": True}).json()
        assert (planned["jobs"], planned["dry_run"]) == (3, True)
        report = client.post(path, json={"older_than": "0s"}).json()
        assert (report["jobs"], report["kept_jobs"]) == (3, 1)
        assert client.get(f"/api/v1/jobs/{done[0]}").status_code == 404
        assert client.get(f"/api/v1/jobs/{runs}").status_code == 200
        for wrong in ({"older_than": "soon"}, {"max_size": "much"}, {"archive": "here"}):
            assert client.post(path, json=wrong).status_code == 409
        assert submit_text(controller, "run: 'true'")[0].number == int(runs) + 1
    with run_controller(tmp_path) as again, open_client(again, "viewer") as client:
        assert client.post(path, json={}).status_code == 403


@pytest.mark.slow
def test_the_service_prunes_by_itself(tmp_path: Path) -> None:
    settings = RetentionSettings(jobs_s=0.0, every_s=0.1)
    with run_controller(tmp_path, settings=ServiceSettings(retention=settings)) as controller:
        first = submit_text(controller, "run: 'true'")[0].id
        submit_text(controller, "run: sleep 60")
        wait_until(lambda: controller.store.job(first) is None)
