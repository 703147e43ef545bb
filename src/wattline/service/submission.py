"""From a job file to jobs: what to run, and what to ask of the scheduler."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattline.backend.engine.job_record import Life
from wattline.backend.engine.job_spec import Work
from wattline.errors import ConfigError, NotAllowed
from wattline.jobfile import JobFile, Member, expand, fusible
from wattline.service.storage.projection import Folded

UNKNOWN_S = 3600.0
"""What a job takes of which nobody says how long."""


@dataclass(frozen=True)
class Accepted:
    """One job, before it has a number."""

    name: str
    work: dict[str, Any]  # a `Work` but for its id
    asks: dict[str, Any]  # columns of `Jobs`
    fuse: str


def accept(job: JobFile, user: str, workdir: str, lasted_s: float | None = None) -> list[Accepted]:
    """The jobs of a file that *user* submits; *lasted_s* is how long such jobs took before."""
    folder = job.workdir or workdir
    if not os.path.isabs(folder):
        raise ConfigError(f"workdir is {folder!r}, expected an absolute path")
    check_user(user)
    members = expand(job)
    return [
        _one(job, member, user, folder, lasted_s, len(members), number)
        for number, member in enumerate(members)
    ]


def check_user(user: str) -> None:
    """Raise unless jobs of that user can be run: as another user only by who is root."""
    if not user:
        return
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        raise NotAllowed(f"user {user!r} does not exist on this machine") from None
    if os.geteuid() not in (0, uid):
        me = pwd.getpwuid(os.geteuid()).pw_name
        raise NotAllowed(
            f"jobs of {user} cannot be run: the service is {me}, and only root runs jobs as others"
        )


def _one(
    job: JobFile, member: Member, user: str, folder: str, lasted_s: float | None, count: int, number: int
) -> Accepted:
    resources, recurring = job.resources, job.recurring
    least, asked, most = resources.gpu_range
    script = fusible(member.words, Path(folder)) if count > 1 and job.width != 1 else None
    batches = () if recurring is None or "batch_size" not in recurring.tune else recurring.batch_sizes
    deadline_s = None if job.deadline_at is None else job.deadline_at.timestamp()
    words = {
        "words": member.words,
        "workdir": folder,
        "env": member.env,
        "user": user,
        "signal": job.checkpoint.signal,
        "grace_s": job.checkpoint.grace_s,
        "time_limit_s": resources.time_s,
        "checkpoint": member.checkpoint_dir or "",
        "retries": job.retries,
        "power_w": job.energy.power_w,
        "aim": _aim(job),
        "group": "" if recurring is None else recurring.group,
        "batch_sizes": tuple(batches),
        "batch": job.batch_size or 0,
        "target": "" if recurring is None or recurring.target is None else recurring.target,
        "deadline_s": deadline_s,
        "memory_gib": resources.memory_gib or 0.0,
        "config": None if script is None else _config(member.words, script),
        "max_joules": job.energy.budget_j,
    }
    duration_s = lasted_s or resources.time_s or UNKNOWN_S
    asks = {
        "gpus": asked,
        "duration_s": duration_s,
        "deadline_s": deadline_s,
        "late_per_h": job.tardiness_weight or 0.0,
        "priority": job.priority,
        "batch": job.batch_size or 0,
        "min_gpus": least if job.elastic else asked,
        "max_gpus": most if job.elastic else asked,
        "cpus": (resources.cpus or 0.0) * asked,
        "mem_gib": (resources.memory_gib or 0.0) * asked,
        "team": job.team,
        "user": user,
        "model": job.model or "",
        "gpu_kind": "|".join(resources.gpu_types),
        "key": "" if recurring is None else recurring.group,
    }
    fuse = "" if script is None else _key(words, asks, script, job, number)
    return Accepted(member.name or Path(member.words[0]).name, words, asks, fuse)


def _aim(job: JobFile) -> str:
    """What a session should look for among power caps."""
    if job.energy.slowdown is not None:
        return f"slowdown:{job.energy.slowdown:g}"
    return "none" if job.recurring is not None and "power_limit" not in job.recurring.tune else ""


def _config(words: tuple[str, ...], script: Path) -> dict[str, Any]:
    """What a member's script is told, as it would read it from the command line."""
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


def _key(words: dict[str, Any], asks: dict[str, Any], script: Path, job: JobFile, number: int) -> str:
    """Equal for jobs that one process can train: the same script, as it is now, and all else alike.

    Who says how many should be one array gets just that: so many after each other have one key.
    """
    same = {k: v for k, v in words.items() if k not in ("words", "config")}
    text = json.dumps([same, asks, list(job.words), job.fuse, str(script)], default=str, sort_keys=True)
    key = hashlib.sha256(text.encode() + script.read_bytes()).hexdigest()[:16]
    return key if job.width is None else f"{key}-{number // job.width}!"


def life_of(job: Folded) -> Life:
    """A job that is not over, as the backend knows it."""
    asks = job.asked["asks"]
    return Life(
        work=Work.of({"id": job.id, **job.asked["work"]}),
        asks={**asks, "priority": job.priority, "deadline_s": asks["deadline_s"] or float("inf")},
        submit_s=job.submit_s,
        fuse=job.fuse,
        done=job.done,
        kills=job.kills,
        starts=job.starts,
        first_s=float("nan") if job.first_s is None else job.first_s,
        service_s=job.service_s,
        energy_j=job.energy_j,
        closed=job.starts if job.state == "PENDING" else job.starts - 1,
        cancelled=job.cancelled,
        due_s=float("-inf") if job.due_s is None else job.due_s,
    )
