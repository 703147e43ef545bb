"""What is believed of a job nobody has measured: it does what its trace says."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wattline.errors import ConfigError
from wattline.messages import Events
from wattline.table import Floats, Ints
from wattline.types import Jobs, Leases


@dataclass(frozen=True)
class Asked:
    """Jobs run as fast as their trace says, on the GPUs they asked for.

    Spanning nodes divides the speed by *span_penalty*. Two jobs packed on the same GPUs run at
    *packed* of their own speed each, three at two thirds of that, and so on. 0.6 is a cautious
    figure for pairs: time slicing alone gives 0.5, and pairs that leave each other room exceed it.
    A grant other than what was asked scales the speed in proportion.
    """

    span_penalty: float = 1.0
    packed: float = 0.6

    def __post_init__(self) -> None:
        if not 1 <= self.span_penalty < math.inf:
            raise ConfigError(f"span_penalty must be at least 1 and finite, got {self.span_penalty}")
        if not 0 < self.packed <= 1:
            raise ConfigError(f"packed must be above 0 and at most 1, got {self.packed}")

    def speed(self, jobs: Jobs, job: Ints, gpus: Ints, nodes: Ints, members: Ints) -> Floats:
        """See `wattline.types.Models`."""
        speed = gpus / jobs.gpus[job]
        if self.span_penalty != 1.0:
            speed = np.where(nodes > 1, speed / self.span_penalty, speed)
        if members.max(initial=1) > 1:
            speed = speed * self.company(members)
        return np.asarray(speed)

    def company(self, members: Ints) -> Floats:
        """What is left of a job's speed beside so many others on the same GPUs, itself included."""
        return np.where(members > 1, self.packed * 2 / members, 1.0)

    def observe(self, events: Events, jobs: Jobs, leases: Leases) -> Asked:
        """Nothing is learnt: what was asked stays what was asked."""
        return self


@dataclass(frozen=True)
class Misjudged:
    """Beliefs that are wrong: each job's speed is off by a random factor that never changes.

    The factor is log-normal with spread *error*, drawn from (*seed*, job). For trying how a policy
    that needs durations does when users' estimates are as bad as they are.
    """

    truth: Asked = Asked()
    error: float = 0.5
    seed: int = 0

    def speed(self, jobs: Jobs, job: Ints, gpus: Ints, nodes: Ints, members: Ints) -> Floats:
        """See `wattline.types.Models`."""
        factor = np.exp(self.error * np.random.default_rng(self.seed).standard_normal(len(jobs)))
        return np.asarray(self.truth.speed(jobs, job, gpus, nodes, members) * factor[job])

    def observe(self, events: Events, jobs: Jobs, leases: Leases) -> Misjudged:
        """Nothing is learnt."""
        return self
