"""A job that has not ended: its request, and its progress over all attempts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wattline.backend.engine.job_spec import JobSpec


@dataclass
class JobRecord:
    """An unfinished job. Only the thread that runs the loop changes it."""

    spec: JobSpec
    columns: Mapping[str, Any]  # one value per column of `Jobs`
    submit_s: float
    fuse: str = ""  # equal for jobs that may be trained as one array; empty: none
    completed_fraction: float = 0.0  # of its work, as saved in its checkpoint
    kill_count: int = 0
    starts: int = 0
    first_start_s: float = math.nan
    service_s: float = 0.0
    energy_j: float | None = 0.0  # of ended attempts; None: unknown, as some was not counted
    counted_j: float = 0.0  # of ended attempts, as far as it was counted
    retry_at_s: float = -math.inf  # not in the queue before this time
    last_closed_attempt: int = 0  # the newest attempt with a recorded end; 0: none
    cancelled: bool = False
    saves: bool = False  # it has saved a checkpoint in one of its attempts
    yields: bool | None = None  # a stop made it save and exit with 75; None: it was never stopped
    startup_s: float = 0.0  # from the start of an attempt to its first report; 0: unknown
    restart_s: float = 0.0  # the same of its last attempt that was not the first; 0: unknown
    crash: str = ""  # the signal of a program error that ended its last attempt soon after the start
    refusals: int = 0  # requests to start it that a limit of the cluster prevented, since its last start
    row: int = -1  # in the current job table; -1: not in the queue
    base_fraction: float = 0.0  # completed when it was given that row

    @property
    def id(self) -> str:
        """The job's id."""
        return self.spec.id

    @property
    def is_over_budget(self) -> bool:
        """True if its ended attempts have used the job's own energy budget."""
        return self.spec.max_joules is not None and self.counted_j > self.spec.max_joules

    @property
    def team(self) -> str:
        """The team that its energy counts for."""
        return str(self.columns.get("team", ""))
