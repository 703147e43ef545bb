"""Contract of placers."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings

from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models, Placer
from wattline.core.snapshot import Snapshot
from wattline.loop.check import check_placement
from wattline.loop.reconcile import reconcile
from wattline.loop.run import run
from wattline.policy.ordering import Las, fifo
from wattline.testing.laws import check_no_oversubscription
from wattline.testing.scenarios import Scenario, scenarios

# One contract serves many classes, and each example is a whole run.
_RELAXED = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors]
)


class PlacerContract:
    """Tests of a placer; a subclass sets *place*."""

    place: Placer

    @_RELAXED
    @given(scenario=scenarios())
    def test_leases_fit_and_match_the_plan(self, scenario: Scenario) -> None:
        """Check that a job gets all its GPUs, of one kind, or none and a reason, and may stay where it is."""
        self.check_scenario(scenario)

    def check_scenario(self, scenario: Scenario) -> None:
        """Check one scenario; the test of a slow placer may call it for fewer, or smaller ones."""
        for policy in (fifo, Las(600.0)):
            log = run(scenario.sim(), policy, place=_CheckedPlacer(_unbind(type(self).place)))
            check_no_oversubscription(log)


class _CheckedPlacer:
    """Placer that checks the result of every call."""

    def __init__(self, place: Placer) -> None:
        self.place = place

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        placement = self.place(plan, snapshot, models)
        leases, queue = placement.leases, snapshot.queue
        check_placement(placement, snapshot)
        assert len(reconcile(leases, leases)) == 0
        granted = np.zeros(len(queue), dtype=np.int64)
        np.add.at(granted, np.searchsorted(queue.job, leases.job), leases.gpus)
        wanted = np.zeros(len(queue), dtype=np.int64)
        wanted[plan.row] = plan.gpus
        runs = granted > 0
        assert np.array_equal(granted[runs], wanted[runs]), "a job has another number of GPUs than planned"
        assert np.array_equal(placement.reason == 0, runs), "a job waits without a reason or runs with one"
        assert placement.waiting == np.count_nonzero(~runs)
        for job in np.unique(leases.job):
            kinds = snapshot.nodes.kind.codes[leases.node[leases.job == job]]
            assert len(set(kinds.tolist())) == 1, f"job {job} spans several kinds of GPUs"
        again = self.place(plan, snapshot, models)
        assert np.array_equal(again.leases.block, leases.block), "two calls with equal arguments differ"
        if plan.non_preemptive:
            assert runs[queue.running].all(), "a running job was stopped under a non-preemptive plan"
        return placement


def _unbind(thing: Placer) -> Placer:
    """Return the function of a method: a function stored as a class attribute becomes one."""
    function: Placer = getattr(thing, "__func__", thing)
    return function
