"""The folder of an attempt for Slurm: its lease and launch files, and reading them back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wattline.backend.engine.array_files import MEMBERS, write_array_files
from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.folder_layout import (
    EVENTS,
    LOG,
    attempt_folders,
    create_attempt_folder,
    read_json,
    write_json,
)
from wattline.backend.engine.job_environment import build_job_environment
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.job_spec import AttemptSettings
from wattline.backend.engine.local.attempt_files import CLAIM, FORMAT, LAUNCH, check_format
from wattline.backend.engine.local.attempt_files import write_json as write_private_json
from wattline.backend.engine.local.launch_file import ATTEMPT, Launch
from wattline.backend.engine.slurm.submission import NodeShare, SlurmOptions, build_srun_flags
from wattline.errors import ConfigError

LEASE = "lease.json"
_SERVICE_ONLY = ("SLURM", "SBATCH", "SQUEUE", "SRUN")  # variables of the service that are not for its jobs


def create_folders(root: Path, attempt: AttemptRecord, jobs: Sequence[JobRecord]) -> None:
    """Create the folders of an attempt, and set its folder and event files."""
    folders = {job.id: create_attempt_folder(root, job.spec, None) for job in jobs}
    attempt.folder = folders[jobs[0].id]
    attempt.event_files = {job: path / EVENTS for job, path in folders.items()}


def write_attempt(
    root: Path,
    attempt: AttemptRecord,
    jobs: Sequence[JobRecord],
    shares: Sequence[NodeShare],
    options: SlurmOptions,
) -> None:
    """Write all that the batch step of an attempt needs into its folder; takes some milliseconds."""
    lead, folder = jobs[0].spec, attempt.folder
    folders = {job: path.parent for job, path in attempt.event_files.items()}
    command = lead.command if len(jobs) == 1 else write_array_files(root, jobs, folder, folders)
    env = _build_environment(root, attempt, jobs, folder)
    launch = Launch(
        command=tuple(command),
        workdir=lead.workdir,
        env={**env, ATTEMPT: os.path.realpath(folder)},
        signal=lead.signal,
        grace_s=lead.grace_s,
        time_limit_s=lead.time_limit_s,
    )
    ranks_per = "job" if lead.config is not None else "node" if lead.starts_ranks else "gpu"
    values = {
        "format": FORMAT,
        **asdict(launch),
        "nodes": [[share.name, share.address, share.gpus] for share in shares],
        "ranks_per": ranks_per,
        "srun": [] if ranks_per == "job" else build_srun_flags(shares),
        "meter": "" if options.meter == "none" else options.meter,
        "heartbeat_s": options.heartbeat_s,
    }
    _write_lease(root, attempt, folders, shares)
    write_private_json(str(folder / LAUNCH), values)


def _build_environment(
    root: Path, attempt: AttemptRecord, jobs: Sequence[JobRecord], folder: Path
) -> dict[str, str]:
    basis = {name: value for name, value in os.environ.items() if not name.startswith(_SERVICE_ONLY)}
    env = build_job_environment(
        root,
        folder,
        jobs[0].spec,
        attempt.settings,
        gpus=sum(count for _, count in attempt.allocation),
        restarts=count_started(root, jobs[0].id, folder),
        meter="",
        members=len(jobs),
        basis=basis,
    )
    if len(jobs) > 1:
        env["WATTLINE_MEMBERS"] = str(folder / MEMBERS)
    return env


def count_started(root: Path, job: str, before: Path) -> int:
    """Return the number of a job's attempts before a folder that were claimed by a batch step."""
    earlier = [folder for folder in attempt_folders(root, job) if int(folder.name) < int(before.name)]
    claims = (read_json(folder / CLAIM) for folder in earlier)
    return sum(isinstance(claim, dict) and not claim.get("void") for claim in claims)


def _write_lease(
    root: Path, attempt: AttemptRecord, folders: Mapping[str, Path], shares: Sequence[NodeShare]
) -> None:
    """Write lease.json into the folders of all jobs; those of other members refer to the leading one."""
    write_json(
        attempt.folder / LEASE,
        {
            "format": FORMAT,
            "folder": str(attempt.folder),
            "jobs": list(folders),
            "allocation": [(share.name, share.gpus) for share in shares],
            "settings": asdict(attempt.settings),
            "at_s": attempt.since_s,
            "cpus": attempt.cpus,
        },
    )
    for path in folders.values():
        if path != attempt.folder:
            write_json(path / LEASE, {"format": FORMAT, "array": str(attempt.folder.relative_to(root))})
            (path / LOG).touch(0o644)


def update_settings(attempt: AttemptRecord) -> None:
    """Write the current settings of an attempt, for a process that adopts it."""
    lease = read_json(attempt.folder / LEASE)
    if lease is not None:
        write_json(attempt.folder / LEASE, {**lease, "settings": asdict(attempt.settings)})


def read_attempt(folder: Path, find_row: Callable[[str], int]) -> AttemptRecord | None:
    """Return the attempt in *folder*, or the array that it is a part of; None: none was written there.

    *find_row* returns the row of a node by its name. Raises `ConfigError` if a newer version has written it.
    """
    lease = _read_lease(folder)
    if lease is not None and "array" in lease:
        folder = folder.parents[3] / lease["array"]
        lease = _read_lease(folder)
    if lease is None or "allocation" not in lease or "settings" not in lease:
        return None
    root = folder.parents[3]
    return AttemptRecord(
        list(lease["jobs"]),
        tuple((find_row(name), count) for name, count in lease["allocation"]),
        AttemptSettings(**lease["settings"]),
        lease["at_s"],
        state="running",
        folder=folder,
        cpus=lease["cpus"],
        event_files={job: _member_folder(root, job, folder) / EVENTS for job in lease["jobs"]},
    )


def _read_lease(folder: Path) -> dict[str, Any] | None:
    lease = read_json(folder / LEASE)
    if not isinstance(lease, dict):
        return None
    if problem := check_format(lease, str(folder / LEASE)):
        raise ConfigError(problem)
    return lease


def _member_folder(root: Path, job: str, lead: Path) -> Path:
    """Return the attempt folder of a member of the array that *lead* leads."""
    for folder in reversed(attempt_folders(root, job)):
        lease = _read_lease(folder) or {}
        if folder == lead or lease.get("array") == str(lead.relative_to(root)):
            return folder
    return lead
