"""One attempt at one job, or at several as an array, from the request to start it to its end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from wattline.backend.engine.exit_status import Exit
from wattline.backend.engine.job_spec import AttemptSettings
from wattline.backend.engine.preemption import CheckpointWatch
from wattline.backend.engine.progress import ProgressReader

Allocation = tuple[tuple[int, int], ...]
"""GPUs of an attempt as pairs (node, number of GPUs)."""

AttemptState = Literal["queued", "running", "ended", "vanished", "refused"]
"""*queued*: requested, its GPUs are still in use. *vanished*: its processes are gone without an exit status.
*refused*: the engine could not start it."""


@dataclass(eq=False)
class AttemptRecord:
    """An attempt that the backend asked an engine to start, or found running. Compared by identity."""

    jobs: list[str]  # ids; jobs that left the array are removed
    allocation: Allocation
    settings: AttemptSettings
    since_s: float  # when it was requested; when it runs, since when

    # Written by the engine.
    state: AttemptState = "queued"
    folder: Path = Path()  # of its first job; empty: not created yet
    gpus: tuple[int, ...] = ()  # indices on the nodes, in the order of *allocation*; empty: not known yet
    cpus: int = 0
    cap_w: float | None = None  # power limit of its GPUs, as the driver reports it; None: not known
    event_files: Mapping[str, Path] = field(default_factory=dict)  # by job
    exit: Exit | None = None
    message: str = ""  # why it was refused, or why the engine lets it wait
    refusal: Literal["", "limit", "final"] = ""  # *limit*: a later request may be granted; *final*: none will
    user: str = ""  # user that its processes run as; empty: that of this process
    failure: Literal["", "reboot", "node_lost", "forgotten"] = ""  # why it vanished, if no fault of the job

    # Written by the backend.
    is_array: bool = False  # it was started with several jobs
    has_trial: bool = False  # its batch size is an open trial of a recurring job
    preempted: bool = False  # the policy gave its GPUs away
    end_reason: Literal["", "stop", "cancel", "budget"] = ""  # why it was asked to end
    leaving: dict[str, str] = field(default_factory=dict)  # by member: why it was asked to end
    progress: dict[str, ProgressReader] = field(default_factory=dict)
    checkpoints: dict[str, CheckpointWatch] = field(default_factory=dict)
    for_budget: bool = False  # the policy gave its GPUs away to hold an energy budget
    unsaved_s: float = 0.0  # running time that was not saved when the policy gave its GPUs away
    checked_s: float = -math.inf  # when progress was last read
    power_w: float | None = None  # of its GPUs, when progress was last read
    reported_s: float = -math.inf  # when a rate was last reported to the policy
    reported_rate: float = 0.0

    @property
    def node(self) -> int:
        """The first node."""
        return self.allocation[0][0]

    @property
    def effective_cap_w(self) -> float:
        """The power limit of its GPUs, read back if it could be; 0: none was set."""
        return (self.cap_w or self.settings.cap_w) if self.settings.cap_w else 0

    @property
    def started(self) -> bool:
        """True once processes were started for it."""
        return self.state not in ("queued", "refused")

    def number(self, job: str) -> int:
        """Return the number of this attempt among those of a job, from 1."""
        return int(self.event_files[job].parent.name)
