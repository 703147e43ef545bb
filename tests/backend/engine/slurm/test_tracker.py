"""Jobs in Slurm's queue that no attempt of this process stands for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest

from wattline.backend.engine.exit_status import _FILE_KEYS, Exit
from wattline.backend.engine.local.attempt_files import EXIT
from wattline.backend.engine.slurm import tracker as module
from wattline.backend.engine.slurm.cluster_state import SlurmJob, SlurmState
from wattline.backend.engine.slurm.submission import SlurmOptions
from wattline.backend.engine.slurm.tracker import Tracker


class Threads:
    """Runs commands at once."""

    def run(self, command: Callable[[], Any], on_result: Callable[[Any], None] | None = None) -> None:
        result = command()
        if on_result is not None:
            on_result(result)


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    ids: list[str] = []
    monkeypatch.setattr(module, "cancel_jobs", lambda jobs: ids.extend(jobs))
    return ids


def sweep(root: Path, began_s: float = 1.0) -> None:
    """Let a new tracker see one running job that it does not know."""
    tracker = Tracker(root, "svc", cast(Any, None), SlurmOptions("main"), cast(Any, Threads()))
    job = SlurmJob("17", "RUNNING", "None", "n1", "root", "wl:svc:7:1")
    tracker.sweep(SlurmState(began_s, began_s, {job.comment: job}))


def test_a_job_that_is_not_needed_any_more_is_cancelled(tmp_path: Path, cancelled: list[str]) -> None:
    sweep(tmp_path)
    assert cancelled == ["17"]


def test_a_job_that_has_written_its_end_before_a_restart_is_left_to_slurm(
    tmp_path: Path, cancelled: list[str]
) -> None:
    folder = tmp_path / "jobs" / "7" / "attempts" / "1"
    folder.mkdir(parents=True)
    ended = Exit(0, None, None, None, False, "", 1.0, 2.0, 1.0, 0, 0.0, 0, ())
    values = {_FILE_KEYS.get(key, key): value for key, value in asdict(ended).items()}
    (folder / EXIT).write_text(json.dumps(values))
    sweep(tmp_path)
    assert cancelled == []
