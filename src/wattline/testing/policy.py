"""Contract of policies."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
from hypothesis import HealthCheck, given, settings

from wattline.backend.replay import Replay
from wattline.core.events import EVENT_JOB, EVENT_VERB, FAILED, FINISHED
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

# One contract serves many classes, and each example is a whole run.
_RELAXED = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors]
)


T = TypeVar("T")


class PolicyContract:
    """Tests of a policy; a subclass sets *policy*, and *place* and *models* if the defaults do not fit."""

    policy: Policy
    place: Placer = Pack()
    models: Models = Asked()

    def run(self, scenario: Scenario, policy: Policy | None = None) -> Log:
        """Run the scenario and return the log."""
        cls = type(self)
        return run(scenario.sim(), policy or _unbind(cls.policy), cls.models, place=_unbind(cls.place))

    @_RELAXED
    @given(scenario=scenarios())
    def test_the_invariants_hold_in_every_run(self, scenario: Scenario) -> None:
        """Check oversubscription, progress and energy."""
        log = self.run(scenario)
        no_node_is_oversubscribed(log)
        every_step_is_counted_once(log)
        energies_add_up(log)

    @_RELAXED
    @given(scenario=scenarios())
    def test_every_job_ends_or_can_never_run(self, scenario: Scenario) -> None:
        """Check that the jobs left over are too large for the cluster."""
        log = self.run(scenario)
        ended = np.isin(log.events[:, EVENT_VERB], (FINISHED, FAILED))
        left = np.setdiff1d(np.arange(len(log.jobs)), log.events[ended, EVENT_JOB].astype(np.int64))
        kinds = scenario.nodes.kind
        size = np.bincount(kinds.codes, scenario.nodes.gpus, len(kinds.names))
        accepts = scenario.nodes.accepts(log.jobs.gpu_kind)
        for job in left.tolist():
            largest = max((s for k, s in enumerate(size) if accepts[job] >> k & 1), default=0)
            assert log.jobs.gpus[job] > largest, f"job {job} never ended"

    @_RELAXED
    @given(scenario=scenarios())
    def test_the_same_seed_gives_the_same_log_and_replays(self, scenario: Scenario) -> None:
        """Check that a run can be repeated, and replayed from its log."""
        log, again = self.run(scenario), self.run(scenario)
        assert _are_equal(log, again)
        cls = type(self)
        replayed = run(Replay(log), _unbind(cls.policy), cls.models, place=_unbind(cls.place))
        assert _are_equal(log, replayed)

    @_RELAXED
    @given(scenario=scenarios())
    def test_progress_in_the_snapshot_equals_progress_in_the_simulator(self, scenario: Scenario) -> None:
        """Check `Snapshot.steps_done` before every decision."""
        sim = scenario.sim()
        checker = _ProgressChecker(_unbind(type(self).policy), sim.steps_done)
        run(sim, checker, type(self).models, place=_unbind(type(self).place))

    @_RELAXED
    @given(scenario=scenarios())
    def test_a_policy_does_not_write_to_the_snapshot_nor_read_future_jobs(self, scenario: Scenario) -> None:
        """Check that plans depend only on jobs that have arrived."""
        self.run(scenario, _FutureBlind(_unbind(type(self).policy)))

    def test_a_policy_has_a_text_form(self) -> None:
        """Check the text that stands for it in logs and tables."""
        assert spell(_unbind(type(self).policy))
        assert "object at 0x" not in spell(_unbind(type(self).policy))


def _unbind(thing: T) -> T:
    """Return the function of a method: a function stored as a class attribute becomes one."""
    function: T = getattr(thing, "__func__", thing)
    return function


def _are_equal(one: Log, other: Log) -> bool:
    return (
        one.header == other.header
        and np.array_equal(one.now_s, other.now_s)
        and np.array_equal(one.events, other.events)
        and np.array_equal(one.actions, other.actions)
        and np.array_equal(one.held, other.held)
    )


class _ProgressChecker:
    """Policy that checks the progress in each snapshot, then calls another policy."""

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


class _FutureBlind(_ProgressChecker):
    """Policy that also calls the other policy with different future jobs and expects the same plan."""

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
