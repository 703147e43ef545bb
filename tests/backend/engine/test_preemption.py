"""When the service regards a running job as preemptible."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import pytest

from support.job_request import JOB_REQUEST
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.job_spec import JobSpec
from wattline.backend.engine.preemption import LEAST_RUN_S, CheckpointWatch, preemption_columns
from wattline.backend.engine.progress import ProgressReader
from wattline.core.jobs import PREEMPTIBLE_ALWAYS, PREEMPTIBLE_NEVER, PREEMPTIBLE_ONCE_SAVED

START_S = time.time() - 1000.0


def make_record(facts: dict[str, Any] | None = None, **spec: Any) -> JobRecord:
    return JobRecord(JobSpec("1", ("true",), **spec), JOB_REQUEST, START_S, **(facts or {}))


def write_file(folder: Path, name: str, at_s: float, text: str = "state") -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at_s, at_s))


@pytest.fixture
def progress(tmp_path: Path) -> ProgressReader:
    return ProgressReader(tmp_path / "events.jsonl")


def protected_until_s(
    record: JobRecord, progress: ProgressReader, folder: Path, now_s: float = START_S + 5
) -> float:
    watch = CheckpointWatch(folder, START_S, adopted=True)
    return watch.check(record, progress, now_s).until_s - START_S


def test_a_job_that_has_never_saved_is_protected(tmp_path: Path, progress: ProgressReader) -> None:
    record = make_record()
    assert protected_until_s(record, progress, tmp_path / "none") == math.inf
    assert not record.saves


@pytest.mark.parametrize(
    ("spec", "until_s"),
    [
        ({"preemptible": False}, math.inf),
        ({"preemptible": True}, LEAST_RUN_S),
        ({"preemptible": True, "min_runtime_s": 120.0}, 120.0),
        ({"preemptible": False, "elastic": True}, math.inf),
        ({"elastic": True}, LEAST_RUN_S),
    ],
)
def test_the_job_file_decides(
    tmp_path: Path, progress: ProgressReader, spec: dict[str, Any], until_s: float
) -> None:
    assert protected_until_s(make_record(**spec), progress, tmp_path) == until_s


@pytest.mark.parametrize(
    ("facts", "until_s"),
    [
        ({"saves": True}, math.inf),  # in an earlier attempt, and a stop would lose what this one did
        ({"saves": True, "yields": True}, LEAST_RUN_S),
        ({"saves": True, "yields": True, "startup_s": 30.0}, 150.0),
        ({"saves": True, "yields": False}, math.inf),
    ],
)
def test_a_later_attempt_is_preempted_if_a_stop_makes_the_job_save(
    tmp_path: Path, progress: ProgressReader, facts: dict[str, Any], until_s: float
) -> None:
    assert protected_until_s(make_record(facts), progress, tmp_path) == until_s


def test_a_new_file_in_the_checkpoint_folder_is_a_checkpoint(
    tmp_path: Path, progress: ProgressReader
) -> None:
    folder = tmp_path / "checkpoint"
    write_file(folder, "old/model.pt", START_S - 60)
    own = ((".spent.json", "x"), ("00000001/wattline.json", "x"))  # of a session without `save`
    for name, text in ((".lock", "x"), (".new-7/model.pt", "x"), ("empty", ""), *own):
        write_file(folder, name, START_S + 20, text)
    record = make_record()
    assert protected_until_s(record, progress, folder, START_S + 30) == math.inf
    write_file(folder, "new/model.pt", START_S + 20)
    watch = CheckpointWatch(folder, START_S, adopted=True)
    found = watch.check(record, progress, START_S + 30)
    assert found.until_s == START_S + LEAST_RUN_S
    assert found.saved_s == pytest.approx(START_S + 20)
    assert record.saves
    assert found.unsaved_s(START_S + 30) == pytest.approx(10.0)
    fresh = CheckpointWatch(folder, START_S + 40, adopted=False)  # files of earlier attempts do not count
    assert fresh.check(make_record(), progress, START_S + 50).until_s == math.inf


def test_a_session_that_has_saved_saves_at_a_stop(tmp_path: Path, progress: ProgressReader) -> None:
    now_s = time.time()
    lines = [
        f'{{"event": "began", "at": {now_s - 50}, "resumed": false}}',
        f'{{"event": "progress", "at": {now_s - 40}, "fraction": 0.1}}',
    ]
    progress.path.write_text("\n".join(lines) + "\n")
    progress.read()
    record = make_record()
    watch = CheckpointWatch(tmp_path / "none", now_s - 60, adopted=False)
    assert watch.check(record, progress, now_s).until_s == math.inf
    assert (record.startup_s, record.restart_s) == (pytest.approx(20.0), 0.0)
    with progress.path.open("a") as file:
        file.write(f'{{"event": "saved", "at": {now_s - 10}, "fraction": 0.2}}\n')
    progress.read()
    found = watch.check(record, progress, now_s)
    assert (found.fraction, found.saved_s) == (0.2, math.inf)
    assert found.until_s == pytest.approx(now_s - 60 + 5 * 20)
    assert found.unsaved_s(now_s + 60) == 0.0


def test_the_start_up_of_a_later_attempt_is_that_of_a_restart(
    tmp_path: Path, progress: ProgressReader
) -> None:
    progress.path.write_text(f'{{"event": "progress", "at": {time.time() - 40}, "fraction": 0.1}}\n')
    progress.read()
    record = make_record({"starts": 2, "startup_s": 5.0})
    CheckpointWatch(tmp_path, time.time() - 60, adopted=False).check(record, progress, time.time())
    assert record.startup_s == record.restart_s == pytest.approx(20.0, abs=1.0)


@pytest.mark.parametrize(
    ("record", "columns"),
    [
        (make_record(), (PREEMPTIBLE_ONCE_SAVED, -1.0)),
        (make_record(elastic=True), (PREEMPTIBLE_ONCE_SAVED, 0.0)),
        (make_record({"yields": False}, elastic=True), (PREEMPTIBLE_ONCE_SAVED, -1.0)),
        (make_record({"yields": True}, preemptible=True), (PREEMPTIBLE_ALWAYS, 0.0)),
        (make_record(preemptible=False), (PREEMPTIBLE_NEVER, -1.0)),
    ],
)
def test_the_job_table_has_columns_about_preemption(record: JobRecord, columns: tuple[int, float]) -> None:
    found = preemption_columns(record)
    assert (found["preemptible"], found["checkpoint_s"]) == columns
