"""Starting an attempt: its folder, its environment, its processes; and finding it again."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wattline.backend.engine.job_record import Life
from wattline.backend.engine.job_spec import (
    EVENTS,
    LOG,
    Given,
    Work,
    attempts,
    checkpoint_folder,
    environment,
    job_folder,
    member_words,
    rank_environments,
)
from wattline.backend.engine.local.attempt import Attempt, Launch, User
from wattline.backend.engine.local.cgroups import Limits
from wattline.backend.engine.local.machine import Machine
from wattline.errors import ConfigError

LEASE = "lease.json"
_MEMBERS = "members.json"


@dataclass(frozen=True)
class Started:
    """An attempt that somebody started: who is in it, and on what."""

    folder: Path
    jobs: tuple[str, ...]
    node: int
    given: Given
    at_s: float
    starts: int
    cpus: int
    readings: tuple[float | None, ...]  # of the GPUs' counters when it started
    events: Mapping[str, Path]  # where each job tells of itself


def start(
    root: Path,
    machine: Machine,
    limits: Limits,
    lives: Sequence[Life],
    node: int,
    given: Given,
    at_s: float,
    readings: tuple[float | None, ...],
) -> Started:
    """Start processes for one job, or for several as one array; they outlive us."""
    lead = lives[0].work
    user = _user(lead.user)
    folders = {life.id: _new_folder(root, life.work, user) for life in lives}
    folder = folders[lead.id]
    starts = int(folder.name)
    cores, memory = machine.share(node, given)
    if lead.memory_gib:
        memory = int(lead.memory_gib * 2**30) * len(given.gpus)
    prepared = limits.prepare(lead.id, cores, memory)
    words, ranks = lead.words, rank_environments(lead, len(given.gpus))
    array = len(lives) > 1
    if array:
        words = _array_words(root, lives, folder, folders)
    model, batch = lives[0].asks.get("model", ""), given.batch or lead.batch
    environ = environment(
        root,
        folder,
        lead,
        given,
        restarts=starts - 1,
        meter=machine.meter_text(given, None, model, batch),
        members=len(lives),
    )
    if array:
        environ["WATTLINE_MEMBERS"] = str(folder / _MEMBERS)
    if len(ranks) > 1 and machine.simulated:
        for rank, own in enumerate(ranks):
            own["WATTLINE_METER"] = machine.meter_text(given, rank, model, batch)
    if user is None:
        environ["WATTLINE_STATE"] = str(root / "caps")
    else:
        environ |= {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
    begun = Started(
        folder,
        tuple(life.id for life in lives),
        node,
        given,
        at_s,
        starts,
        len(cores),
        readings,
        {job: path / EVENTS for job, path in folders.items()},
    )
    _write(folder / LEASE, {**asdict(begun), "folder": str(folder), "events": None})
    for job, path in folders.items():
        if job != lead.id:  # who looks for it finds the array
            _write(path / LEASE, {"array": str(folder.relative_to(root))})
            (path / LOG).touch(0o644)
            if user is not None:
                os.chown(path / LOG, user.uid, user.gid)
    Launch(
        words=tuple(words),
        workdir=lead.workdir,
        env=environ,
        ranks=tuple(ranks),
        cores=prepared.cores,
        memory_bytes=memory,
        cgroups=tuple(prepared.cgroups),
        user=user,
        signal=lead.signal,
        grace_s=lead.grace_s,
        time_limit_s=lead.time_limit_s,
    ).write(folder)
    Attempt(folder).start()
    return begun


def found(folder: Path) -> Started | None:
    """What was started in this folder, or the array that it is a part of; None: nothing was."""
    words = _read(folder / LEASE)
    if words is None:
        return None
    if "array" in words:
        folder = folder.parents[3] / words["array"]
        words = _read(folder / LEASE)
        if words is None:
            return None
    root = folder.parents[3]
    given = Given(**{**words["given"], "gpus": tuple(words["given"]["gpus"])})
    events = {job: _member_folder(root, job, folder) / EVENTS for job in words["jobs"]}
    return Started(
        folder,
        tuple(words["jobs"]),
        words["node"],
        given,
        words["at_s"],
        words["starts"],
        words["cpus"],
        tuple(words["readings"]),
        events,
    )


def _member_folder(root: Path, job: str, lead: Path) -> Path:
    """The folder of a job in an array that is led from another."""
    for folder in reversed(attempts(root, job)):
        words = _read(folder / LEASE) or {}
        if folder == lead or words.get("array") == str(lead.relative_to(root)):
            return folder
    return lead


def _new_folder(root: Path, work: Work, user: User | None) -> Path:
    """A folder for the next attempt, and a file in it in which the job may write."""
    there = attempts(root, work.id)
    folder = job_folder(root, work.id) / "attempts" / str(1 + (int(there[-1].name) if there else 0))
    folder.mkdir(parents=True)
    events, kept = folder / EVENTS, checkpoint_folder(root, work)
    events.touch(0o644)
    if not work.checkpoint:
        kept.mkdir(parents=True, exist_ok=True)
        if user is not None:
            os.chown(kept, user.uid, user.gid)
    if user is not None:  # files, never the folder: whoever owns that could put links where we write
        os.chown(events, user.uid, user.gid)
    return folder


def _array_words(
    root: Path, lives: Sequence[Life], folder: Path, folders: Mapping[str, Path]
) -> tuple[str, ...]:
    """The command of an array, with the files that say who its members are."""
    members = [
        {
            "id": life.id,
            "name": life.asks.get("name", ""),
            "folder": str(folders[life.id]),
            "checkpoint": str(checkpoint_folder(root, life.work)),
            "config": life.work.config,
        }
        for life in lives
    ]
    _write(folder / _MEMBERS, members)
    configs = folder / "configs.json"
    _write(configs, [life.work.config for life in lives])
    words = lives[0].work.words
    script = next(n for n, word in enumerate(words) if word.endswith(".py"))
    return member_words(words, script, configs)


def _user(name: str) -> User | None:
    """As whom a job runs; None: as we do."""
    if not name or os.geteuid() != 0:
        return None
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"user {name!r} does not exist on this machine") from None
    if found.pw_uid == os.geteuid():
        return None
    groups = tuple(os.getgrouplist(name, found.pw_gid))
    return User(found.pw_uid, found.pw_gid, groups, found.pw_dir, name)


def _write(path: Path, words: Any) -> None:
    new = path.with_suffix(".new")
    with open(new, "w", encoding="utf-8") as file:
        json.dump(words, file)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
