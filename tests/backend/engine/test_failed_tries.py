"""History of recurring jobs: what runs that failed have spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wattline.backend.engine.job_spec import JobSpec
from wattline.backend.engine.progress import ProgressReader
from wattline.backend.engine.recurring_jobs import RecurringJobs
from wattline.batch_size.bandit import BatchTrial
from wattline.batch_size.history import OUT_OF_MEMORY, RecordedRun

SPEC = JobSpec("1", ("train.py",), group="nightly", batch_sizes=(32, 64), batch=64)
REACHED = RecordedRun(64, True, 90.0, 900.0, 3)


@pytest.mark.parametrize(
    ("state", "session", "stored"),
    [
        ("SUCCEEDED", {"ended": "reached"}, [REACHED]),
        ("SUCCEEDED", {"ended": "stopped"}, [RecordedRun(64, False, 90.0, 900.0, 3)]),
        ("TIMEOUT", {}, [RecordedRun(64, False, 90.0, 900.0, 3)]),
        ("OUT_OF_MEMORY", {}, [RecordedRun(64, False, 90.0, 900.0, OUT_OF_MEMORY)]),
        (
            "FAILED",
            {"ended": "failed", "out_of_memory": True},
            [RecordedRun(64, False, 90.0, 900.0, OUT_OF_MEMORY)],
        ),
        ("FAILED", {"ended": "failed"}, []),
        ("CANCELLED", {}, []),
        ("NODE_FAIL", {}, []),
    ],
)
def test_failed_tries_are_stored_if_their_batch_size_is_the_cause(
    tmp_path: Path, state: str, session: dict[str, Any], stored: list[RecordedRun]
) -> None:
    jobs = RecurringJobs(tmp_path / "memory.db", engine=None)  # type: ignore[arg-type]
    jobs._memory.add_trial("nightly", "a100", BatchTrial(64))
    progress = ProgressReader(tmp_path / "events.jsonl", joules=900.0, seconds=90.0, epochs=3, batch=64)
    progress.kind = "a100"
    for name, value in session.items():
        setattr(progress, name, value)
    jobs.learn(SPEC, progress, state == "SUCCEEDED", state)
    assert jobs._memory.runs("nightly", "a100") == stored
    assert jobs._memory.pending("nightly", "a100") == []
    jobs.close()
