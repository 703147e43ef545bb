"""Models of Synergy's published simulator: one speed-up for each job, or none."""

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
from wattline.models.trace_model import TraceModels

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
"""Cores and GB of each GPU, and the speed-up with them over the proportional share.

Measured by the authors of Synergy (OSDI'22, MIT) on V100s; see `wattline.trace.formats.synergy`.
"""


@dataclass(frozen=True)
class SynergyModels:
    """Speed-up for jobs with their whole demand; the speed of the proportional share for all others.

    A job that demands more than a server has gets what the server has, and as much of the speed-up as of the
    cores; one of more than eight GPUs has none. For comparisons only: measured speeds depend on all of cores
    and memory.
    """

    otherwise: TraceModels = field(default_factory=TraceModels)

    alike: ClassVar[bool] = True  # see `wattline.core.protocols.Models`

    def speed(self, jobs: Jobs, grants: Grants) -> Floats:
        """Return the speed of each grant; see `wattline.core.protocols.Models`."""
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
        # The speed with less than the share and less than the demand is not published; a tenth is assumed.
        short = (has < np.minimum(cores, share) - 1e-3) | (has_gib < np.minimum(gib, _GIB / _GPUS) - 1e-3)
        return np.asarray(np.where(short & (grants.host[0] > 0), 0.1 * speed, speed))

    def watts(self, jobs: Jobs, grants: Grants) -> Floats:
        """Return the watts of each grant; see `wattline.core.protocols.Models`."""
        return self.otherwise.watts(jobs, grants)

    def observe(self, events: Events, jobs: Jobs, leases: Leases, nodes: Nodes) -> SynergyModels:
        """Return these models: nothing is learnt."""
        return self
