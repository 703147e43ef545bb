"""An attempt of a simulated job: the GPUs that it holds, its progress and its power."""

from __future__ import annotations

import math
from dataclasses import dataclass

from wattline.backend.sim.true_speeds import AS_REQUESTED


@dataclass(slots=True)
class SimAttempt:
    """A job that holds GPUs."""

    nodes: list[int]
    gpus: list[int]  # by node
    group: list[int]  # the jobs on these GPUs, itself included; one list shared by all of them
    saved: float  # steps at its last checkpoint
    energy_until_s: float  # its energy is counted up to this time
    settings: tuple[int, ...] = AS_REQUESTED  # cap_w, batch, host resources per GPU
    base: float = 0.0  # steps at progress_at_s
    progress_at_s: float = 0.0
    checkpoints_from_s: float = 0.0  # periodic checkpoints count from here
    ready_s: float = 0.0  # end of its start-up
    rate: float = 0.0  # steps/s; 0: not started yet
    watts: float = 0.0  # its share of the power of its GPUs
    above_idle_w: float = 0.0  # its share of their power above idle
    energy_j: float = 0.0
    fails_at: float = math.inf  # step at which this attempt fails
    killed_s: float = math.inf  # time at which this attempt reaches its time limit
    saves_at_stop: bool = True
    protected_until_s: float = -math.inf  # the policy may not stop it before

    def count_steps(self, at_s: float) -> float:
        """Return the steps that it has done at *at_s*."""
        return self.base + self.rate * max(0.0, at_s - self.progress_at_s)

    def go_on(self, reached: float, from_s: float, step_s: float, goal: float) -> float:
        """Go on with a step every *step_s* from *reached* steps at *from_s*; return when *goal* is done."""
        self.base, self.progress_at_s, self.rate = reached, from_s, 1.0 / step_s
        return from_s + (goal - reached) * step_s

    def go_on_in_quanta(
        self,
        reached: float,
        now_s: float,
        cost_s: float,
        step_s: float,
        goal: float,
        quantum_s: float,
        whole: bool,
    ) -> float:
        """Go on as `go_on` does after *cost_s* are lost, in quanta of as many (*whole*) steps as fit in.

        A new attempt takes at least one quantum.
        """
        is_new = self.rate == 0.0
        per_quantum = first = quantum_s / step_s
        lost = 0
        if cost_s > 0:
            lost = math.floor(cost_s / quantum_s)
            first = (quantum_s - (cost_s - lost * quantum_s)) / step_s
        if whole and per_quantum >= 1:
            per_quantum, first = math.floor(per_quantum), math.floor(first)
        self.progress_at_s = now_s + lost * quantum_s
        self.base = reached + first - per_quantum
        self.rate = per_quantum / quantum_s
        rounds = max(int(is_new), math.ceil((goal - self.base) / per_quantum - 1e-9))
        return float(self.progress_at_s + rounds * quantum_s)
