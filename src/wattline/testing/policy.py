"""What every policy owes."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
from hypothesis import HealthCheck, given, settings

from wattline.backend.replay import Replay
from wattline.core.events import FAILED, FINISHED
from wattline.core.plan import Plan
from wattline.core.protocols import Models, Placer, Policy
from wattline.core.snapshot import Snapshot
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.models.trace_model import Asked
from wattline.placement.pack import Pack
from wattline.policy.chain import spell
from wattline.testing.laws import energies_add_up, every_step_is_counted_once, no_node_is_oversubscribed
from wattline.testing.scenarios import Scenario, scenarios

# One contract serves many classes, and examples are whole runs.
_CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors])


T = TypeVar("T")


class PolicyContract:
    """Inherit and set *policy*; *place* and *models* where the defaults do not fit."""

    policy: Policy
    place: Placer = Pack()
    models: Models = Asked()

    def run(self, scenario: Scenario, policy: Policy | None = None) -> Log:
        """One run of the scenario."""
        cls = type(self)
        return run(scenario.sim(), policy or _plain(cls.policy), cls.models, place=_plain(cls.place))

    @_CALM
    @given(scenario=scenarios())
    def test_the_laws_hold_in_every_run(self, scenario: Scenario) -> None:
        """No node is given away twice, no step counted twice, no joule lost."""
        log = self.run(scenario)
        no_node_is_oversubscribed(log)
        every_step_is_counted_once(log)
        energies_add_up(log)

    @_CALM
    @given(scenario=scenarios())
    def test_every_job_ends_or_can_never_run(self, scenario: Scenario) -> None:
        """Nobody who could run is left behind."""
        log = self.run(scenario)
        ended = np.isin(log.events[:, 0], (FINISHED, FAILED))
        left = np.setdiff1d(np.arange(len(log.jobs)), log.events[ended, 1].astype(np.int64))
        kinds = scenario.nodes.kind
        size = np.bincount(kinds.codes, scenario.nodes.gpus, len(kinds.names))
        accepts = scenario.nodes.accepts(log.jobs.gpu_kind)
        for job in left.tolist():
            largest = max((s for k, s in enumerate(size) if accepts[job] >> k & 1), default=0)
            assert log.jobs.gpus[job] > largest, f"job {job} never ended"

    @_CALM
    @given(scenario=scenarios())
    def test_the_same_seed_gives_the_same_log_and_replays(self, scenario: Scenario) -> None:
        """A run can be repeated, and decided again from its log."""
        log, again = self.run(scenario), self.run(scenario)
        assert _same(log, again)
        cls = type(self)
        replayed = run(Replay(log), _plain(cls.policy), cls.models, place=_plain(cls.place))
        assert _same(log, replayed)

    @_CALM
    @given(scenario=scenarios())
    def test_what_the_core_believes_is_what_the_simulator_knows(self, scenario: Scenario) -> None:
        """Progress in the snapshot is progress in the world."""
        sim = scenario.sim()
        spy = _Spy(_plain(type(self).policy), sim.steps_done)
        run(sim, spy, type(self).models, place=_plain(type(self).place))

    @_CALM
    @given(scenario=scenarios())
    def test_a_policy_neither_changes_its_snapshot_nor_reads_the_future(self, scenario: Scenario) -> None:
        """Plans depend on what has arrived, and nothing is written to."""
        self.run(scenario, _FutureBlind(_plain(type(self).policy)))

    def test_a_policy_prints_itself(self) -> None:
        """Its text names it in logs and tables."""
        assert spell(_plain(type(self).policy))
        assert "object at 0x" not in spell(_plain(type(self).policy))


def _plain(thing: T) -> T:
    """A plain function that is a class attribute may have become a method; take it as it was."""
    plain: T = getattr(thing, "__func__", thing)
    return plain


def _same(one: Log, other: Log) -> bool:
    return (
        one.header == other.header
        and np.array_equal(one.now_s, other.now_s)
        and np.array_equal(one.events, other.events)
        and np.array_equal(one.actions, other.actions)
        and np.array_equal(one.held, other.held)
    )


class _Spy:
    """A policy that looks over another's shoulder."""

    def __init__(self, policy: Policy, truth: object = None) -> None:
        self.policy = policy
        self.truth = truth

    def __call__(self, snapshot: Snapshot, models: Models) -> Plan:
        if callable(self.truth):
            done = dict(zip(snapshot.queue.job.tolist(), snapshot.steps_done.tolist(), strict=True))
            for job, steps in self.truth().items():
                assert np.isclose(done[job], steps, rtol=1e-9, atol=1e-6), (job, done[job], steps)
        return self.policy(snapshot, models)

    def __str__(self) -> str:
        return spell(self.policy)


class _FutureBlind(_Spy):
    """A spy that shows the policy another future, and expects the same plan."""

    def __call__(self, snapshot: Snapshot, models: Models) -> Plan:
        before = (snapshot.queue.block.copy(), snapshot.leases.block.copy(), snapshot.free.copy())
        plan = self.policy(snapshot, models)
        after = (snapshot.queue.block, snapshot.leases.block, snapshot.free)
        assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after, strict=True))
        jobs = snapshot.jobs
        future = np.arange(len(jobs)) > (snapshot.queue.job[-1] if len(snapshot.queue) else -1)
        other = replace(
            jobs,
            gpus=np.where(future, jobs.gpus + 1, jobs.gpus),
            steps=np.where(future, jobs.steps * 2 + 1, jobs.steps),
            deadline_s=np.where(future, 0.0, jobs.deadline_s),
            priority=np.where(future, 99.0, jobs.priority),
            fuse=replace(jobs.fuse, codes=np.where(future, 0, jobs.fuse.codes)),
        )
        again = self.policy(replace(snapshot, jobs=other), models)
        assert np.array_equal(plan.row, again.row)
        assert np.array_equal(plan.gpus, again.gpus)
        assert np.array_equal(plan.group, again.group)
        assert plan.tick_s == again.tick_s
        return plan
