"""Contract of backends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest

from wattline.core.actions import (
    ACTION_CAP_W,
    ACTION_COLUMNS,
    ACTION_JOB,
    ACTION_VERB,
    RETUNE,
    START,
    STOP,
    Actions,
)
from wattline.core.events import (
    ARRIVED,
    FAILED,
    FINISHED,
    LOST,
    METERED,
    NODE_BACK,
    NODE_LOST,
    RAN,
    STOPPED,
    Event,
    list_events,
)
from wattline.core.leases import LEASE_CAP_W, Leases
from wattline.core.plan import Placement
from wattline.core.protocols import Backend
from wattline.core.snapshot import Snapshot
from wattline.loop.state import Decision, advance, build_empty_state

JobBehaviour = Literal["finishes", "fails", "runs"]
"""*finishes*: succeeds soon after its start. *fails*: ends with an error soon after its start, and is not
retried. *runs*: does not end before it is stopped; when it is started again, it succeeds."""

CAP_W = 150
_MAX_WAITS = 10_000
_WAIT_S = 60.0


class BackendContract:
    """Tests of a backend. A subclass defines `make` and `restart`, and `lose_node` if it has several nodes.

    The tests start, retune and stop jobs on given nodes, as a loop would, and check the events that follow.
    Each job requests one GPU.
    """

    multi_node = True
    """False for a backend that never has more than one node: tests that need two are skipped."""

    def make(self, jobs: Sequence[JobBehaviour], nodes: int = 1, *, losing_nodes: bool = False) -> Backend:
        """Return a new backend with *nodes* nodes of two GPUs each, and *jobs* in the order of their rows.

        With *losing_nodes*, nodes go down while jobs run, by `lose_node` or by themselves, and come back; a
        job that *runs* lasts longer than that takes.
        """
        raise AssertionError("a subclass of BackendContract must define make()")

    def restart(self, backend: Backend, state: Snapshot) -> tuple[Backend, Snapshot]:
        """Close *backend* and return one that continues its jobs, with the state that a loop starts from.

        *state* is that of the loop so far, for backends that keep none of their own.
        """
        raise AssertionError("a subclass of BackendContract must define restart()")

    def lose_node(self, backend: Backend) -> None:
        """Let a node with a job go down, and come back; empty if nodes go down by themselves."""

    def test_jobs_arrive_start_stop_restart_and_finish(self) -> None:
        """Check the events of two jobs, and that time never goes back."""
        driver = _Driver(self.make(["runs", "finishes"]))
        driver.wait_for(ARRIVED, 0)
        driver.start(0)
        driver.wait_for(RAN, 0)
        driver.stop(0)
        driver.start(0)
        first = driver.wait_for(FINISHED, 0)
        assert driver.count(STOPPED, 0) == 1
        driver.wait_for(ARRIVED, 1)
        driver.start(1)
        second = driver.wait_for(FINISHED, 1)
        assert second.at_s >= first.at_s
        assert driver.backend.is_idle()
        readings = list_events(driver.backend.close())
        assert not readings or readings[-1].verb == METERED

    def test_a_stopped_job_keeps_what_it_saved_and_is_not_protected_any_more(self) -> None:
        """Check the state of a job that was stopped: its steps are those of the event."""
        driver = _Driver(self.make(["runs"]))
        driver.wait_for(ARRIVED, 0)
        driver.start(0)
        driver.wait_for(RAN, 0)
        assert (driver.state.lost_work_s >= 0).all()
        driver.stop(0)
        stopped = driver.wait_for(STOPPED, 0)
        state = driver.state
        assert not state.protected.any()
        assert state.lost_work_s.tolist() == state.lost_steps.tolist() == [0.0]
        assert state.steps_done.tolist() == [stopped.steps]

    def test_the_description_is_plain_data(self) -> None:
        """Check that the header of a run log can be written as JSON."""
        json.dumps(self.make(["finishes"]).describe(), allow_nan=False)

    def test_a_failing_job_leaves_the_queue_and_its_gpus(self) -> None:
        """Check that a job that ends with an error fails once, and that others can use its GPUs."""
        driver = _Driver(self.make(["fails", "finishes"]))
        driver.wait_for(ARRIVED, 0)
        driver.start(0, (0, 2))
        driver.wait_for(FAILED, 0)
        driver.wait_for(ARRIVED, 1)
        assert driver.state.free_gpus.tolist() == [2]
        assert driver.state.queue.job.tolist() == [1]
        driver.start(1, (0, 2))
        driver.wait_for(FINISHED, 1)
        assert driver.count(FAILED, 0) == 1
        assert driver.backend.is_idle()

    def test_a_retuned_job_runs_on(self) -> None:
        """Check that another power limit neither stops nor restarts a job."""
        driver = _Driver(self.make(["runs"]))
        driver.wait_for(ARRIVED, 0)
        driver.start(0)
        driver.wait_for(RAN, 0)
        driver.retune(0, CAP_W)
        driver.wait()
        ends = [driver.count(verb, 0) for verb in (STOPPED, LOST, FINISHED, FAILED)]
        assert ends == [0, 0, 0, 0]
        assert driver.state.leases.cap_w.tolist() == [CAP_W]
        driver.stop(0)
        driver.start(0)
        driver.wait_for(FINISHED, 0)
        assert driver.count(STOPPED, 0) == 1

    def test_a_job_runs_on_two_nodes(self) -> None:
        """Check that a job on two nodes has one start, one stop and one end."""
        self._need_two_nodes()
        driver = _Driver(self.make(["runs", "finishes"], nodes=2))
        driver.wait_for(ARRIVED, 0)
        driver.start(0, (0, 2), (1, 1))
        driver.wait_for(RAN, 0)
        assert driver.state.free_gpus.tolist() == [0, 1]
        driver.stop(0)
        driver.start(0, (0, 1), (1, 2))
        driver.wait_for(FINISHED, 0)
        assert (driver.count(STOPPED, 0), driver.count(FINISHED, 0)) == (1, 1)
        driver.wait_for(ARRIVED, 1)
        assert driver.state.free_gpus.tolist() == [2, 2]
        driver.start(1, (0, 2), (1, 2))
        driver.wait_for(FINISHED, 1)
        assert driver.backend.is_idle()

    def test_the_job_on_a_lost_node_is_back_in_the_queue(self) -> None:
        """Check that a lost node ends the lease of its job only, and that it can be used when it is back."""
        self._need_two_nodes()
        driver = _Driver(self.make(["runs", "runs"], nodes=2, losing_nodes=True))
        driver.wait_for(ARRIVED, 1)
        driver.start(0, (0, 1))
        driver.start(1, (1, 1))
        driver.wait_for(RAN, 1)
        self.lose_node(driver.backend)
        lost = driver.wait_for(NODE_LOST)
        assert driver.count(LOST, lost.job) == 1  # job n is on node n
        assert driver.count(LOST, 1 - lost.job) == 0
        verbs = [(event.verb, event.job) for event in driver.events]
        assert verbs.index((LOST, lost.job)) < verbs.index((NODE_LOST, lost.job))
        assert driver.state.leases.job.tolist() == [1 - lost.job]
        assert not driver.state.up[lost.job]
        driver.wait_for(NODE_BACK, lost.job)
        assert driver.state.up[lost.job]
        driver.forget(RAN, lost.job)
        driver.start(lost.job, (lost.job, 1))
        driver.wait_for(RAN, lost.job)

    def test_a_job_on_two_nodes_is_lost_with_one_of_them(self) -> None:
        """Check that a job on two nodes loses both when one goes down."""
        self._need_two_nodes()
        driver = _Driver(self.make(["runs"], nodes=2, losing_nodes=True))
        driver.wait_for(ARRIVED, 0)
        driver.start(0, (0, 1), (1, 1))
        driver.wait_for(RAN, 0)
        self.lose_node(driver.backend)
        lost = driver.wait_for(NODE_LOST)
        assert driver.count(LOST, 0) == 1
        assert len(driver.state.leases) == 0
        assert driver.state.free_gpus[1 - lost.job] == 2

    def test_a_restarted_backend_continues_running_jobs(self) -> None:
        """Check that running jobs keep their leases over a restart, and waiting jobs their place."""
        driver = _Driver(self.make(["runs", "runs", "finishes"]))
        driver.wait_for(ARRIVED, 2)
        driver.start(0, cap_w=CAP_W)
        driver.start(1)
        for job in (0, 1):  # in either order
            driver.wait_for(RAN, job)
        before = driver.state
        backend, state = self.restart(driver.backend, before)
        assert state.jobs.id[state.queue.job].tolist() == before.jobs.id[before.queue.job].tolist()
        assert state.leases.block.tolist() == before.leases.block.tolist()
        assert state.queue.restarts.tolist() == [0, 0, 0]
        driver = _Driver(backend, state)
        for job in (0, 1):
            driver.stop(job)
            driver.wait_for(STOPPED, job)
        for job in (2, 0, 1):
            driver.start(job)
            driver.wait_for(FINISHED, job)
        assert [driver.count(STOPPED, job) for job in range(3)] == [1, 1, 0]
        assert driver.backend.is_idle()

    def _need_two_nodes(self) -> None:
        if not self.multi_node:
            pytest.skip("this backend has one node")


class _Driver:
    """Applies actions to a backend, collects its events, and keeps the state that a loop would have."""

    def __init__(self, backend: Backend, state: Snapshot | None = None) -> None:
        self.backend = backend
        self.events: list[Event] = []
        self.state = build_empty_state(backend.jobs, backend.nodes, 0) if state is None else state
        self._actions: list[Actions] = []
        self._leases = self.state.leases

    def wait(self, until_s: float = 0.0) -> None:
        """Let the backend wait for the next event."""
        now_s, events = self.backend.wait(until_s)
        assert now_s >= self.state.now_s, "time went back"
        jobs = self.backend.jobs
        reason = np.zeros(len(self.state.queue), dtype=np.int64)
        actions = np.concatenate([np.empty((0, ACTION_COLUMNS), dtype=np.int64), *self._actions])
        decision = Decision(Placement(self._leases, reason, 0), actions)
        accepts = self.backend.nodes.accepted_kinds(jobs.gpu_kind)
        self.state = advance(self.state, decision, now_s, events, jobs, accepts)
        self._actions, self._leases = [], self.state.leases
        self.events += list_events(events)

    def wait_for(self, verb: int, job: int | None = None) -> Event:
        """Wait for an event of a job or node, any if that is None, and return it."""
        for _ in range(_MAX_WAITS):
            for event in self.events:
                if event.verb == verb and job in (None, event.job):
                    return event
            self.wait(self.state.now_s + _WAIT_S if self.events else 0.0)
        raise AssertionError(f"event {verb} of {job} did not occur; last events: {self.events[-5:]}")

    def count(self, verb: int, job: int) -> int:
        """Return how often an event of a job has occurred."""
        return sum(event.verb == verb and event.job == job for event in self.events)

    def forget(self, verb: int, job: int) -> None:
        """Remove earlier events, to wait for another one."""
        self.events = [event for event in self.events if (event.verb, event.job) != (verb, job)]

    def start(self, job: int, *allocation: tuple[int, int], cap_w: int = 0) -> None:
        """Start a job on pairs (node, number of GPUs); without any, on one GPU of node 0."""
        rows = [(job, job, node, gpus, cap_w) for node, gpus in allocation or ((0, 1),)]
        self._change(job, START, rows)

    def stop(self, job: int) -> None:
        """Stop a job."""
        self._change(job, STOP, [])

    def retune(self, job: int, cap_w: int) -> None:
        """Change the power limit of a running job."""
        held = self._leases.block[:, self._leases.job == job].T.tolist()
        self._change(job, RETUNE, [(*row[:4], cap_w) for row in held])

    def _change(self, job: int, verb: int, rows: Sequence[tuple[int, ...]]) -> None:
        others = self._leases.block[: LEASE_CAP_W + 1, self._leases.job != job]
        new = np.array(rows, dtype=np.int64).reshape(-1, LEASE_CAP_W + 1).T
        self._leases = Leases.of(*np.concatenate((others, new), axis=1))
        changed = rows if verb == START else [(job, job, -1, 0, rows[0][4] if rows else 0)]
        actions = np.zeros((len(changed), ACTION_COLUMNS), dtype=np.int64)
        actions[:, ACTION_VERB] = verb
        actions[:, ACTION_JOB : ACTION_CAP_W + 1] = changed
        self._actions.append(actions)
        self.backend.apply(actions)
