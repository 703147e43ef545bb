"""The command of a job with its limits, and the settings of one attempt at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import Any

_RANK_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "srun")


@dataclass(frozen=True)
class JobSpec:
    """The command of one job and its limits. Plain data, stored as JSON."""

    id: str
    command: tuple[str, ...]
    workdir: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""  # account that runs it; empty: that of the service
    signal: str = "SIGTERM"  # sent before SIGKILL, so that the job can save its work
    grace_s: float = 30.0  # between *signal* and SIGKILL
    time_limit_s: float | None = None
    checkpoint: str = ""  # folder, relative to *workdir*; empty: in the job's own folder
    retries: int = 3
    power_w: float | None = None  # highest power limit per GPU that the user allows
    aim: str = ""  # of the session's cap search: slowdown:1.05
    group: str = ""  # of a recurring job
    batch_sizes: tuple[int, ...] = ()  # to try, for a recurring job
    batch: int = 0  # 0: the script's own
    target: str = ""
    deadline_s: float | None = None
    memory_gib: float = 0.0  # per GPU; 0: the proportional share
    max_joules: float | None = None  # the job is ended when it has used more
    elastic: bool = False  # it continues from its checkpoint with another number of GPUs
    preemptible: bool | None = None  # whether it may be stopped for others; None: once it has saved
    min_runtime_s: float | None = None  # of an attempt before it may be; None: by its start-up
    retry_delay_s: float | None = None  # before each retry; None: it grows
    retry_on: tuple[str, ...] | None = None  # causes of `exit_policy`; None: the usual
    image: str = ""  # of the container that it runs in; empty: none
    mounts: tuple[str, ...] = ()  # folders in the container: /data, /data:/inside or /data:/inside:ro
    config: Mapping[str, Any] | None = None  # hyper-parameters of an array member; None: cannot be fused

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> JobSpec:
        """Build a spec from the output of `as_dict`."""
        tuples = {
            name: tuple(values[name])
            for name in ("command", "batch_sizes", "retry_on", "mounts")
            if values.get(name) is not None
        }
        return cls(**{**values, **tuples})

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)

    @property
    def starts_ranks(self) -> bool:
        """True if the command starts one process per GPU itself, as torchrun does."""
        name = PurePath(self.command[0]).name
        module = "-m" in self.command[:4] and "torch.distributed.run" in self.command[:5]
        return name in _RANK_LAUNCHERS or module


@dataclass(frozen=True)
class AttemptSettings:
    """Power limit, batch size and host share of one attempt."""

    cap_w: int = 0  # per GPU; 0: none
    batch: int = 0  # of the whole job; 0: the script's own
    mcpus: int = 0  # thousandths of a core per GPU; 0: the proportional share
    mem_mib: int = 0  # per GPU; 0: the proportional share
