"""Recorded jobs in the simulator: as they ran, and as a policy would have run them.

The policy sees of a job only what was known when it decided: its arrival, its request and its assumed
duration (a time limit). The recorded duration is known to the simulator alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wattline import __version__
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.core.actions import ACTION_COLUMNS, NO_ACTIONS, START, Actions
from wattline.core.events import ARRIVED, PROTECTED, RAN, WAKE_EVENTS, Event, Events, build_events
from wattline.core.jobs import Jobs
from wattline.core.leases import Leases
from wattline.core.nodes import Nodes
from wattline.core.plan import Placement
from wattline.core.protocols import Models, Placer, Policy
from wattline.core.snapshot import Snapshot
from wattline.core.table import Floats
from wattline.loop.reconcile import reconcile
from wattline.loop.run import build_first_round, run
from wattline.loop.runlog import Log
from wattline.loop.state import Decision, advance, build_empty_decision, build_empty_state

_NO_REASONS = np.empty((0, 2), dtype=np.int64)

Allocation = tuple[tuple[int, int], ...]
"""Pairs (row of the node, GPUs)."""


@dataclass(frozen=True, eq=False)
class RecordedCase:
    """Jobs with their recorded durations, from time 0 on.

    Those that ran at time 0 already keep their GPUs to their end, whatever the policy.
    """

    jobs: Jobs  # rows that arrived before time 0 come first
    nodes: Nodes
    assumed_s: Floats  # duration of each job as far as it was known before its end
    running: Mapping[int, Allocation]  # by row: jobs that ran at time 0 already
    starts: Sequence[tuple[float, int, Allocation]]  # time, row and allocation of each recorded start
    about: Mapping[str, Any]  # for the headers of logs

    def build_initial_state(self, seed: int = 0) -> Snapshot:
        """Return the state at time 0: jobs that wait, and those that hold GPUs."""
        jobs = replace(self.jobs, steps=self.assumed_s / self.jobs.step_s)
        accepts = self.nodes.accepted_kinds(jobs.gpu_kind)
        state = build_empty_state(jobs, self.nodes, seed)
        rows = np.flatnonzero(jobs.submit_s <= 0).tolist()
        arrived = build_events(*(Event(ARRIVED, row, float(jobs.submit_s[row])) for row in rows))
        state = advance(state, build_empty_decision(state), 0.0, arrived, jobs, accepts)
        held = [(row, *place) for row, places in sorted(self.running.items()) for place in places]
        held_rows = [row for row, _, _ in held]
        leases = Leases.of(held_rows, held_rows, [node for _, node, _ in held], [gpus for *_, gpus in held])
        reason = np.zeros(len(rows), dtype=np.int64)
        decision = Decision(Placement(leases, reason, 0), reconcile(state.leases, leases))
        events = [Event(RAN, row, 0.0, 0.0, 1.0 / float(jobs.step_s[row])) for row in self.running]
        events += [Event(PROTECTED, row, 0.0, 0.0, math.inf, math.inf) for row in self.running]
        return advance(state, decision, 0.0, build_events(*events), jobs, accepts)


class AssumedDurations:
    """`Backend` that hides recorded durations: its job table has assumed ones, *sim* the recorded ones.

    It ends at *until_s*, with all its energy until then, whether jobs are left or not.
    """

    def __init__(self, sim: Sim, assumed_s: Floats, until_s: float, about: Mapping[str, Any]) -> None:
        self._sim, self._until_s, self._about = sim, until_s, about
        self._is_over = False
        self.jobs = replace(sim.jobs, steps=assumed_s / sim.jobs.step_s)

    @property
    def nodes(self) -> Nodes:
        """Nodes of the simulator."""
        return self._sim.nodes

    def wait(self, until_s: float, wake: frozenset[int] = WAKE_EVENTS) -> tuple[float, Events]:
        """Wait in the simulator; the time is inf after the end."""
        if self._is_over:
            return math.inf, build_events()
        now_s, events = self._sim.wait(min(until_s, self._until_s), wake)
        self._is_over = now_s >= self._until_s
        return now_s, events

    def apply(self, actions: Actions) -> None:
        """Apply *actions* in the simulator."""
        self._sim.apply(actions)

    def is_idle(self) -> bool:
        """Return whether the simulator is idle."""
        return self._sim.is_idle()

    def close(self) -> Events:
        """Return the last events, and the energy until the end."""
        events = build_events()
        while math.isfinite(self._until_s) and not self._is_over:
            events = np.concatenate((events, self.wait(self._until_s)[1]))
        return np.concatenate((events, self._sim.close()))

    def describe(self) -> dict[str, Any]:
        """Return the description of the simulator, and of the record."""
        return {**self._sim.describe(), **self._about}


def simulate_policy(
    case: RecordedCase,
    policy: Policy,
    models: Models,
    place: Placer,
    overheads: Overheads,
    until_s: float = math.inf,
    seed: int = 0,
) -> Log:
    """Return the log of the recorded jobs under *policy*; `Replay` repeats its decisions."""
    state = case.build_initial_state(seed)
    sim = Sim(case.jobs, case.nodes, models, overheads=overheads, seed=seed, initial_state=state)
    backend = AssumedDurations(sim, case.assumed_s, until_s, {"shadow": dict(case.about)})
    return run(
        backend,
        policy,
        models,
        place=place,
        seed=seed,
        trace={"name": str(case.about.get("name", ""))},
        initial_state=replace(state, jobs=backend.jobs),
    )


def simulate_record(case: RecordedCase, models: Models, until_s: float, seed: int = 0) -> Log:
    """Return the log of the recorded jobs as they ran, with the power that the simulator gives them."""
    state = case.build_initial_state(seed)
    sim = Sim(case.jobs, case.nodes, models, seed=seed, initial_state=state)
    header = {
        "version": __version__,
        **dict.fromkeys(("policy", "place"), "as recorded"),
        "models": str(models),
        "seed": seed,
        "trace": {"name": str(case.about.get("name", ""))},
        **sim.describe(),
    }
    log = Log(header, sim.jobs, sim.nodes)
    log.append(0.0, *build_first_round(state))

    def wait(goal_s: float) -> float:
        while True:
            now_s, events = sim.wait(goal_s)
            log.append(now_s, events, NO_ACTIONS, _NO_REASONS)
            if now_s >= goal_s:
                return now_s

    for start_s, row, allocation in sorted(case.starts):
        if start_s >= until_s:
            break
        now_s = wait(start_s)
        actions = np.zeros((len(allocation), ACTION_COLUMNS), dtype=np.int64)
        for action, (node, gpus) in zip(actions, allocation, strict=True):
            action[:5] = START, row, row, node, gpus
        sim.apply(actions)
        log.append(now_s, build_events(), actions, _NO_REASONS)
    log.append(wait(until_s), sim.close(), NO_ACTIONS, _NO_REASONS)
    return log
