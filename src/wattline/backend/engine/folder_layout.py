"""Layout of the service's folder: one folder per job, and in it one per attempt.

jobs/ID/checkpoint/   what the job saves, over all attempts
jobs/ID/attempts/1/   lease.json: allocation; launch.json, claim.json, exit.json: processes;
                      rank0.log, events.jsonl: output and progress
jobs/ID/attempts/1.lease.json   allocation on Slurm, where the user of the job owns the folder of the attempt
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from wattline.backend.engine.job_spec import JobSpec
from wattline.backend.engine.user_files import read_json as read_json
from wattline.backend.engine.user_files import replace_file

EVENTS = "events.jsonl"
LOG = "rank0.log"


def job_folder(root: Path, job: str) -> Path:
    """Return the folder of all files of a job."""
    return root / "jobs" / job


def attempt_folders(root: Path, job: str) -> list[Path]:
    """Return the folders of a job's attempts, the oldest first."""
    paths = (job_folder(root, job) / "attempts").glob("[0-9]*")
    return sorted((path for path in paths if path.name.isdecimal()), key=lambda path: int(path.name))


def log_file(root: Path, job: str, attempt: int) -> Path:
    """Return the file with the output of the first rank of an attempt."""
    return job_folder(root, job) / "attempts" / str(attempt) / LOG


def checkpoint_folder(root: Path, spec: JobSpec) -> Path:
    """Return the folder in which a job saves its work."""
    if spec.checkpoint:
        return Path(spec.workdir, spec.checkpoint)
    return job_folder(root, spec.id) / "checkpoint"


def create_attempt_folder(root: Path, spec: JobSpec, owner: tuple[int, int] | None) -> Path:
    """Create the folder of the next attempt, with a file for the job's events.

    *owner* (user id, group id) may write that file and the checkpoint folder, which others cannot read; None:
    this process' user.
    """
    earlier = attempt_folders(root, spec.id)
    number = 1 + (int(earlier[-1].name) if earlier else 0)
    folder = job_folder(root, spec.id) / "attempts" / str(number)
    folder.mkdir(parents=True)
    events, checkpoint = folder / EVENTS, checkpoint_folder(root, spec)
    events.touch(0o644)
    if not spec.checkpoint:
        checkpoint.mkdir(mode=0o755 if owner is None else 0o700, parents=True, exist_ok=True)
        if owner is not None:
            os.chown(checkpoint, *owner)
    if owner is not None:  # files, never the folder: its owner could put links in the place of our files
        os.chown(events, *owner)
    return folder


def write_json(path: Path, values: Any) -> None:
    """Replace a file atomically, and return when it is on the disk."""
    replace_file(path, json.dumps(values).encode())
