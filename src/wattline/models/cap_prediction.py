"""Speed and draw of one job under several power caps, with any batch size and share of a host."""

from __future__ import annotations

import numpy as np

from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.protocols import Models
from wattline.core.table import Floats, Ints


def predict_under_caps(
    models: Models,
    jobs: Jobs,
    nodes: Nodes,
    job: int,
    kind: int,
    gpus: int,
    cap_w: Ints,
    batch: Ints,
    host: tuple[int, ...],
) -> tuple[Floats, Floats]:
    """Return the speed of *job* and the watts of each of its GPUs under each of the caps *cap_w* (0: none).

    *batch* is by cap (0: as requested), *host* the host resources per GPU as in `Grants.host`. A draw that
    the models do not know is that of a busy GPU, or the cap.
    """
    here = nodes.kind.codes == kind
    same = np.ones(len(cap_w), dtype=np.int64)
    grants = Grants.of(
        same * job,
        same * gpus,
        same * -(-gpus // int(nodes.gpus[here].max())),
        cap_w=cap_w,
        batch=batch,
        host=np.outer(host, same).astype(np.int64),
        kind=nodes.kind.names[kind],
    )
    busy_w = float(nodes.busy_w[here].max())
    gpu_w = models.watts(jobs, grants)
    gpu_w = np.where(np.isnan(gpu_w), np.where(cap_w > 0, np.minimum(cap_w, busy_w), busy_w), gpu_w)
    return models.speed(jobs, grants), gpu_w
