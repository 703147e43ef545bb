"""Protection of running jobs: no policy and no placer stops a job that would lose its work."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from wattline.backend.replay import Replay
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes
from wattline.core.actions import ACTION_JOB, ACTION_VERB, START, STOP
from wattline.core.events import PROTECTED, STOPPED
from wattline.core.jobs import (
    PREEMPTIBLE_ALWAYS,
    PREEMPTIBLE_NEVER,
    PREEMPTIBLE_ONCE_SAVED,
    Jobs,
)
from wattline.core.leases import Leases
from wattline.core.plan import Placement, Plan
from wattline.core.protocols import Models
from wattline.core.queue import QUEUE_PROTECTED_UNTIL_S, QUEUE_ROWS, Queue
from wattline.core.reasons import REASONS, Reason
from wattline.core.snapshot import MeterReadings, Snapshot
from wattline.loop.log_reader import read_initial_state, read_log
from wattline.loop.log_writer import write_log
from wattline.loop.protection import find_protected_rows, keep_leases, restore_leases
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.loop.state import restore_state
from wattline.placement.buddy.placer import Buddy
from wattline.placement.pack import Pack
from wattline.policy.ordering import Las
from wattline.policy.parser import parse_policy


def two_jobs(**columns: list[float]) -> Jobs:
    """Return two jobs of 100 s on both GPUs of the cluster."""
    jobs = Jobs.of(submit_s=[0.0, 0.0], gpus=[2, 2], duration_s=[100.0, 100.0])
    typed = {name: np.array(values, dtype=getattr(jobs, name).dtype) for name, values in columns.items()}
    return replace(jobs, **typed)


def count_actions(log: Log, verb: int) -> list[int]:
    return log.actions[log.actions[:, ACTION_VERB] == verb, ACTION_JOB].tolist()


def simulate(jobs: Jobs, policy: str = "las:quantum=10s") -> Log:
    sim = Sim(jobs, nodes("a100", gpus=2), overheads=Overheads(restart_s=5.0))
    return run(sim, parse_policy(policy))


def test_jobs_of_a_trace_lose_nothing_and_are_stopped_at_every_quantum() -> None:
    log = simulate(two_jobs())
    assert len(count_actions(log, STOP)) >= 10
    assert PROTECTED not in {event.verb for step in log for event in step.events}


def test_a_job_that_never_saves_is_not_stopped() -> None:
    never = [-1.0, -1.0]
    log = simulate(two_jobs(checkpoint_s=never, preemptible=[PREEMPTIBLE_ONCE_SAVED] * 2))
    assert count_actions(log, START) == [0, 1]
    assert count_actions(log, STOP) == []
    assert log.end_s == pytest.approx(200.0)


def test_a_preemptible_job_that_never_saves_starts_from_the_beginning() -> None:
    jobs = Jobs.of(submit_s=[0.0, 40.0], gpus=[2, 2], duration_s=[100.0, 10.0], priority=[0.0, 1.0])
    log = simulate(replace(jobs, checkpoint_s=np.array([-1.0, 0.0])), "priority")
    stopped = [event.steps for step in log for event in step.events if event.verb == STOPPED]
    assert stopped == [0.0]
    assert log.end_s == pytest.approx(40 + 10 + 5 + 100)  # the restart costs 5 s


def test_least_attained_service_does_not_count_service_that_a_stop_would_lose() -> None:
    log = simulate(two_jobs(checkpoint_s=[-1.0, -1.0], preemptible=[PREEMPTIBLE_ALWAYS] * 2))
    assert count_actions(log, STOP) == []


def test_a_job_that_saves_now_and_then_is_stopped_after_a_checkpoint_only() -> None:
    log = simulate(two_jobs(checkpoint_s=[30.0, 30.0], preemptible=[PREEMPTIBLE_ONCE_SAVED] * 2))
    stopped = [event for step in log for event in step.events if event.verb == STOPPED]
    assert stopped
    for event in stopped:
        assert event.steps % 30.0 == pytest.approx(0.0)
        assert event.steps > 0
    assert np.array_equal(run(Replay(log), parse_policy("las:quantum=10s")).actions, log.actions)


def test_an_attempt_runs_for_its_least_time() -> None:
    log = simulate(two_jobs(min_runtime_s=[40.0, 40.0]))
    began: dict[int, float] = {}
    for step in log:
        for verb, job in step.actions[:, [ACTION_VERB, ACTION_JOB]].tolist():
            if verb == STOP:
                assert step.now_s - began[job] >= 40.0
            elif verb == START:
                began[job] = step.now_s
    assert count_actions(log, STOP)


def test_a_snapshot_has_the_work_that_a_stop_would_lose() -> None:
    seen: dict[float, tuple[list[float], list[float], list[bool]]] = {}

    def watch(snapshot: Snapshot, models: Models) -> Plan:
        losses = snapshot.lost_work_s.tolist(), snapshot.lost_steps.tolist(), snapshot.protected.tolist()
        seen[snapshot.now_s] = losses
        return replace(Las()(snapshot, models), next_decision_s=snapshot.now_s + 7.0)

    jobs = two_jobs(checkpoint_s=[30.0, 0.0], preemptible=[PREEMPTIBLE_ONCE_SAVED, PREEMPTIBLE_ALWAYS])
    run(Sim(jobs, nodes("a100", gpus=4)), watch)
    assert seen[21.0] == ([21.0, 0.0], [21.0, 0.0], [True, False])
    assert seen[37.0] == ([7.0, 0.0], [7.0, 0.0], [False, False])


@pytest.fixture
def state() -> Snapshot:
    """Three jobs on two nodes of four GPUs: rows 0 and 1 run, row 0 is protected, row 2 waits."""
    jobs = Jobs.of(submit_s=[0.0] * 3, gpus=[2, 2, 4], duration_s=[100.0] * 3)
    jobs = replace(jobs, preemptible=np.array([PREEMPTIBLE_ONCE_SAVED] * 3))
    block = np.zeros((QUEUE_ROWS, 3))
    block[0] = [0, 1, 2]
    block[1] = [2, 2, 4]
    block[2] = 1  # accepted kinds
    block[11] = [2, 2, 0]  # held GPUs
    block[QUEUE_PROTECTED_UNTIL_S] = [math.inf, -math.inf, -math.inf]
    leases = Leases.of([0, 1], [0, 1], [0, 0], [2, 2], cap_w=[200, 0], batch=[64, 0])
    cluster = nodes("a100", count=2, gpus=4)
    return restore_state(jobs, cluster, 0, 50.0, Queue(block), leases, MeterReadings.empty())


def make_plan(*rows: tuple[int, int, int], **more: object) -> Plan:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return Plan(*(np.ascontiguousarray(column) for column in columns), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "plan",
    [
        make_plan((2, 4, 2)),
        make_plan((2, 4, 2), (0, 4, 0), (1, 2, 1)),
        make_plan((1, 2, 1), (0, 2, 1)),
        make_plan((0, 2, 0), (1, 2, 0)),
        make_plan((0, 2, 0), batch=np.array([128])),
    ],
    ids=["left out", "resized", "joins a group", "leads a group", "another batch"],
)
@pytest.mark.parametrize("place", [Pack(), Buddy()])
def test_a_protected_job_keeps_its_lease_whatever_the_plan(state: Snapshot, plan: Plan, place: Pack) -> None:
    kept = find_protected_rows(plan, state)
    assert kept is not None
    assert kept.tolist() == [True, False, False]
    plan = keep_leases(plan, state, kept)
    assert (plan.row[0], plan.gpus[0], plan.group[0]) == (0, 2, 0)
    placement = restore_leases(place(plan, state, None), plan, state, kept)  # type: ignore[arg-type]
    own = placement.leases.job == 0
    assert placement.leases.block[:4, own].T.tolist() == [[0, 0, 0, 2]]
    assert placement.leases.batch[own].tolist() == [64]
    assert placement.reason[0] == 0


def test_a_placer_may_not_move_a_protected_job(state: Snapshot) -> None:
    plan = make_plan((0, 2, 0), (1, 2, 1), (2, 4, 2))
    kept = find_protected_rows(plan, state)
    assert kept is not None
    moved = Leases.of([0, 1, 2], [0, 1, 2], [1, 1, 0], [2, 2, 4])
    placement = Placement(moved, np.zeros(3, dtype=np.int64), 0)
    restored = restore_leases(placement, keep_leases(plan, state, kept), state, kept)
    assert restored.leases.block[:4].T.tolist() == [[0, 0, 0, 2], [1, 1, 1, 2]]
    assert REASONS[restored.reason[2]] is Reason.OUTRANKED
    assert restored.waiting == 1


def test_a_budget_stops_a_job_that_has_not_saved_but_not_one_that_is_never_preempted(
    state: Snapshot,
) -> None:
    over = REASONS.index(Reason.OVER_BUDGET)
    plan = make_plan((1, 2, 1), reason=np.array([over, 0, over]))
    assert find_protected_rows(plan, state) is None
    never = replace(state.jobs, preemptible=np.array([PREEMPTIBLE_NEVER] * 3))
    kept = find_protected_rows(plan, replace(state, jobs=never))
    assert kept is not None
    assert kept.tolist() == [True, False, False]


def test_the_end_of_a_protection_is_a_time_to_decide(state: Snapshot) -> None:
    block = state.queue.block.copy()
    block[QUEUE_PROTECTED_UNTIL_S, 0] = 80.0
    state = replace(state, queue=Queue(block))
    plan = make_plan((2, 4, 2))
    kept = find_protected_rows(plan, state)
    assert kept is not None
    assert keep_leases(plan, state, kept).next_decision_s == 80.0
    assert find_protected_rows(plan, replace(state, now_s=80.0)) is None


def test_a_log_has_the_protection_and_old_logs_have_none(state: Snapshot, tmp_path: Path) -> None:
    policy = parse_policy("las:quantum=10s")
    jobs = replace(state.jobs, checkpoint_s=np.array([-1.0, 0.0, 30.0]))
    state = replace(state, jobs=jobs)
    log = run(Sim(jobs, state.nodes, initial_state=state), policy, initial_state=state)
    assert 0 not in count_actions(log, STOP)
    write_log(log, tmp_path / "run.jsonl")
    again = read_log(tmp_path / "run.jsonl")
    assert np.array_equal(again.events, log.events)
    assert again.jobs.checkpoint_s.tolist() == [-1.0, 0.0, 30.0]
    assert again.jobs.preemptible.tolist() == [PREEMPTIBLE_ONCE_SAVED] * 3
    before = read_initial_state(again)
    assert before is not None
    assert before.queue.protected_until_s.tolist() == [math.inf, -math.inf, -math.inf]
    run(Replay(again), policy, initial_state=before)

    header, *lines = (tmp_path / "run.jsonl").read_text().splitlines()
    old = json.loads(header)
    old["initial_state"]["queue"] = old["initial_state"]["queue"][:17]  # as 0.1.0 wrote it
    (tmp_path / "old.jsonl").write_text("\n".join([json.dumps(old), *lines]) + "\n")
    before = read_initial_state(read_log(tmp_path / "old.jsonl"))
    assert before is not None
    assert before.queue.protected_until_s.tolist() == [-math.inf] * 3
    assert np.isnan([before.queue.startup_s, before.queue.restart_s]).all()
