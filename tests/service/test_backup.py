"""Backups of a service that runs, and services that continue from them."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from support.command_line import run_command, run_json_command
from support.controllers import run_controller, submit_text, wait_until, wait_until_over, wait_until_running
from wattline.errors import ConfigError, NotFound
from wattline.service.backup import write_backup

Capsys = pytest.CaptureFixture[str]


@pytest.mark.slow
def test_a_restored_backup_of_a_live_service_has_its_jobs_history_and_files(tmp_path: Path) -> None:
    with run_controller(tmp_path / "live") as live:
        (done,) = submit_text(
            live, "run: [sh, -c, 'echo trained > $WATTLINE_CHECKPOINT_DIR/weights; echo ok']"
        )
        ended = wait_until_over(live, done.id)
        (running,) = submit_text(live, "{run: [sh, -c, 'sleep 600'], resources: {gpus: 4}}")
        wait_until_running(live, running.id)
        (waiting,) = submit_text(live, "{run: 'true', resources: {gpus: 4}}")
        wal = tmp_path / "live" / "state.db-wal"
        assert wal.stat().st_size > 0, "nothing is in the second file: this would be no test of it"
        result = write_backup(tmp_path / "live", tmp_path / "backup")
        (later,) = submit_text(live, "run: 'true'")
        live.cancel(running.id)
        wait_until_over(live, running.id)
        events = live.store.read_rows("SELECT seq, kind, job FROM event WHERE job = ?", (done.id,))
    assert result.jobs == 3
    folder = tmp_path / "backup"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "state.db").stat().st_mode) == 0o600
    assert (folder / "jobs" / done.id / "attempts" / "1" / "rank0.log").read_text() == "ok\n"
    assert (folder / "jobs" / done.id / "checkpoint" / "weights").read_text() == "trained\n"
    assert not (folder / "jobs" / later.id).exists()
    assert not {"lock", "url", "state.db-wal"} & {path.name for path in folder.iterdir()}
    with run_controller(folder) as restored:
        assert restored.job(done.id) == ended
        rows = restored.store.read_rows("SELECT seq, kind, job FROM event WHERE job = ?", (done.id,))
        assert rows == events
        # Its processes are gone: the job that ran is started anew, or waits for that while the other runs.
        wait_until(
            lambda: restored.job(running.id).starts > 1 or restored.job(waiting.id).state == "SUCCEEDED"
        )
        (next_job,) = submit_text(restored, "run: 'true'")
        assert next_job.id == later.id, "the number is free: the backup was made before"


def test_a_backup_is_complete_or_absent(tmp_path: Path) -> None:
    service = tmp_path / "service"
    service.mkdir()
    with closing(sqlite3.connect(service / "state.db")) as database:
        database.execute("CREATE TABLE job (id TEXT)")
    (service / "memory.db").write_text("no database " * 100)
    with pytest.raises(Exception, match="cannot be written: file is not a database"):
        write_backup(service, tmp_path / "backup")
    assert {path.name for path in tmp_path.iterdir()} == {"service"}


def test_wrong_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has no state of a service"):
        write_backup(tmp_path, tmp_path / "backup")
    (tmp_path / "state.db").touch()
    with pytest.raises(ConfigError, match="exists already"):
        write_backup(tmp_path, tmp_path)
    with pytest.raises(ConfigError, match="is inside of"):
        write_backup(tmp_path, tmp_path / "backup")


def test_the_command_prints_what_the_backup_holds(tmp_path: Path, capsys: Capsys) -> None:
    service = tmp_path / "service"
    service.mkdir()
    with closing(sqlite3.connect(service / "state.db")) as database:
        database.execute("CREATE TABLE job (id TEXT)")
    (service / "settings.toml").write_text("[bill]\nprice = 0.25\n")
    found = run_json_command(capsys, "backup", str(tmp_path / "one"), "--dir", str(service))
    assert (found["jobs"], found["files"]) == (0, 2)
    code, out, _ = run_command(capsys, "backup", str(tmp_path / "two"), "--dir", str(service))
    assert code == 0
    assert out.startswith(f"{tmp_path}/two: 0 jobs, 2 files, 0.0 MiB")
    assert run_command(capsys, "backup", str(tmp_path / "two"), "--dir", str(service))[0] == 2
