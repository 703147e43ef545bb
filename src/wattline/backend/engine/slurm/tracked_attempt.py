"""`TrackedAttempt`: the engine's data about one attempt on Slurm."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from wattline.backend.engine.attempt_record import AttemptRecord
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.slurm.attempt_folder import AttemptFolder

Phase = Literal["waiting", "asked", "queued", "claimed"]


@dataclass
class TrackedAttempt:
    """The engine's data about an attempt, kept until it is released. Times are of `time.monotonic`."""

    attempt: AttemptRecord
    jobs: list[JobRecord] = field(default_factory=list)  # to start; empty: it was adopted
    after: list[AttemptRecord] = field(default_factory=list)
    phase: Phase = "waiting"
    comment: str = ""
    job_id: str = ""  # as sbatch or squeue last reported it
    changed_s: float = 0.0  # Slurm's state must be newer than this to count
    retry_s: float = 0.0  # when its files are written again, after that has failed; 0: it has not
    is_folder_unused: bool = False  # its folder was created for a submission that did not happen
    submits: int = 0
    limited_s: float = -1.0  # since when it waits for a limit of its account; -1: it does not
    signal: Literal["", "TERM", "USR1"] = ""  # to be sent to the batch step
    signal_s: float = -1.0  # when it was last sent; -1: never
    delivered_s: float = -1.0  # since when the batch step has it; -1: it has not
    unclaimed_s: float = math.inf  # since when Slurm runs it without a claim; -1: that was reported
    unknown_s: float = math.inf  # since when it runs and Slurm does not know it; -1: that was handled
    listened_s: float = 0.0  # when its heartbeat was last read while Slurm ran it

    @property
    def folder(self) -> AttemptFolder:
        """The folder of the attempt."""
        return AttemptFolder(self.attempt.folder)
