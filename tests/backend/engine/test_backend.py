"""`EngineBackend` on an engine without processes: the contract with several nodes, and its calls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.fake_engine import FakeCluster, FakeEngine
from support.job_request import JOB_REQUEST
from wattline.backend.engine.backend import EngineBackend
from wattline.backend.engine.job_record import JobRecord
from wattline.backend.engine.job_spec import JobSpec
from wattline.cluster import nodes as make_nodes
from wattline.core.actions import ACTION_COLUMNS, POWER_OFF, RETUNE, START, STOP
from wattline.core.events import ARRIVED, LOST, NODE_BACK, NODE_LOST, list_events
from wattline.core.protocols import Backend
from wattline.core.snapshot import Snapshot
from wattline.testing import BackendContract, JobBehaviour


def make_job(name: str, behaviour: str, **more: Any) -> JobRecord:
    return JobRecord(JobSpec(name, (behaviour, "train.py"), config={}), JOB_REQUEST, time.time(), **more)


class TestEngineBackend(BackendContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.root = tmp_path

    def make(self, jobs: Sequence[JobBehaviour], nodes: int = 1, *, losing_nodes: bool = False) -> Backend:
        self.jobs = jobs
        self.cluster = FakeCluster(make_nodes("v100", count=nodes, gpus=2))
        backend = EngineBackend(self.root, FakeEngine(self.root, self.cluster))
        backend.submit(make_job(str(row), job) for row, job in enumerate(jobs))
        return backend

    def restart(self, backend: Backend, state: Snapshot) -> tuple[Backend, Snapshot]:
        backend.close()
        again = EngineBackend(self.root, FakeEngine(self.root, self.cluster))
        again.adopt(make_job(str(row), job) for row, job in enumerate(self.jobs))
        return again, again.initial_state()

    def lose_node(self, backend: Backend) -> None:
        self.cluster.lose_node(1)


class Harness:
    """A backend on two nodes of two GPUs, and the events that it passed to its callback."""

    def __init__(self, root: Path, *jobs: JobRecord) -> None:
        self.cluster = FakeCluster(make_nodes("v100", count=2, gpus=2))
        self.engine = FakeEngine(root, self.cluster)
        self.reported: list[tuple[str, str, dict[str, Any]]] = []
        self.backend = EngineBackend(
            root, self.engine, on_event=lambda *event: self.reported.append(event), stay_open=True
        )
        self.backend.submit(jobs)
        self.wait()

    def apply(self, *actions: Sequence[int]) -> None:
        block = np.zeros((len(actions), ACTION_COLUMNS), dtype=np.int64)
        for row, action in zip(block, actions, strict=True):
            row[: len(action)] = action
        self.backend.apply(block)

    def wait(self) -> list[tuple[int, int]]:
        """Return verbs and rows of the events so far, without waiting for more."""
        return [(event.verb, event.job) for event in list_events(self.backend.wait(0.0)[1])]

    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.reported]


def test_the_members_of_an_array_start_as_one_attempt_on_two_nodes(tmp_path: Path) -> None:
    harness = Harness(tmp_path, *(make_job(str(n), "runs", fuse="key") for n in range(2)))
    harness.apply((START, 0, 0, 0, 2), (START, 0, 0, 1, 1), (START, 1, 0, 0, 2), (START, 1, 0, 1, 1))
    assert harness.engine.calls == [("start", ("0", "1"))]
    (attempt,) = harness.backend._attempts.attempts
    assert (attempt.allocation, attempt.gpus) == (((0, 2), (1, 1)), (0, 1, 0))
    assert [data["fused_with"] for _, _, data in harness.reported] == [["1"], ["0"]]
    state = harness.backend.initial_state()
    assert state.leases.block[:4].tolist() == [[0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1], [2, 1, 2, 1]]
    assert state.free_gpus.tolist() == [0, 1]


def test_packed_jobs_share_their_gpus_also_after_a_restart(tmp_path: Path) -> None:
    jobs = [make_job(str(n), "runs") for n in range(2)]
    harness = Harness(tmp_path, *jobs)
    harness.apply((START, 0, 0, 0, 1), (START, 1, 0, 0, 1))
    assert harness.engine.calls == [("start", ("0",)), ("start", ("1",))]
    again = EngineBackend(tmp_path, FakeEngine(tmp_path, harness.cluster))
    again.adopt(make_job(str(n), "runs") for n in range(2))
    state = again.initial_state()
    assert state.leases.group.tolist() == [0, 0]
    assert state.free_gpus.tolist() == [1, 2]


def test_a_restart_of_a_job_waits_for_its_earlier_attempt(tmp_path: Path) -> None:
    harness = Harness(tmp_path, make_job("0", "runs"))
    harness.apply((START, 0, 0, 0, 1))
    harness.apply((STOP, 0, 0, -1), (START, 0, 0, 1, 2))
    assert [attempt.state for attempt in harness.backend._attempts.attempts] == ["running", "queued"]
    harness.wait()
    assert harness.kinds() == ["started", "stopped", "started"]
    harness.wait()
    assert harness.kinds()[3:] == ["ended"]


def test_the_trial_of_an_attempt_that_never_ran_is_forgotten(tmp_path: Path) -> None:
    spec = JobSpec("1", ("runs", "train.py"), group="nightly", batch_sizes=(32, 64), batch=64)
    harness = Harness(tmp_path, make_job("0", "runs"), JobRecord(spec, JOB_REQUEST, time.time()))
    memory = harness.backend._recurring._memory

    def count_trials() -> int:
        return int(memory._connection.execute("SELECT count(*) FROM trial").fetchone()[0])

    harness.engine.hold_starts = True
    harness.apply((START, 1, 1, 0, 1))
    (attempt,) = harness.backend._attempts.attempts
    assert (attempt.state, attempt.settings.batch, count_trials()) == ("queued", 64, 1)
    harness.backend.withdraw("1")
    harness.wait()
    assert (count_trials(), harness.reported) == (0, [])


def test_a_refused_attempt_is_retried_and_counts_as_a_kill(tmp_path: Path) -> None:
    harness = Harness(tmp_path, make_job("0", "refused"))
    harness.apply((START, 0, 0, 0, 1))
    ((kind, _, data),) = harness.reported
    assert (kind, data["kill_count"]) == ("retry", 1)
    assert data["message"] == "It could not be started: the node is broken."


def test_a_queued_attempt_on_a_lost_node_is_back_in_the_queue(tmp_path: Path) -> None:
    harness = Harness(tmp_path, make_job("0", "runs"))
    harness.apply((START, 0, 0, 0, 1))
    harness.wait()
    harness.apply((STOP, 0, 0, -1), (START, 0, 0, 1, 1))
    harness.cluster.lose_node(1)
    events = harness.wait()
    assert events.index((LOST, 0)) < events.index((NODE_LOST, 1)) < events.index((NODE_BACK, 1))
    assert harness.kinds() == ["started", "stopped"]


def test_a_new_epoch_learns_which_nodes_are_down(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.cluster.changes = [(1, False)]
    assert harness.wait() == [(NODE_LOST, 1)]
    harness.backend.initial_state()
    assert harness.wait() == [(NODE_LOST, 1)]


def test_switching_a_node_is_passed_to_the_engine(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.apply((POWER_OFF, -1, -1, 1))
    assert harness.engine.calls == [("power off", ("1",))]


def test_cancelling_an_unknown_job_is_reported(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.backend.cancel("7")
    assert harness.wait() == []
    assert harness.reported == [("unknown_job", "7", {})]


def test_an_interrupt_ends_the_wait_and_keeps_events(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.backend.submit([make_job("0", "runs")])
    harness.backend.interrupt()
    assert harness.backend.wait(0.0)[0] == float("inf")
    assert harness.wait() == [(ARRIVED, 0)]


# -- the sum of power caps


def test_a_start_waits_for_the_watts_of_an_attempt_that_is_being_stopped(tmp_path: Path) -> None:
    harness = Harness(tmp_path, make_job("0", "runs"), make_job("1", "runs"))
    idle_w = float(harness.engine.nodes.idle_node_w.sum())
    harness.backend.limit_caps({"": idle_w + 150.0})
    harness.apply((START, 0, 0, 0, 1, 150))
    harness.apply((STOP, 0, 0, -1), (START, 1, 1, 1, 1, 150))
    assert [attempt.state for attempt in harness.backend._attempts.attempts] == ["running", "queued"]
    harness.wait()
    assert harness.kinds() == ["started", "stopped", "started"]


def test_a_cap_is_raised_when_the_attempt_that_is_being_stopped_has_ended(tmp_path: Path) -> None:
    harness = Harness(tmp_path, make_job("0", "runs"), make_job("1", "runs"))
    idle_w = float(harness.engine.nodes.idle_node_w.sum())
    harness.backend.limit_caps({"": idle_w + 2 * 100.0})
    harness.apply((START, 0, 0, 0, 1, 120), (START, 1, 1, 1, 1, 120))
    harness.apply((STOP, 0, 0, -1), (RETUNE, 1, 1, -1, 0, 200))
    (attempt,) = harness.backend._attempts.of_job("1")
    assert attempt.settings.cap_w == 120
    harness.wait()
    assert attempt.settings.cap_w == 200


def test_caps_are_lowered_before_others_are_raised(tmp_path: Path) -> None:
    harness = Harness(tmp_path, make_job("0", "runs"), make_job("1", "runs"))
    harness.apply((START, 0, 0, 0, 1, 120), (START, 1, 1, 1, 1, 200))
    harness.engine.calls.clear()
    harness.apply((RETUNE, 0, 0, -1, 0, 200), (RETUNE, 1, 1, -1, 0, 120))
    assert harness.engine.calls == [("retune", ("1",)), ("retune", ("0",))]


def test_without_a_bound_nothing_waits_for_watts(tmp_path: Path) -> None:
    harness = Harness(tmp_path, make_job("0", "runs"), make_job("1", "runs"))
    harness.apply((START, 0, 0, 0, 1, 150))
    harness.apply((STOP, 0, 0, -1), (START, 1, 1, 1, 1, 150))
    assert [attempt.state for attempt in harness.backend._attempts.attempts] == ["running", "running"]
