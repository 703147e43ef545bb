"""What Synergy's published simulator takes for granted of jobs: one speed-up, or none."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from wattline.core.events import Events
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.table import Floats
from wattline.models.trace_model import Asked

_CORES, _GIB, _GPUS = 24.0, 500.0, 8  # of a server
DEMANDS = {
    "alexnet": (12.0, 125.0, 2.94),
    "shufflenet": (12.0, 125.0, 2.89),
    "synergy/resnet18": (9.0, 62.5, 2.40),
    "mobilenet": (6.0, 62.5, 1.55),
    "synergy/resnet50": (4.0, 62.5, 1.15),
    "m5": (6.0, 187.5, 2.50),
    "deepspeech": (3.0, 62.5, 1.0),
    "gnmt": (1.0, 20.0, 1.0),
    "transformer": (1.0, 20.0, 1.0),
    "lstm": (1.0, 20.0, 1.0),
}
"""Cores and GB for each GPU, and the speed-up with them over the proportional share.

Measured by the authors of Synergy (OSDI'22, MIT) on V100s; see `wattline.trace.formats.synergy`.
"""


@dataclass(frozen=True)
class Published:
    """A job that has all it demands runs at its speed-up, any other as if with the proportional share.

    A job that demands more than a server has gets what the server has, and of the speed-up as much as of
    the cores; one of more than eight GPUs has none. For comparisons: the real thing is a matrix.
    """

    otherwise: Asked = field(default_factory=Asked)

    alike: ClassVar[bool] = True  # see `wattline.core.protocols.Models`

    def speed(self, jobs: Jobs, grants: Grants) -> Floats:
        """See `wattline.core.protocols.Models`."""
        speed = self.otherwise.speed(jobs, replace(grants, host=np.zeros_like(grants.host)))
        rows = np.array([DEMANDS.get(name, (0.0, 0.0, 1.0)) for name in jobs.model.names])
        cores, gib, gain = rows[jobs.model.codes[grants.job]].T
        most_cores, most_gib = _CORES / grants.gpus, _GIB / grants.gpus
        has, has_gib = grants.host[0] / 1000, grants.host[1] / 1024
        full = (has >= np.minimum(cores, most_cores) - 1e-3) & (has_gib >= np.minimum(gib, most_gib) - 1e-3)
        share = _CORES / _GPUS
        part = np.clip((np.minimum(has, cores) - share) / np.maximum(cores - share, 1e-9), 0.0, 1.0)
        gains = full & (grants.host[0] > 0) & (grants.gpus <= _GPUS)
        speed = speed * np.where(gains, 1.0 + (gain - 1.0) * part, 1.0)
        # Less than the share and less than the demand: nobody published what happens then, but nothing good.
        short = (has < np.minimum(cores, share) - 1e-3) | (has_gib < np.minimum(gib, _GIB / _GPUS) - 1e-3)
        return np.asarray(np.where(short & (grants.host[0] > 0), 0.1 * speed, speed))

    def watts(self, jobs: Jobs, grants: Grants) -> Floats:
        """See `wattline.core.protocols.Models`."""
        return self.otherwise.watts(jobs, grants)

    def observe(self, events: Events, jobs: Jobs, leases: Leases, nodes: Nodes) -> Published:
        """Nothing is learnt."""
        return self
