"""Models of unmeasured jobs: speeds and durations as in the trace."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import numpy as np

from wattline.core.events import Events
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.protocols import Models
from wattline.core.table import Bools, Floats, Ints
from wattline.errors import ConfigError
from wattline.measurement.devices import DEVICES
from wattline.models.array_speed import ArrayModel, max_array_width
from wattline.models.power.throttle import Throttle
from wattline.models.scaling import REQUEST, Scaling


@dataclass(frozen=True)
class TraceModels:
    """Models in which jobs run as fast as in their trace on the GPUs they requested.

    Spanning nodes divides the speed by *span_penalty*. Two jobs packed on the same GPUs run at
    *packed* of their own speed each, three at two thirds of that, and so on. 0.6 is a cautious
    value for pairs: time slicing alone gives 0.5, and pairs that do not compete for all resources exceed it.
    Fused jobs follow *array*. How the speed depends on the number of GPUs is not in a trace: *scaling* is
    assumed. Under a power cap the defaults of `wattline.models.power.throttle` for the device apply; for
    larger batches see `batch_efficiency`, for host resources `host_limited_rate`.
    """

    span_penalty: float = 1.0
    packed: float = 0.6
    array: ArrayModel = field(default_factory=ArrayModel)
    scaling: Scaling = REQUEST

    alike: ClassVar[bool] = True  # see `wattline.core.protocols.Models`

    def __post_init__(self) -> None:
        if not 1 <= self.span_penalty < math.inf:
            raise ConfigError(f"span_penalty must be at least 1 and finite, got {self.span_penalty}")
        if not 0 < self.packed <= 1:
            raise ConfigError(f"packed must be above 0 and at most 1, got {self.packed}")

    def speed(self, jobs: Jobs, grants: Grants) -> Floats:
        """Return the speed of each grant relative to the trace, see `wattline.core.protocols.Models`."""
        requested, most = jobs.gpus[grants.job], jobs.max_gpus[grants.job]
        speed = self.scaling.speed(grants.gpus, requested, most)
        if self.span_penalty != 1.0:
            speed = np.where(grants.nodes > 1, speed / self.span_penalty, speed)
        if grants.members.max(initial=1) > 1:
            speed = speed * self.sharing_speed(grants.members, grants.fused)
        if grants.batch.any():
            usual = np.maximum(jobs.batch[grants.job], 1)
            larger = np.where(grants.batch > 0, grants.batch / usual, 1.0)
            speed = speed * larger * batch_efficiency(jobs.noise[grants.job], usual, larger * usual)
        if grants.cap_w.any():
            speed = speed * _capped_rate(grants)
        if grants.host.any():
            speed = speed * host_limited_rate(jobs, grants)
        return np.asarray(speed)

    def watts(self, jobs: Jobs, grants: Grants) -> Floats:
        """Return nan: unknown, so that the node's watts limited by the cap are used."""
        return np.full(len(grants), np.nan)

    def sharing_speed(self, members: Ints, fused: Bools) -> Floats:
        """Return the relative speed of each of *members* jobs on the same GPUs."""
        packed = np.where(members > 1, self.packed * 2 / members, 1.0)
        if not fused.any():
            return packed
        return np.where(fused, 1.0 / self.array.slowdown(members.astype(np.float64)), packed)

    def observe(self, events: Events, jobs: Jobs, leases: Leases, nodes: Nodes) -> TraceModels:
        """Return the models unchanged: they do not learn."""
        return self


def batch_efficiency(noise: Floats, requested: Floats | Ints, batch: Floats | Ints) -> Floats:
    """Return the progress per sample at *batch* relative to the requested batch: (φ + B₀) / (φ + B).

    φ is the gradient noise scale (McCandlish et al. 2018; Pollux, OSDI 2021). 0: unknown; a larger batch
    then gains nothing.
    """
    return np.asarray((noise + requested) / (noise + batch))


def host_limited_rate(jobs: Jobs, grants: Grants, least: Floats | None = None) -> Floats:
    """Return the rate of jobs, reduced in proportion where they have less of the host than suffices.

    *least* are the cores and GiB per GPU that are known to suffice; nan or None: the job's request.
    """
    rate = np.ones(len(grants))
    for row, (unit, requested) in enumerate(((1000, jobs.cpus), (1024, jobs.mem_gib))):
        granted, enough = grants.host[row], requested[grants.job] / jobs.gpus[grants.job]
        if least is not None:
            enough = np.where(np.isnan(least[row]), enough, least[row])
        short = (granted > 0) & (granted < np.floor(unit * enough))
        rate = np.where(short, np.minimum(rate, granted / np.where(short, unit * enough, 1.0)), rate)
    return rate


def _capped_rate(grants: Grants) -> Floats:
    """Return the rate of GPUs of known kinds under their caps; 1 for others."""
    rate = np.ones(len(grants))
    for code, name in enumerate(grants.kind.names):
        here = np.flatnonzero((grants.kind.codes == code) & (grants.cap_w > 0))
        if len(here) and name in DEVICES:
            caps, place = np.unique(grants.cap_w[here], return_inverse=True)
            rate[here] = np.array([_device_rate(name, cap_w) for cap_w in caps.tolist()])[place]
    return rate


@lru_cache(maxsize=4096)
def _device_rate(kind: str, cap_w: int) -> float:
    """Return the rate of an unmeasured GPU of this kind under a cap."""
    free = Throttle(kind, np.ones(1), np.full(1, np.nan))
    return float(free.at(np.ones(1), np.full(1, float(cap_w)), np.full(1, np.nan))[0][0])


@dataclass(frozen=True)
class Misjudged:
    """Models with errors: each job's speed and watts are multiplied by constant random factors.

    The factors are log-normal with standard deviation *error*, drawn from (*seed*, job). Used to test
    policies with estimates as inaccurate as those of users.
    """

    truth: Models = TraceModels()
    error: float = 0.5
    seed: int = 0

    def speed(self, jobs: Jobs, grants: Grants) -> Floats:
        """Return the true speed times the job's error."""
        return np.asarray(self.truth.speed(jobs, grants) * self._factor(jobs, 0)[grants.job])

    def watts(self, jobs: Jobs, grants: Grants) -> Floats:
        """Return the true watts times the job's error."""
        return np.asarray(self.truth.watts(jobs, grants) * self._factor(jobs, 1)[grants.job])

    def widest(self, jobs: Jobs, grants: Grants) -> Floats:
        """Return the largest array width, without error."""
        return max_array_width(self.truth, jobs, grants)

    def _factor(self, jobs: Jobs, stream: int) -> Floats:
        draws = np.random.default_rng((self.seed, stream)).standard_normal(len(jobs))
        return np.asarray(np.exp(self.error * draws))

    def observe(self, events: Events, jobs: Jobs, leases: Leases, nodes: Nodes) -> Misjudged:
        """Return the models unchanged: they do not learn."""
        return self
