"""What is believed of a job nobody has measured: it does what its trace says."""

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
from wattline.models.array_speed import Array, widest
from wattline.models.power.throttle import Throttle


@dataclass(frozen=True)
class Asked:
    """Jobs run as fast as their trace says, on the GPUs they asked for.

    Spanning nodes divides the speed by *span_penalty*. Two jobs packed on the same GPUs run at
    *packed* of their own speed each, three at two thirds of that, and so on. 0.6 is a cautious
    figure for pairs: time slicing alone gives 0.5, and pairs that leave each other room exceed it.
    Jobs that are fused do what *array* says.
    A grant other than what was asked scales the speed in proportion. Under a power cap jobs do what
    `wattline.models.power.throttle` takes for granted of a device; a larger batch is as good as `efficiency` says;
    for the host see `starved`.
    """

    span_penalty: float = 1.0
    packed: float = 0.6
    array: Array = field(default_factory=Array)

    alike: ClassVar[bool] = True  # see `wattline.core.protocols.Models`

    def __post_init__(self) -> None:
        if not 1 <= self.span_penalty < math.inf:
            raise ConfigError(f"span_penalty must be at least 1 and finite, got {self.span_penalty}")
        if not 0 < self.packed <= 1:
            raise ConfigError(f"packed must be above 0 and at most 1, got {self.packed}")

    def speed(self, jobs: Jobs, grants: Grants) -> Floats:
        """See `wattline.core.protocols.Models`."""
        speed = grants.gpus / jobs.gpus[grants.job]
        if self.span_penalty != 1.0:
            speed = np.where(grants.nodes > 1, speed / self.span_penalty, speed)
        if grants.members.max(initial=1) > 1:
            speed = speed * self.company(grants.members, grants.fused)
        if grants.batch.any():
            asked = np.maximum(jobs.batch[grants.job], 1)
            larger = np.where(grants.batch > 0, grants.batch / asked, 1.0)
            speed = speed * larger * efficiency(jobs.noise[grants.job], asked, larger * asked)
        if grants.cap_w.any():
            speed = speed * _throttled(grants)
        if grants.host.any():
            speed = speed * starved(jobs, grants)
        return np.asarray(speed)

    def watts(self, jobs: Jobs, grants: Grants) -> Floats:
        """See `wattline.core.protocols.Models`: nobody knows; the node's are taken, as far as a cap allows."""
        return np.full(len(grants), np.nan)

    def company(self, members: Ints, fused: Bools) -> Floats:
        """What is left of a job's speed with so many others on the same GPUs, itself included."""
        packed = np.where(members > 1, self.packed * 2 / members, 1.0)
        if not fused.any():
            return packed
        return np.where(fused, 1.0 / self.array.slowdown(members.astype(np.float64)), packed)

    def observe(self, events: Events, jobs: Jobs, leases: Leases, nodes: Nodes) -> Asked:
        """Nothing is learnt: what was asked stays what was asked."""
        return self


def efficiency(noise: Floats, asked: Floats | Ints, batch: Floats | Ints) -> Floats:
    """Progress per sample at *batch*, relative to that at the batch asked for: (φ + B₀) / (φ + B).

    φ is the gradient noise scale (McCandlish et al. 2018; Pollux, OSDI 2021). Where it is not known it
    is 0, and a larger batch gains nothing.
    """
    return np.asarray((noise + asked) / (noise + batch))


def starved(jobs: Jobs, grants: Grants, least: Floats | None = None) -> Floats:
    """Rate of jobs that have less of the host than anybody knows to be enough: slower in proportion.

    *least* are cores and GiB for each GPU that are known to be; nan, or without it: what it was timed with.
    """
    rate = np.ones(len(grants))
    for row, (unit, timed) in enumerate(((1000, jobs.cpus), (1024, jobs.mem_gib))):
        given, enough = grants.host[row], timed[grants.job] / jobs.gpus[grants.job]
        if least is not None:
            enough = np.where(np.isnan(least[row]), enough, least[row])
        short = (given > 0) & (given < np.floor(unit * enough))
        rate = np.where(short, np.minimum(rate, given / np.where(short, unit * enough, 1.0)), rate)
    return rate


def _throttled(grants: Grants) -> Floats:
    """Rate of GPUs of known kinds under caps; 1 for others."""
    rate = np.ones(len(grants))
    for code, name in enumerate(grants.kind.names):
        here = np.flatnonzero((grants.kind.codes == code) & (grants.cap_w > 0))
        if len(here) and name in DEVICES:
            caps, place = np.unique(grants.cap_w[here], return_inverse=True)
            rate[here] = np.array([_device_rate(name, cap_w) for cap_w in caps.tolist()])[place]
    return rate


@lru_cache(maxsize=4096)
def _device_rate(kind: str, cap_w: int) -> float:
    """How fast a GPU of this kind still is under a cap, with what is taken for granted of devices."""
    free = Throttle(kind, np.ones(1), np.full(1, np.nan))
    return float(free.at(np.ones(1), np.full(1, float(cap_w)), np.full(1, np.nan))[0][0])


@dataclass(frozen=True)
class Misjudged:
    """Beliefs that are wrong: each job's speed and watts are off by random factors that never change.

    The factors are log-normal with spread *error*, drawn from (*seed*, job). For trying how a policy
    that needs durations does when users' estimates are as bad as they are.
    """

    truth: Models = Asked()
    error: float = 0.5
    seed: int = 0

    def speed(self, jobs: Jobs, grants: Grants) -> Floats:
        """See `wattline.core.protocols.Models`."""
        return np.asarray(self.truth.speed(jobs, grants) * self._factor(jobs, 0)[grants.job])

    def watts(self, jobs: Jobs, grants: Grants) -> Floats:
        """See `wattline.core.protocols.Models`."""
        return np.asarray(self.truth.watts(jobs, grants) * self._factor(jobs, 1)[grants.job])

    def widest(self, jobs: Jobs, grants: Grants) -> Floats:
        """See `wattline.core.protocols.Models`."""
        return widest(self.truth, jobs, grants)

    def _factor(self, jobs: Jobs, of_what: int) -> Floats:
        draws = np.random.default_rng((self.seed, of_what)).standard_normal(len(jobs))
        return np.asarray(np.exp(self.error * draws))

    def observe(self, events: Events, jobs: Jobs, leases: Leases, nodes: Nodes) -> Misjudged:
        """Nothing is learnt."""
        return self
