"""Measured caps of recurring jobs in the service."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from wattline.backend.engine.job_spec import AttemptSettings, JobSpec
from wattline.backend.engine.progress import ProgressReader
from wattline.backend.engine.recurring_jobs import RecurringJobs
from wattline.batch_size.history import RunHistory

SWEEP = [[300.0, 10, 1.0, 290.0, False], [200.0, 10, 1.1, 190.0, False], [100.0, 10, 2.0, 190.0, False]]
SPEC = JobSpec("1", ("runs", "train.py"), group="nightly", batch=64)


class TwoKinds:
    """An engine with a V100 on node 0 and an A100 on node 1."""

    def gpu_model(self, node: int) -> tuple[str, float]:
        return ("v100", 300.0) if node == 0 else ("a100", 400.0)


@dataclass
class PlannedAttempt:
    """The fields of an attempt that the choice reads and sets."""

    node: int
    gpus: int = 1
    settings: AttemptSettings = field(default_factory=AttemptSettings)
    has_trial: bool = False

    @property
    def allocation(self) -> list[tuple[int, int]]:
        return [(self.node, self.gpus)]


def read_events(tmp_path: Path, **fields: Any) -> ProgressReader:
    """Return the progress of a session that has measured caps on a V100."""
    lines = [
        {"event": "began", "kind": "v100", "method": "simulated"},
        {"event": "cap", "cap_w": 200.0, "aim": "energy", "gpus": 1, "sweep": SWEEP, "batch": 64, **fields},
        {"event": "ended", "how": "ended", "seconds": 100.0, "joules": 2e4, "epoch": 3},
    ]
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps({"at": time.time(), **line}) + "\n" for line in lines))
    progress = ProgressReader(path)
    progress.read()
    return progress


def choose_cap(jobs: RecurringJobs, node: int, gpus: int = 1) -> int:
    attempt: Any = PlannedAttempt(node, gpus)
    jobs.choose(SPEC, attempt)
    return int(attempt.settings.cap_w)


def test_the_best_cap_of_a_sweep_holds_for_its_kind_and_number_of_gpus_until_it_is_reset(
    tmp_path: Path,
) -> None:
    engine: Any = TwoKinds()
    jobs = RecurringJobs(tmp_path / "memory.db", engine)
    jobs.learn(SPEC, read_events(tmp_path), succeeded=True)
    assert [choose_cap(jobs, 0), choose_cap(jobs, 1), choose_cap(jobs, 0, gpus=2)] == [200, 0, 0]
    jobs.close()
    jobs = RecurringJobs(tmp_path / "memory.db", engine)  # after a restart of the service
    assert choose_cap(jobs, 0) == 200
    with RunHistory.open(tmp_path / "memory.db") as memory:
        memory.reset("nightly")
    assert choose_cap(jobs, 0) == 0
    jobs.close()


def test_a_disturbed_sweep_orders_no_cap(tmp_path: Path) -> None:
    engine: Any = TwoKinds()
    jobs = RecurringJobs(tmp_path / "memory.db", engine)
    spoilt = [[*SWEEP[0][:4], True], *SWEEP[1:]]
    jobs.learn(SPEC, read_events(tmp_path, sweep=spoilt), succeeded=True)
    assert choose_cap(jobs, 0) == 0
    jobs.close()


@pytest.mark.parametrize(
    "sweep", [None, 3, "x", [[1]], [[300, 10, 1.0, -1, False]], [["a", 1, 1, 1, False]], [None], {}]
)
def test_a_sweep_that_is_no_sweep_is_ignored(tmp_path: Path, sweep: Any) -> None:
    assert read_events(tmp_path, sweep=sweep).sweep == ()
