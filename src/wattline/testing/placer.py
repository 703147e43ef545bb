"""What every placer owes."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings

from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models, Placer
from wattline.core.snapshot import Snapshot
from wattline.loop.check import check
from wattline.loop.reconcile import reconcile
from wattline.loop.run import run
from wattline.policy.ordering import Las, fifo
from wattline.testing.laws import no_node_is_oversubscribed
from wattline.testing.scenarios import Scenario, scenarios

# One contract serves many classes, and examples are whole runs.
_CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors])


class PlacerContract:
    """Inherit and set *place*."""

    place: Placer

    @_CALM
    @given(scenario=scenarios())
    def test_leases_fit_and_hold_what_was_granted_or_nothing(self, scenario: Scenario) -> None:
        """All GPUs of a job on one kind, or none and a reason; nobody who may stay is moved."""
        for policy in (fifo, Las(60.0)):
            log = run(scenario.sim(), policy, place=_Checked(_plain(type(self).place)))
            no_node_is_oversubscribed(log)


class _Checked:
    """A placer that is checked at every call."""

    def __init__(self, place: Placer) -> None:
        self.place = place

    def __call__(self, plan: Plan, snapshot: Snapshot, models: Models) -> Placement:
        placement = self.place(plan, snapshot, models)
        leases, queue = placement.leases, snapshot.queue
        check(placement, snapshot)
        assert len(reconcile(leases, leases)) == 0
        granted = np.zeros(len(queue), dtype=np.int64)
        np.add.at(granted, np.searchsorted(queue.job, leases.job), leases.gpus)
        wanted = np.zeros(len(queue), dtype=np.int64)
        wanted[plan.row] = plan.gpus
        runs = granted > 0
        assert np.array_equal(granted[runs], wanted[runs]), "a job got another number of GPUs than granted"
        assert np.array_equal(placement.reason == 0, runs), "a job waits without a reason, or runs with one"
        assert placement.waiting == np.count_nonzero(~runs)
        for job in np.unique(leases.job):
            kinds = snapshot.nodes.kind.codes[leases.node[leases.job == job]]
            assert len(set(kinds.tolist())) == 1, f"job {job} was spread over kinds of GPUs"
        again = self.place(plan, snapshot, models)
        assert np.array_equal(again.leases.block, leases.block), "the same question, another answer"
        if plan.keeps:
            assert runs[queue.running].all(), "a job was stopped under a plan that keeps who runs"
        return placement


def _plain(thing: Placer) -> Placer:
    plain: Placer = getattr(thing, "__func__", thing)
    return plain
