"""Power caps of running jobs for the cores, memory and storage that they have.

Where a placer splits hosts by need, columns count with as much of a host as a job can use. A job that got
less waits for its input, and a lower cap slows it down less than its column says, or not at all.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats, Ints
from wattline.models.cap_prediction import predict_under_caps
from wattline.policy.market.arrays import count_members
from wattline.policy.market.rounding import NowRows
from wattline.policy.market.scene import Scene

_GAIN = 1e-3  # relative: a smaller one is not worth another cap


def lower_caps(
    snapshot: Snapshot, models: Models, scene: Scene, now: NowRows, kind: Ints, size: Ints, cap: Ints
) -> Ints:
    """Return *cap* of each row, or a lower one that is worth more with the host that the row has.

    Only jobs that run alone and keep their kind and number of GPUs change, and only where energy costs.
    """
    leases = snapshot.leases
    if not leases.host.any() or not (now.watt_price > 0).any():
        return cap
    first = np.searchsorted(leases.job, snapshot.queue.job)
    stays = (kind >= 0) & (kind == scene.held_kind) & (scene.count_gpus(kind, size) == scene.held)
    stays &= (count_members(scene) == 1) & (cap > 0) & (now.watt_price > 0)
    cap = cap.copy()
    for i in np.flatnonzero(stays).tolist():
        of, upto = int(scene.job_class[i] + kind[i] * scene.classes), slice(int(cap[i]) + 1)
        speed, watts = _predict(
            models,  # type: ignore[arg-type]  # models are frozen
            snapshot.jobs,
            snapshot.nodes,
            int(snapshot.queue.job[i]),
            int(kind[i]),
            int(scene.held[i]),
            tuple(scene.configs.cap_w[of, size[i], upto].tolist()),
            tuple(scene.configs.batch[of, size[i], upto].tolist()),
            tuple(leases.host[:, first[i]].tolist()),
        )
        worth = now.work_value[i] * speed - now.watt_price[i] * now.watts_factor[i] * watts
        best = len(worth) - 1 - int(np.argmax(worth[::-1]))  # of equals the loosest
        if worth[best] > worth[-1] + _GAIN * abs(float(worth[-1])):
            cap[i] = best
    return cap


@lru_cache(maxsize=16384)
def _predict(
    models: Models,
    jobs: Jobs,
    nodes: Nodes,
    job: int,
    kind: int,
    gpus: int,
    caps_w: tuple[int, ...],
    batches: tuple[int, ...],
    host: tuple[int, ...],
) -> tuple[Floats, Floats]:
    """Return speed and watts of a job under each of these caps, with the host resources per GPU *host*."""
    cap_w, batch = np.array(caps_w, dtype=np.int64), np.array(batches, dtype=np.int64)
    speed, gpu_w = predict_under_caps(models, jobs, nodes, job, kind, gpus, cap_w, batch, host)
    return speed, gpus * gpu_w
