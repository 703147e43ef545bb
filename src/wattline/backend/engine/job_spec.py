"""What is to be run for a job, and where its files are: one folder for each job, one for each attempt.

jobs/ID/checkpoint/             what it saves, over all attempts
jobs/ID/attempts/1/             lease.json: on what; launch.json, claim.json, exit.json: its processes;
                                rank0.log, events.jsonl: what it says
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import Any

EVENTS = "events.jsonl"
LOG = "rank0.log"
_OWN_RANKS = ("torchrun", "accelerate", "deepspeed", "mpirun", "srun")


@dataclass(frozen=True)
class Work:
    """One job as processes: plain data, kept as JSON."""

    id: str
    words: tuple[str, ...]
    workdir: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""  # runs as; empty: as the service
    signal: str = "SIGTERM"
    grace_s: float = 30.0
    time_limit_s: float | None = None
    checkpoint: str = ""  # empty: in the job's folder
    retries: int = 3
    power_w: float | None = None  # the most its owner wants
    aim: str = ""  # of the session: slowdown:1.05
    group: str = ""  # of a recurring job
    batch_sizes: tuple[int, ...] = ()
    batch: int = 0
    target: str = ""
    deadline_s: float | None = None
    memory_gib: float = 0.0  # for each GPU; 0: its share
    max_joules: float | None = None  # it is stopped when it has used so much
    config: Mapping[str, Any] | None = None  # of a member of an array; None: it cannot be one

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> Work:
        """From what `as_dict` gave."""
        tuples = {name: tuple(words[name]) for name in ("words", "batch_sizes")}
        return cls(**{**words, **tuples})

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @property
    def starts_ranks(self) -> bool:
        """Whether the command starts a process for each GPU by itself."""
        name = PurePath(self.words[0]).name
        module = "-m" in self.words[:4] and "torch.distributed.run" in self.words[:5]
        return name in _OWN_RANKS or module


@dataclass(frozen=True)
class Given:
    """What an attempt runs on."""

    gpus: tuple[int, ...]  # their numbers on this machine
    cap_w: int = 0  # of each; 0: nobody said
    batch: int = 0  # 0: its own
    mcpus: int = 0  # for each GPU; 0: its share
    mem_mib: int = 0


def job_folder(root: Path, job: str) -> Path:
    """All files of a job."""
    return root / "jobs" / job


def attempts(root: Path, job: str) -> list[Path]:
    """The folders of its attempts, the oldest first."""
    there = (job_folder(root, job) / "attempts").glob("[0-9]*")
    return sorted((path for path in there if path.name.isdecimal()), key=lambda path: int(path.name))


def checkpoint_folder(root: Path, work: Work) -> Path:
    """Where a job keeps what it saves."""
    if work.checkpoint:
        return Path(work.workdir, work.checkpoint)
    return job_folder(root, work.id) / "checkpoint"


def environment(
    root: Path,
    folder: Path,
    work: Work,
    given: Given,
    *,
    restarts: int,
    meter: str,
    members: int = 1,
    basis: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """What a job finds in its environment; ranks have their own besides, see `rank_environments`."""
    kept = {k: v for k, v in basis.items() if not k.startswith("WATTLINE_") or k == "WATTLINE_STATE"}
    visible = ",".join(map(str, given.gpus))
    power_w = min((w for w in (given.cap_w, work.power_w) if w), default=None)
    told = {
        "JOB_ID": work.id,
        "GPUS": str(len(given.gpus)),
        "BATCH_SIZE": str(given.batch or work.batch) if given.batch or work.batch else "",
        "POWER_LIMIT_W": "" if power_w is None else f"{power_w:g}",
        "FUSED_INDEX": "0",
        "FUSED_COUNT": str(members),
        "RESTART_COUNT": str(restarts),
        "CHECKPOINT_DIR": str(checkpoint_folder(root, work)),
        "DEADLINE": "" if work.deadline_s is None else f"{work.deadline_s:.0f}",
        "EVENTS": str(folder / EVENTS),
        "SIGNAL": work.signal,
        "GROUP": work.group,
        "TARGET": work.target,
        "AIM": work.aim,
        "METER": meter,
        "ATTEMPT": str(folder),
    }
    return {
        **kept,
        **work.env,
        **{f"WATTLINE_{name}": value for name, value in told.items() if value},
        "CUDA_VISIBLE_DEVICES": visible,
        "PYTHONUNBUFFERED": work.env.get("PYTHONUNBUFFERED", "1"),
    }


def rank_environments(work: Work, gpus: int) -> list[dict[str, str]]:
    """torchrun's variables, for each process of a job with so many GPUs."""
    count = 1 if work.starts_ranks or work.config is not None else gpus
    port = str(_free_port()) if count > 1 else "29500"
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        for rank in range(count)
    ]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def member_words(words: Sequence[str], script: int, file: Path) -> tuple[str, ...]:
    """The command that trains the members of a *file* as one array, from that of one of them."""
    return (*words[: script + 1], "--members", str(file))
