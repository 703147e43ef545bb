"""How long until a job is done."""

from __future__ import annotations

import numpy as np

from wattline.table import Floats
from wattline.types import Grants, Models, Snapshot


def remaining_s(snapshot: Snapshot, models: Models) -> Floats:
    """Seconds each queued job still needs with what it asked for, as *models* believe."""
    queue, jobs = snapshot.queue, snapshot.jobs
    speed = models.speed(jobs, Grants.of(queue.job, queue.gpus))
    return np.asarray(snapshot.steps_left * jobs.step_s[queue.job] / speed)
