"""Starting an attempt on this machine: its folder, environment and supervisor; and reading it back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wattline.backend.engine.array_files import MEMBERS, write_array_files
from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.container import find_apptainer, wrap_command
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
from wattline.backend.engine.local.attempt_processes import AttemptProcesses
from wattline.backend.engine.local.cgroups import ResourceLimits
from wattline.backend.engine.local.gpu_allocator import EnergySplit
from wattline.backend.engine.local.launch_file import Launch, User
from wattline.backend.engine.local.machine import Machine
from wattline.backend.engine.local.ranks import build_rank_environments
from wattline.backend.engine.local.user_lookup import look_up_user

LEASE = "lease.json"


def launch(
    root: Path,
    machine: Machine,
    limits: ResourceLimits,
    jobs: Sequence[JobRecord],
    attempt: AttemptRecord,
    energy: EnergySplit,
) -> None:
    """Start processes for one job, or for several as one array; they outlive this process.

    *energy* are the energy counters of its GPUs. Sets the attempt's folder, event files and cores.
    """
    lead = jobs[0].spec
    user = look_up_user(lead.user)
    owner = None if user is None else (user.uid, user.gid)
    folders = {job.id: create_attempt_folder(root, job.spec, owner) for job in jobs}
    folder = folders[lead.id]
    cores, memory = machine.share(attempt.node, attempt.gpus, attempt.settings)
    if lead.memory_gib:
        memory = int(lead.memory_gib * 2**30) * len(attempt.gpus)
    prepared = limits.prepare(lead.id, cores, memory)
    command = lead.command if len(jobs) == 1 else write_array_files(root, jobs, folder, folders)
    command = wrap_command(find_apptainer(), command, root, jobs)
    env, ranks = _build_environments(root, machine, jobs, attempt, folder, user)
    attempt.folder, attempt.cpus = folder, len(cores)
    attempt.event_files = {job: path / EVENTS for job, path in folders.items()}
    _write_leases(root, attempt, folders, energy, owner)
    Launch(
        command=tuple(command),
        workdir=lead.workdir,
        env=env,
        ranks=tuple(ranks),
        cores=prepared.cores,
        memory_bytes=memory,
        cgroups=tuple(prepared.cgroups),
        user=user,
        signal=lead.signal,
        grace_s=lead.grace_s,
        time_limit_s=lead.time_limit_s,
    ).write(folder)
    AttemptProcesses(folder).start()


def _build_environments(
    root: Path,
    machine: Machine,
    jobs: Sequence[JobRecord],
    attempt: AttemptRecord,
    folder: Path,
    user: User | None,
) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Return the environment of all ranks, and what each rank adds to it."""
    lead, gpus = jobs[0].spec, attempt.gpus
    model, batch = jobs[0].columns.get("model", ""), attempt.settings.batch or lead.batch
    env = build_job_environment(
        root,
        folder,
        lead,
        attempt.settings,
        gpus=len(gpus),
        restarts=int(folder.name) - 1,
        meter=machine.meter_text(gpus, None, model, batch),
        members=len(jobs),
    )
    env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    if len(jobs) > 1:
        env["WATTLINE_MEMBERS"] = str(folder / MEMBERS)
    ranks = build_rank_environments(lead, len(gpus))
    if len(ranks) > 1 and machine.simulated:
        for rank, own in enumerate(ranks):
            own["WATTLINE_METER"] = machine.meter_text(gpus, rank, model, batch)
    if user is None:
        env["WATTLINE_STATE"] = str(root / "caps")
    else:
        env |= {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
    return env, ranks


def _write_leases(
    root: Path,
    attempt: AttemptRecord,
    folders: Mapping[str, Path],
    energy: EnergySplit,
    owner: tuple[int, int] | None,
) -> None:
    """Write lease.json into the folders of all jobs; those of other members refer to the leading one."""
    lease = {
        "folder": str(attempt.folder),
        "jobs": list(folders),
        "node": attempt.node,
        "allocation": attempt.allocation,
        "given": {"gpus": attempt.gpus, **asdict(attempt.settings)},
        "at_s": attempt.since_s,
        "starts": int(attempt.folder.name),
        "cpus": attempt.cpus,
        "energy": energy.as_dict(),
    }
    write_json(attempt.folder / LEASE, lease)
    for path in folders.values():
        if path != attempt.folder:
            write_json(path / LEASE, {"array": str(attempt.folder.relative_to(root))})
            (path / LOG).touch(0o644)
            if owner is not None:
                os.chown(path / LOG, *owner)


def update_lease(attempt: AttemptRecord, energy: EnergySplit) -> None:
    """Write the current settings and the energy of a started attempt, for a process that adopts it."""
    lease = read_json(attempt.folder / LEASE)
    if lease is not None:
        given = {"gpus": attempt.gpus, **asdict(attempt.settings)}
        write_json(attempt.folder / LEASE, {**lease, "given": given, "energy": energy.as_dict()})


def read_lease(folder: Path) -> tuple[AttemptRecord, EnergySplit] | None:
    """Return the attempt in *folder*, or the array that it is a part of, and its energy when written.

    None: nothing was started there.
    """
    lease = read_json(folder / LEASE)
    if lease is None:
        return None
    if "array" in lease:
        folder = folder.parents[3] / lease["array"]
        lease = read_json(folder / LEASE)
        if lease is None:
            return None
    root = folder.parents[3]
    settings = dict(lease["given"])
    gpus = tuple(settings.pop("gpus"))
    allocation = lease.get("allocation") or [(lease["node"], len(gpus))]  # version 0.1.0 wrote only the node
    attempt = AttemptRecord(
        list(lease["jobs"]),
        tuple((node, count) for node, count in allocation),
        AttemptSettings(**settings),
        lease["at_s"],
        state="running",
        folder=folder,
        gpus=gpus,
        cpus=lease["cpus"],
        event_files={job: _member_folder(root, job, folder) / EVENTS for job in lease["jobs"]},
    )
    return attempt, _read_energy(lease, attempt)


def _read_energy(lease: Mapping[str, Any], attempt: AttemptRecord) -> EnergySplit:
    if "energy" in lease:
        return EnergySplit.from_dict(lease["energy"])
    pairs = zip(attempt.gpus, lease["readings"], strict=True)  # version 0.1.0 wrote the first readings
    return EnergySplit(
        dict.fromkeys(attempt.jobs, 0.0), {gpu: (start_j, len(attempt.jobs)) for gpu, start_j in pairs}
    )


def _member_folder(root: Path, job: str, lead: Path) -> Path:
    """Return the attempt folder of a member of the array that *lead* leads."""
    for folder in reversed(attempt_folders(root, job)):
        lease = read_json(folder / LEASE) or {}
        if folder == lead or lease.get("array") == str(lead.relative_to(root)):
            return folder
    return lead
