"""Contract of policies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
from hypothesis import HealthCheck, given, settings

from wattline.backend.replay import Replay
from wattline.core.events import EVENT_JOB, EVENT_VERB, FAILED, FINISHED
from wattline.core.jobs import Jobs
from wattline.core.plan import Plan
from wattline.core.protocols import Models, Placer, Policy
from wattline.core.quotas import NO_QUOTAS, Quotas
from wattline.core.snapshot import Snapshot
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.models.trace_model import TraceModels
from wattline.placement.pack import Pack
from wattline.policy.chain import spell
from wattline.policy.knobs import insert_quota
from wattline.testing.laws import (
    check_energy_totals,
    check_no_oversubscription,
    check_protection,
    check_quotas,
    check_steps_counted_once,
)
from wattline.testing.scenarios import Scenario, quotas, scenarios

# One contract serves many classes, and each example is a whole run.
_RELAXED = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors]
)


T = TypeVar("T")


class PolicyContract:
    """Tests of a policy; a subclass sets *policy*, and *place* and *models* if the defaults do not fit."""

    policy: Policy
    place: Placer = Pack()
    models: Models = TraceModels()

    @_RELAXED
    @given(scenario=scenarios())
    def test_a_run_obeys_every_law(self, scenario: Scenario) -> None:
        """Check one scenario: three runs serve all checks, because a run costs far more than a check.

        Every decision: the snapshot has the progress of the simulator, is not written to, and future jobs do
        not matter. The log: no node is oversubscribed, steps and joules add up, no protected job is stopped,
        every job ends unless it is too large. The same seed gives the same log, and the log can be replayed.
        """
        self.check_scenario(scenario)

    def check_scenario(self, scenario: Scenario) -> None:
        """Check one scenario; the test of a slow policy may call it for fewer, or smaller ones."""
        policy, place, models = _unbind(type(self).policy), _unbind(type(self).place), type(self).models
        sim = scenario.sim()
        log = run(sim, _CheckedPolicy(policy, sim.steps_done), models, place=place)
        check_no_oversubscription(log)
        check_steps_counted_once(log)
        check_protection(log)
        check_energy_totals(log)
        _check_that_jobs_end(log, scenario)
        again = run(scenario.sim(), policy, models, place=place)
        assert _are_equal(log, again), "two runs with the same seed differ"
        assert _are_equal(log, run(Replay(log), policy, models, place=place)), "the replay of the log differs"

    def test_a_policy_has_a_text_form(self) -> None:
        """Check the text that stands for it in logs and tables."""
        assert spell(_unbind(type(self).policy))
        assert "object at 0x" not in spell(_unbind(type(self).policy))


class QuotaContract:
    """Tests of a policy under quotas; a subclass sets *policy*, and *place* and *models* as above.

    The stage `quota` is inserted where `wattline serve` inserts it. *spans_nodes* False: the policy runs each
    job on one node, so jobs larger than a node may wait for ever.
    """

    policy: Policy
    place: Placer = Pack()
    models: Models = TraceModels()
    spans_nodes: bool = True

    @_RELAXED
    @given(scenario=scenarios(), limits=quotas())
    def test_no_job_starts_beyond_a_quota(self, scenario: Scenario, limits: Quotas) -> None:
        """Check that starts keep all quotas, that every other law holds, and that the log can be replayed."""
        policy = insert_quota(_unbind(type(self).policy))
        place, models = _unbind(type(self).place), type(self).models
        if any(rule.gpu_hours_per_week is not None for rule in limits.limits):
            # A job that a node loses every few minutes, and that may start once a week, takes years.
            scenario = replace(scenario, faults=replace(scenario.faults, node_mtbf_s=math.inf))
        log = run(scenario.sim(), policy, models, place=place, quotas=limits)
        check_quotas(log, limits)
        check_no_oversubscription(log)
        check_steps_counted_once(log)
        _check_that_jobs_end(log, scenario, limits, type(self).spans_nodes)
        assert _are_equal(log, run(Replay(log), policy, models, place=place)), "the replay of the log differs"


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
        and np.array_equal(one.wait_reasons, other.wait_reasons)
    )


def _check_that_jobs_end(
    log: Log, scenario: Scenario, limits: Quotas = NO_QUOTAS, spans_nodes: bool = True
) -> None:
    """Raise if a job is left over that the cluster is large enough for, and that no quota keeps from it."""
    ended = np.isin(log.events[:, EVENT_VERB], (FINISHED, FAILED))
    left = np.setdiff1d(np.arange(len(log.jobs)), log.events[ended, EVENT_JOB].astype(np.int64))
    kinds = scenario.nodes.kind
    size = np.zeros(len(kinds.names), dtype=np.int64)
    (np.add if spans_nodes else np.maximum).at(size, kinds.codes, scenario.nodes.gpus)
    accepts = scenario.nodes.accepted_kinds(log.jobs.gpu_kind)
    for job in left.tolist():
        largest = max((s for k, s in enumerate(size) if accepts[job] >> k & 1), default=0)
        for rule in limits.limits:
            owner = (log.jobs.team if rule.owner == "team" else log.jobs.user).word(job)
            if owner == rule.name and rule.gpus is not None:
                largest = min(largest, rule.gpus)
        assert log.jobs.gpus[job] > largest, f"job {job} never ended"


class _CheckedPolicy:
    """Policy that checks what another policy is given and returns, at every decision."""

    def __init__(self, policy: Policy, true_steps: Callable[[], dict[int, float]]) -> None:
        self.policy = policy
        self.true_steps = true_steps

    def __call__(self, snapshot: Snapshot, models: Models) -> Plan:
        self._check_progress(snapshot)
        before = (snapshot.queue.block.copy(), snapshot.leases.block.copy(), snapshot.free_gpus.copy())
        plan = self.policy(snapshot, models)
        after = (snapshot.queue.block, snapshot.leases.block, snapshot.free_gpus)
        unchanged = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after, strict=True))
        assert unchanged, "the policy wrote to its snapshot"
        again = self.policy(replace(snapshot, jobs=_change_future(snapshot)), models)
        same = all(
            np.array_equal(a, b)
            for a, b in ((plan.row, again.row), (plan.gpus, again.gpus), (plan.group, again.group))
        )
        assert same, "the plan depends on jobs that have not arrived"
        assert plan.next_decision_s == again.next_decision_s, (
            "the next decision depends on jobs that have not arrived"
        )
        return plan

    def _check_progress(self, snapshot: Snapshot) -> None:
        done = dict(zip(snapshot.queue.job.tolist(), snapshot.steps_done.tolist(), strict=True))
        for job, steps in self.true_steps().items():
            assert np.isclose(done[job], steps, rtol=1e-9, atol=1e-6), (job, done[job], steps)

    @property
    def needs_usage(self) -> bool:
        return bool(getattr(self.policy, "needs_usage", False))

    def __str__(self) -> str:
        return spell(self.policy)


def _change_future(snapshot: Snapshot) -> Jobs:
    """Return the jobs with other values in the rows that have not arrived yet.

    Rows behind the last one of the queue may have arrived, too, and have ended since.
    """
    jobs = snapshot.jobs
    future = np.arange(len(jobs)) > (snapshot.queue.job[-1] if len(snapshot.queue) else -1)
    future &= jobs.submit_s > snapshot.now_s
    return replace(
        jobs,
        gpus=np.where(future, jobs.gpus + 1, jobs.gpus),
        steps=np.where(future, jobs.steps * 2 + 1, jobs.steps),
        deadline_s=np.where(future, 0.0, jobs.deadline_s),
        priority=np.where(future, 99.0, jobs.priority),
        fuse=replace(jobs.fuse, codes=np.where(future, 0, jobs.fuse.codes)),
    )
