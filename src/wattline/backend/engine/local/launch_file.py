"""launch.json: what the supervisor process has to run."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from wattline.backend.engine.local.attempt_files import LAUNCH, write_json
from wattline.errors import ConfigError

ATTEMPT = "WATTLINE_ATTEMPT"
"""Environment variable of a job: the folder of its attempt."""


@dataclass(frozen=True)
class User:
    """The account that a job runs as. HOME, USER and LOGNAME are set unless its environment has them."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    name: str


@dataclass(frozen=True)
class Launch:
    """A command to run in *workdir* with exactly *env*, once per entry of *ranks*, which add to *env*.

    *cores* (for CPU affinity) and *cgroups* (folders that the ranks join) are results of
    `ResourceLimits.prepare`. *memory_bytes* applies to each process where no cgroup limits memory (see
    `rank_process`). Each rank keeps *log_keep* log files of at most *log_limit_bytes*. To stop the job it is
    sent *signal*, and SIGKILL after *grace_s*.
    """

    command: tuple[str, ...]
    workdir: str
    env: Mapping[str, str]
    ranks: tuple[Mapping[str, str], ...] = ({},)
    cores: tuple[int, ...] | None = None
    memory_bytes: int | None = None
    cgroups: tuple[str, ...] = ()
    user: User | None = None  # None: that of this process
    umask: int = 0o022
    log_limit_bytes: int = 64 << 20
    log_keep: int = 2
    signal: str = "SIGTERM"
    grace_s: float = 30.0
    time_limit_s: float | None = None
    kill_ranks_together: bool = True

    def __post_init__(self) -> None:
        limit_s = self.time_limit_s
        for wrong, expected in (
            (not self.command or not self.command[0], "a command"),
            (any("\0" in word for word in self.command), "a command without NUL characters"),
            (not os.path.isabs(self.workdir), f"an absolute working folder, not {self.workdir!r}"),
            (not self.ranks, "at least one rank"),
            (self.cores is not None and not self.cores, "at least one core"),
            (self.memory_bytes is not None and self.memory_bytes <= 0, "memory above 0"),
            (self.log_limit_bytes < 1 or self.log_keep < 1, "room for at least one log"),
            (self.signal not in signal.Signals.__members__, f"the name of a signal, not {self.signal!r}"),
            (self.signal in ("SIGKILL", "SIGSTOP"), f"a signal that can be caught, not {self.signal}"),
            (not 0 <= self.grace_s < math.inf, f"a grace period of 0 s or more, not {self.grace_s}"),
            (limit_s is not None and not 0 < limit_s < math.inf, f"a time limit above 0, not {limit_s}"),
        ):
            if wrong:
                raise ConfigError(f"launch: expected {expected}")

    def write(self, folder: Path) -> None:
        """Write launch.json into an attempt's folder, and add the folder to the job's environment."""
        folder.mkdir(parents=True, exist_ok=True)
        values = asdict(self)
        values["env"] = {**self.env, ATTEMPT: os.path.realpath(folder)}
        write_json(str(folder / LAUNCH), values)
