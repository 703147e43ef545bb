"""The folder of an attempt for Slurm: its lease and launch files, and reading them back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wattline.backend.engine.array_files import MEMBERS, write_array_files
from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.container import wrap_command
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
from wattline.backend.engine.local.launch_file import ATTEMPT, Launch, User
from wattline.backend.engine.local.user_lookup import look_up_user
from wattline.backend.engine.slurm.submission import NodeShare, SlurmOptions, build_srun_flags
from wattline.errors import ConfigError

_SERVICE_ONLY = ("SLURM", "SBATCH", "SQUEUE", "SRUN")  # variables of the service that are not for its jobs
_FOR_ALL = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH")  # ... that are for jobs of other users, too


def lease_file(folder: Path) -> Path:
    """Return the file with the lease of an attempt: beside its folder, which the job's user can write."""
    return folder.with_name(f"{folder.name}.lease.json")


def create_folders(root: Path, attempt: AttemptRecord, jobs: Sequence[JobRecord]) -> None:
    """Create the folders of an attempt, and set its folder and event files.

    Those of another user are closed until `write_attempt` gives them to it.
    """
    user = look_up_user(jobs[0].spec.user)
    owner = None if user is None else (user.uid, user.gid)
    folders = {job.id: create_attempt_folder(root, job.spec, owner) for job in jobs}
    if user is not None:
        for folder in folders.values():
            folder.chmod(0o700)
    attempt.folder, attempt.user = folders[jobs[0].id], "" if user is None else user.name
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
    command = wrap_command(options.container, command, root, jobs)
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
    user = look_up_user(attempt.user)
    if user is not None:
        for path in folders.values():
            _give_folder(path, user)


def _give_folder(folder: Path, user: User) -> None:
    """Let a user, and no other, read and write an attempt's folder: its batch step writes all results there.

    Files first: while the folder is still of the service, no user can put links in their place.
    """
    for name in os.listdir(folder):
        os.chown(folder / name, user.uid, user.gid, follow_symlinks=False)
    os.chown(folder, user.uid, user.gid)


def _build_environment(
    root: Path, attempt: AttemptRecord, jobs: Sequence[JobRecord], folder: Path
) -> dict[str, str]:
    basis = {name: value for name, value in os.environ.items() if not name.startswith(_SERVICE_ONLY)}
    user = look_up_user(attempt.user)
    if user is not None:  # variables of the service may be secrets
        basis = {name: basis[name] for name in basis if name in _FOR_ALL or name.startswith("LC_")}
        basis |= user_variables(user)
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


def user_variables(user: User) -> dict[str, str]:
    """Return the variables of an account that a login sets."""
    return {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}


def count_started(root: Path, job: str, before: Path) -> int:
    """Return the number of a job's attempts before a folder that were claimed by a batch step."""
    earlier = [folder for folder in attempt_folders(root, job) if int(folder.name) < int(before.name)]
    claims = (read_json(folder / CLAIM) for folder in earlier)
    return sum(isinstance(claim, dict) and not claim.get("void") for claim in claims)


def _write_lease(
    root: Path, attempt: AttemptRecord, folders: Mapping[str, Path], shares: Sequence[NodeShare]
) -> None:
    """Write the leases of all jobs; those of other members refer to the leading one."""
    write_json(
        lease_file(attempt.folder),
        {
            "format": FORMAT,
            "folder": str(attempt.folder),
            "user": attempt.user,
            "jobs": list(folders),
            "allocation": [(share.name, share.gpus) for share in shares],
            "settings": asdict(attempt.settings),
            "at_s": attempt.since_s,
            "cpus": attempt.cpus,
        },
    )
    for path in folders.values():
        if path != attempt.folder:
            array = str(attempt.folder.relative_to(root))
            write_json(lease_file(path), {"format": FORMAT, "array": array})
            (path / LOG).touch(0o644)


def update_settings(attempt: AttemptRecord) -> None:
    """Write the current settings of an attempt, for a process that adopts it."""
    lease = _read_lease(attempt.folder)
    if lease is not None:
        write_json(lease_file(attempt.folder), {**lease, "settings": asdict(attempt.settings)})


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
        user=lease.get("user", ""),
        event_files={job: _member_folder(root, job, folder) / EVENTS for job in lease["jobs"]},
    )


def _read_lease(folder: Path) -> dict[str, Any] | None:
    lease = read_json(lease_file(folder))
    if not isinstance(lease, dict):
        return None
    if problem := check_format(lease, str(lease_file(folder))):
        raise ConfigError(problem)
    return lease


def _member_folder(root: Path, job: str, lead: Path) -> Path:
    """Return the attempt folder of a member of the array that *lead* leads."""
    for folder in reversed(attempt_folders(root, job)):
        lease = _read_lease(folder) or {}
        if folder == lead or lease.get("array") == str(lead.relative_to(root)):
            return folder
    return lead
