"""Price of time of each job: what a second until its end costs, and a second after it is due.

For the aim `jct` a second costs 1 for every job. For `cost` only lateness costs money, but a job that has
time now may not have it when others have come. So a second costs a part of the price of being late in any
case: 0.3 ρ², at most 0.3, where ρ is the remaining work over what the cluster can do until the jobs are due.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats
from wattline.policy.market.scene import Scene

_HEDGE = 0.3


class TimeValues(NamedTuple):
    """Prices of time by row of the queue; see `response.MarketRows`."""

    weight: Floats
    late: Floats
    due_s: Floats
    load: float = 0.0  # ρ, see above


def value_completion(scene: Scene) -> TimeValues:
    """Return the prices of time if the mean completion time counts."""
    count = len(scene.work_s)
    return TimeValues(np.ones(count), np.zeros(count), np.full(count, np.inf))


def value_lateness(
    snapshot: Snapshot, scene: Scene, per_j: float, urgency: float, patience: float
) -> TimeValues:
    """Return the prices of time if lateness costs money.

    *per_j* is the mean price of a joule. A job without a price of lateness pays *urgency* times the cost of
    its energy in that time; a job without deadline is due *patience* times its run time after submission.
    """
    jobs, job = snapshot.jobs, snapshot.queue.job
    deadline_s = jobs.deadline_s[job]
    has_due = np.isfinite(deadline_s)
    watts = jobs.gpus[job] * float(snapshot.nodes.busy_w.max())
    priced = has_due & (jobs.late_per_h[job] > 0)
    late = np.where(priced, jobs.late_per_h[job] / 3600, urgency * per_j * watts)
    due_s = (
        np.where(has_due, deadline_s, jobs.submit_s[job] + patience * jobs.duration_s[job]) - snapshot.now_s
    )
    fastest, least_gpus = _find_fastest(scene)
    run_s = scene.work_s / fastest
    open_rows = scene.open_to > 0
    load = 0.0
    if open_rows.any():
        work = float((scene.work_s * least_gpus)[open_rows].sum())
        load = work / max(float(scene.room.sum()) * float(np.maximum(due_s, run_s)[open_rows].mean()), 1.0)
    # Its work is done half its run time before it ends.
    return TimeValues(late * min(_HEDGE, _HEDGE * load * load), late, due_s - 0.5 * run_s, load)


def _find_fastest(scene: Scene) -> tuple[Floats, Floats]:
    """Return the largest speed of each row, and the least GPU-seconds that a unit of its work needs."""
    configs = scene.configs
    speed, gpus = np.full(len(scene.work_s), 1e-9), np.full(len(scene.work_s), np.inf)
    sizes = np.arange(configs.gpus.shape[1])
    for k in range(scene.kinds):
        of = scene.job_class + k * scene.classes
        fastest = configs.speed.max(axis=2)
        counts = (sizes < configs.size_count[of][:, None]) & ((scene.open_to >> k) & 1 == 1)[:, None]
        counts &= (configs.gpus[of] <= scene.room[k]) & (fastest[of] > 0)
        here = np.where(counts, fastest[of], 0.0)
        speed = np.maximum(speed, here.max(axis=1))
        needs = configs.gpus[of] / np.where(counts, here, 1.0)
        gpus = np.minimum(gpus, np.where(counts, needs, np.inf).min(axis=1))
    return speed, np.where(np.isfinite(gpus), gpus, 0.0)
