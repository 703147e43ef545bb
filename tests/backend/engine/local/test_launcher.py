"""lease.json of attempts: as this version writes it, and as version 0.1.0 wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wattline.backend.engine.folder_layout import EVENTS
from wattline.backend.engine.job_spec import AttemptSettings
from wattline.backend.engine.local.gpu_allocator import EnergySplit
from wattline.backend.engine.local.launcher import LEASE, read_lease

OF_0_1_0: dict[str, Any] = {
    "folder": "/ignored",
    "jobs": ["1", "2"],
    "node": 0,
    "given": {"gpus": [2, 3], "cap_w": 200, "batch": 64, "mcpus": 0, "mem_mib": 0},
    "at_s": 5.0,
    "starts": 1,
    "cpus": 4,
    "readings": [10.0, None],
    "events": None,
}


def write_lease(root: Path, job: str, attempt: int, lease: dict[str, Any]) -> Path:
    folder = root / "jobs" / job / "attempts" / str(attempt)
    folder.mkdir(parents=True)
    (folder / LEASE).write_text(json.dumps(lease))
    return folder


def test_a_lease_of_version_0_1_0_is_read(tmp_path: Path) -> None:
    lead = write_lease(tmp_path, "1", 1, OF_0_1_0)
    member = write_lease(tmp_path, "2", 3, {"array": "jobs/1/attempts/1"})
    for folder in (lead, member):
        lease = read_lease(folder)
        assert lease is not None
        attempt, energy = lease
        assert (attempt.folder, attempt.jobs, attempt.allocation) == (lead, ["1", "2"], ((0, 2),))
        assert (attempt.gpus, attempt.settings) == ((2, 3), AttemptSettings(200, 64))
        assert attempt.event_files == {"1": lead / EVENTS, "2": member / EVENTS}
        assert (attempt.number("1"), attempt.number("2")) == (1, 3)
        assert energy == EnergySplit({"1": 0.0, "2": 0.0}, {2: (10.0, 2), 3: (None, 2)})


def test_an_allocation_on_several_nodes_is_read(tmp_path: Path) -> None:
    folder = write_lease(tmp_path, "1", 1, {**OF_0_1_0, "jobs": ["1"], "allocation": [[0, 1], [1, 1]]})
    lease = read_lease(folder)
    assert lease is not None
    assert lease[0].allocation == ((0, 1), (1, 1))


def test_a_folder_without_a_valid_lease_has_no_attempt(tmp_path: Path) -> None:
    folder = write_lease(tmp_path, "1", 1, {})
    for text in ("{", ""):
        (folder / LEASE).write_text(text)
        assert read_lease(folder) is None
    (folder / LEASE).unlink()
    assert read_lease(folder) is None
    assert read_lease(write_lease(tmp_path, "2", 1, {"array": "jobs/1/attempts/1"})) is None
