"""The scheduler's state as other threads may read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from wattline.core.nodes import Nodes
from wattline.core.protocols import Models, Placer, Policy
from wattline.core.quotas import NO_QUOTAS, Quotas
from wattline.core.usage import Usage
from wattline.loop.run import LoopStep
from wattline.service.budgeted_policy import read_overshoot


class WithheldReason(NamedTuple):
    """The reason that a job is withheld: a code for programs, and a sentence."""

    code: str
    text: str


@dataclass(frozen=True)
class ControllerView:
    """An immutable picture of the scheduler after its last decision.

    The controller replaces it as a whole, under a lock, so its fields belong to one moment.
    """

    clock: Callable[[], float]
    nodes: Nodes
    simulated: bool  # the GPUs are simulated
    energy_method: str
    models: Models
    placer: Placer
    policy: Policy
    cap_ranges_w: tuple[tuple[float, float] | None, ...] = ()  # of a GPU of each node; None: unknown
    budgets: tuple[str, ...] = ()
    quotas: Quotas = NO_QUOTAS
    epoch: int = 0
    usage: Usage | None = None  # when the epoch started
    step: LoopStep | None = None  # None: nothing was decided yet
    decision_s: float = 0.0  # duration of the last decision
    withheld_reason: Callable[[str], WithheldReason | None] = lambda job: None
    engine_reason: Callable[[str], str] = lambda job: ""  # why the engine lets a job wait; empty: it does not
    problem: str = ""  # error that keeps the loop from deciding; empty: none

    @property
    def overshoot(self) -> float | None:
        """Bound of the sum of power caps, as a multiple of each budget of watts; None: there is none."""
        return read_overshoot(self.policy)

    def queue_position(self, job: str) -> int | None:
        """Return the position of a job in the queue of the last decision, or None if it was not queued."""
        return self._positions.get(job)

    @cached_property
    def _positions(self) -> dict[str, int]:
        if self.step is None:
            return {}
        state = self.step.state
        return {str(job): position for position, job in enumerate(state.jobs.id[state.queue.job])}
