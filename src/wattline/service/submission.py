"""Conversion of a job file into jobs: the command to run, and the columns of the scheduler's job table."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.job_spec import JobSpec
from wattline.core.nodes import Nodes
from wattline.errors import ConfigError, NotAllowed
from wattline.jobfile import JobFile, SweepMember, expand, find_fusible_script
from wattline.jobfile.job_name import default_name
from wattline.service.satisfiability import fits_host
from wattline.service.storage.projection import JobRow

_NO_KIND = "none"
DEFAULT_DURATION_S = 3600.0
"""Assumed run time of a job without a time limit and without earlier runs."""


@dataclass(frozen=True)
class Submission:
    """One job before it has an id. Plain data, stored as JSON."""

    name: str
    spec: dict[str, Any]  # fields of `JobSpec` without id
    columns: dict[str, Any]  # one value per column of `Jobs`
    fuse: str  # equal for jobs that may be trained as one array; empty: none
    matrix: dict[str, Any]  # its values of the matrix; empty: there is none


def build_submissions(
    job: JobFile, user: str, workdir: str, expected_s: float | None = None
) -> list[Submission]:
    """Return the jobs of a file, one per member of its matrix.

    *workdir* is used where the file has none. *expected_s* is the mean run time of earlier recurrences.
    """
    folder = job.workdir or workdir
    if not os.path.isabs(folder):
        raise ConfigError(f"workdir is {folder!r}, expected an absolute path")
    check_user(user)
    members = expand(job)
    return [
        _build_submission(job, member, user, folder, expected_s, len(members), index)
        for index, member in enumerate(members)
    ]


def check_own_user(user: str) -> None:
    """Raise `NotAllowed` if *user* is not the account of this process; empty: it is."""
    me = pwd.getpwuid(os.geteuid()).pw_name
    if user not in ("", me):
        raise NotAllowed(
            f"jobs of user {user} cannot run: on Slurm this service runs all jobs as {me}",
            f"start a service of {user}'s own, or this one as root",
        )


def check_user(user: str) -> None:
    """Raise `NotAllowed` unless this process can run jobs as *user*; empty: as the service itself."""
    if not user:
        return
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        raise NotAllowed(f"user {user!r} does not exist on this machine") from None
    if os.geteuid() not in (0, uid):
        me = pwd.getpwuid(os.geteuid()).pw_name
        raise NotAllowed(
            f"jobs of user {user} cannot run: the service runs as {me}, and only root runs jobs of others"
        )


def _build_submission(
    job: JobFile,
    member: SweepMember,
    user: str,
    folder: str,
    expected_s: float | None,
    member_count: int,
    index: int,
) -> Submission:
    resources, recurring = job.resources, job.recurring
    least, requested, most = resources.gpu_range
    may_fuse = member_count > 1 and job.width != 1
    script = find_fusible_script(member.words, Path(folder)) if may_fuse else None
    batch_sizes = () if recurring is None or "batch_size" not in recurring.tune else recurring.batch_sizes
    deadline_s = None if job.deadline_at is None else job.deadline_at.timestamp()
    spec = {
        "command": member.words,
        "workdir": folder,
        "env": member.env,
        "user": user,
        "signal": job.checkpoint.signal,
        "grace_s": job.checkpoint.grace_s,
        "time_limit_s": resources.time_s,
        "checkpoint": member.checkpoint_dir or "",
        "retries": job.retries if job.retry.limit is None else job.retry.limit,
        "retry_delay_s": job.retry.delay_s,
        "retry_on": job.retry.on,
        "elastic": job.elastic,
        "preemptible": job.preemptible,
        "min_runtime_s": job.checkpoint.min_runtime_s,
        "power_w": job.energy.power_w,
        "aim": _session_aim(job),
        "group": "" if recurring is None else recurring.group,
        "batch_sizes": tuple(batch_sizes),
        "batch": job.batch_size or 0,
        "target": "" if recurring is None or recurring.target is None else recurring.target,
        "deadline_s": deadline_s,
        "memory_gib": resources.memory_gib or 0.0,
        "config": None if script is None else _member_config(member.words, script),
        "max_joules": job.energy.budget_j,
        "image": job.container_image,
        "mounts": job.container_mounts,
    }
    columns = {
        "gpus": requested,
        "duration_s": expected_s or resources.time_s or DEFAULT_DURATION_S,
        "deadline_s": deadline_s,
        "late_per_h": job.tardiness_weight or 0.0,
        "priority": job.priority,
        "batch": job.batch_size or 0,
        "min_gpus": least if job.elastic else requested,
        "max_gpus": most if job.elastic else requested,
        "cpus": (resources.cpus or 0.0) * requested,
        "mem_gib": (resources.memory_gib or 0.0) * requested,
        "team": job.team,
        "user": user,
        "model": job.model or "",
        "gpu_kind": "|".join(resources.gpu_types),
        "key": "" if recurring is None else recurring.group,
        "always_fuse": script is not None and job.width is not None,
    }
    fuse = "" if script is None else _fusion_key(spec, columns, script, job, index)
    matrix = {name: _finite(value) for name, value in member.values.items()}
    return Submission(member.name or default_name(member.words), spec, columns, fuse, matrix)


def _finite(value: object) -> object:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _session_aim(job: JobFile) -> str:
    """Return the goal of the session's search for a power cap; empty: the session's default."""
    if job.energy.slowdown is not None:
        return f"slowdown:{job.energy.slowdown:g}"
    return "none" if job.recurring is not None and "power_limit" not in job.recurring.tune else ""


def _member_config(words: tuple[str, ...], script: Path) -> dict[str, Any]:
    """Return the `name=value` arguments after the script, parsed as `fusion.main` parses them."""
    at = next(n for n, word in enumerate(words) if word.endswith(script.name))
    config: dict[str, Any] = {}
    for word in words[at + 1 :]:
        name, _, text = word.partition("=")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        config[name] = text if isinstance(value, dict | list) else value
    return config


def _fusion_key(spec: dict[str, Any], columns: dict[str, Any], script: Path, job: JobFile, index: int) -> str:
    """Return a key that is equal for jobs one process can train.

    These have the same script, by content, and differ only in their arguments. With `fuse: N`, every N
    consecutive members share a key.
    """
    common = {name: value for name, value in spec.items() if name not in ("command", "config")}
    text = json.dumps([common, columns, list(job.words), job.fuse, str(script)], default=str, sort_keys=True)
    key = hashlib.sha256(text.encode() + script.read_bytes()).hexdigest()[:16]
    return key if job.width is None else f"{key}-{index // job.width}"


def record_from_row(job: JobRow, nodes: Nodes) -> JobRecord:
    """Return a live job as the backend keeps it.

    A pending job that no node has the cores and memory for accepts no kind of GPU, so that it waits.
    """
    spec, columns = job.submission["spec"], job.submission["columns"]
    if job.state == "PENDING" and not fits_host(nodes, spec, columns):
        columns = {**columns, "gpu_kind": _NO_KIND}
    return JobRecord(
        spec=JobSpec.from_dict({"id": job.id, **spec}),
        columns={**columns, "priority": job.priority, "deadline_s": columns["deadline_s"] or float("inf")},
        submit_s=job.submit_s,
        fuse=job.fuse,
        completed_fraction=job.completed_fraction,
        kill_count=job.kill_count,
        starts=job.starts,
        first_start_s=float("nan") if job.first_start_s is None else job.first_start_s,
        service_s=job.service_s,
        energy_j=job.energy_j,
        counted_j=job.energy_j or 0.0,
        last_closed_attempt=job.starts if job.state == "PENDING" else job.starts - 1,
        cancelled=job.cancelled,
        retry_at_s=float("-inf") if job.retry_at_s is None else job.retry_at_s,
        saves=bool(job.results.get("saves", False)),
        yields=job.results.get("yields"),
        startup_s=float(job.results.get("startup_s", 0.0)),
        restart_s=float(job.results.get("restart_s", 0.0)),
        crash=str(job.results.get("crash", "")),
    )
