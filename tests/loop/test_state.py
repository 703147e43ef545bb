"""State transitions, checks of placements, and reconciliation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.cluster import nodes
from wattline.core.actions import RETUNE, START, STOP
from wattline.core.events import (
    ARRIVED,
    FAILED,
    FINISHED,
    LOST,
    NODE_BACK,
    NODE_LOST,
    RAN,
    READY,
    STOPPED,
    Event,
    build_events,
)
from wattline.core.jobs import Jobs
from wattline.core.leases import LEASE_CAP_W, Leases
from wattline.core.plan import Placement
from wattline.core.snapshot import Snapshot
from wattline.errors import GrantedTwice, Oversubscribed, PlanError, UnknownJob
from wattline.loop.check import check_placement
from wattline.loop.reconcile import reconcile
from wattline.loop.state import Decision, advance, build_empty_decision, build_empty_state

JOBS = Jobs.of(submit_s=[0, 0, 0, 0], gpus=[1, 2, 1, 4], duration_s=[100, 100, 100, 100])
NODES = nodes("v100", count=2, gpus=4)
ACCEPTS = NODES.accepted_kinds(JOBS.gpu_kind)


def advance_to(state: Snapshot, decision: Decision | None, now_s: float, *events: Event) -> Snapshot:
    return advance(
        state, decision or build_empty_decision(state), now_s, build_events(*events), JOBS, ACCEPTS
    )


def decide(state: Snapshot, *rows: tuple[int, int, int, int]) -> Decision:
    """Leases (job, group, node, gpus) as a decision on *state*."""
    leases = Leases.of(*zip(*rows, strict=True)) if rows else Leases.of((), (), (), ())
    reason = np.zeros(len(state.queue), dtype=np.int64)
    return Decision(Placement(leases, reason, 0), reconcile(state.leases, leases))


def build_placement(*leases: tuple[int, int, int, int]) -> Placement:
    return Placement(Leases.of(*zip(*leases, strict=True)), np.zeros(4, dtype=np.int64), 0)


def queue_jobs(*jobs: int) -> Snapshot:
    return advance_to(build_empty_state(JOBS, NODES), None, 0.0, *(Event(ARRIVED, job, 0.0) for job in jobs))


def test_a_job_that_arrives_waits_and_has_not_run() -> None:
    state = queue_jobs(0, 1)
    assert state.queue.job.tolist() == [0, 1]
    assert state.queue.requested_gpus.tolist() == [1, 2]
    assert not state.queue.running.any()
    assert np.isnan(state.queue.first_start_s).all()
    assert state.free_gpus.tolist() == [4, 4]


def test_a_job_that_fails_when_it_arrives_is_not_queued() -> None:
    state = queue_jobs(0)
    events = (Event(ARRIVED, 1, 5.0), Event(ARRIVED, 2, 5.0), Event(FAILED, 1, 5.0), Event(ARRIVED, 3, 6.0))
    state = advance_to(state, None, 6.0, *events)
    assert state.queue.job.tolist() == [0, 2, 3]
    assert state.queue.requested_gpus.tolist() == [1, 1, 4]
    assert state.queue.since_s.tolist() == [0, 5, 6]


def test_a_start_that_has_ended_since_leaves_other_jobs_as_they_are() -> None:
    state = queue_jobs(0, 1, 2)
    decision = decide(state, (0, 0, 0, 1), (1, 1, 0, 2))
    ends = Event(RAN, 0, 0.0, 0.0, 1.0), Event(FINISHED, 0, 5.0, 100.0)
    state = advance_to(state, decision, 6.0, Event(RAN, 1, 0.0, 0.0, 1.0), *ends)
    assert state.queue.job.tolist() == [1, 2]
    assert state.queue.held_gpus.tolist() == [2, 0]
    assert state.queue.first_start_s[0] == 0.0
    assert np.isnan(state.queue.first_start_s[1])
    assert state.leases.job.tolist() == [1]
    assert state.free_gpus.tolist() == [2, 4]


def test_a_lease_takes_gpus_and_gives_service() -> None:
    state = queue_jobs(0, 1)
    state = advance_to(state, decide(state, (1, 1, 0, 2)), 10.0, Event(RAN, 1, 0.0, 0.0, 1.0))
    assert state.free_gpus.tolist() == [2, 4]
    assert state.queue.held_gpus.tolist() == [0, 2]
    assert state.service_s.tolist() == [0, 10]
    assert state.service_gpu_s.tolist() == [0, 20]
    assert state.steps_done.tolist() == [0, 10]
    assert state.steps_left.tolist() == [100, 90]
    assert state.queue.first_start_s[1] == 0.0


def test_progress_starts_at_the_reported_time_even_in_the_future() -> None:
    state = queue_jobs(0)
    state = advance_to(state, decide(state, (0, 0, 0, 1)), 10.0, Event(RAN, 0, 30.0, 5.0, 1.0))
    assert state.steps_done.tolist() == [5.0]
    assert advance_to(state, None, 40.0).steps_done.tolist() == [15.0]


def test_a_stop_keeps_the_service_and_a_new_start_counts_as_a_restart() -> None:
    state = queue_jobs(0)
    state = advance_to(state, decide(state, (0, 0, 0, 1)), 10.0, Event(RAN, 0, 0.0, 0.0, 1.0))
    state = advance_to(state, decide(state), 20.0, Event(STOPPED, 0, 10.0, 10.0))
    assert state.service_s.tolist() == [10]
    assert state.queue.since_s.tolist() == [10]
    assert state.free_gpus.tolist() == [4, 4]
    state = advance_to(state, decide(state, (0, 0, 1, 1)), 25.0)
    assert state.queue.restarts.tolist() == [1]
    assert state.service_s.tolist() == [15]
    assert state.queue.first_start_s.tolist() == [0]


def test_the_first_start_up_and_that_of_the_last_restart_are_kept_apart() -> None:
    state = queue_jobs(0, 1)
    assert np.isnan([state.queue.startup_s, state.queue.restart_s]).all()
    state = advance_to(state, decide(state, (0, 0, 0, 1)), 10.0, Event(READY, 0, 5.0, rate=5.0))
    assert state.queue.startup_s.tolist() == [5.0, pytest.approx(np.nan, nan_ok=True)]
    for startup_s in (70.0, 60.0):
        state = advance_to(state, decide(state), 20.0, Event(STOPPED, 0, 10.0, 10.0))
        state = advance_to(state, decide(state, (0, 0, 1, 1)), 90.0, Event(READY, 0, 90.0, rate=startup_s))
        assert (state.queue.startup_s[0], state.queue.restart_s[0]) == (5.0, startup_s)
    assert np.isnan([state.queue.startup_s[1], state.queue.restart_s[1]]).all()


def test_a_start_up_of_a_lease_that_has_ended_is_not_counted() -> None:
    state = queue_jobs(0)
    state = advance_to(state, decide(state, (0, 0, 0, 1)), 10.0)
    late = Event(READY, 0, 10.0, rate=10.0), Event(READY, 3, 10.0, rate=10.0)
    state = advance_to(state, decide(state), 20.0, Event(STOPPED, 0, 10.0, 10.0), *late)
    assert np.isnan([state.queue.startup_s, state.queue.restart_s]).all()


def test_a_job_that_finishes_leaves_the_queue_and_frees_its_gpus() -> None:
    state = queue_jobs(0, 1, 2)
    state = advance_to(state, decide(state, (0, 0, 0, 1), (1, 1, 0, 2)), 5.0, Event(FINISHED, 0, 5.0, 100.0))
    assert state.queue.job.tolist() == [1, 2]
    assert state.leases.job.tolist() == [1]
    assert state.free_gpus.tolist() == [2, 4]


def test_a_job_that_loses_its_node_queues_again_and_the_node_has_no_free_gpus() -> None:
    state = queue_jobs(0, 1)
    state = advance_to(
        state,
        decide(state, (0, 0, 0, 1), (1, 1, 1, 2)),
        8.0,
        Event(LOST, 0, 8.0, 3.0),
        Event(NODE_LOST, 0, 8.0),
    )
    assert state.queue.running.tolist() == [False, True]
    assert state.free_gpus.tolist() == [0, 2]
    assert state.up.tolist() == [False, True]
    assert state.steps_done[0] == 3.0
    assert advance_to(state, None, 9.0, Event(NODE_BACK, 0, 9.0)).free_gpus.tolist() == [4, 2]


def test_the_next_member_leads_when_the_leader_of_a_group_ends() -> None:
    state = queue_jobs(0, 1, 2)
    state = advance_to(state, decide(state, (0, 0, 0, 1), (2, 0, 0, 1)), 5.0, Event(FINISHED, 0, 5.0, 100.0))
    assert state.leases.block.tolist() == [[2], [2], [0], [1], *[[0]] * 5]
    assert state.free_gpus.tolist() == [3, 4]


def test_advance_does_not_change_its_arguments() -> None:
    state = queue_jobs(0, 1)
    before = state.queue.block.copy()
    advance_to(state, decide(state, (0, 0, 0, 1)), 5.0, Event(FINISHED, 0, 5.0, 100.0))
    assert np.array_equal(state.queue.block, before, equal_nan=True)
    with pytest.raises(ValueError, match="read-only"):
        state.queue.block[0, 0] = 1.0


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        ([(3, 3, 0, 4), (1, 1, 0, 2)], Oversubscribed, "node v100-0 is oversubscribed by 2 GPUs"),
        ([(9, 9, 0, 1)], UnknownJob, "job 9 has a lease"),
        ([(0, 0, 0, 1), (0, 0, 0, 1)], GrantedTwice, "job 0 has two leases on node v100-0"),
        ([(0, 1, 0, 1)], PlanError, "in group 1, expected the GPUs of the group's leader"),
        ([(0, 0, 0, 0)], PlanError, "has 0 GPUs"),
        ([(0, 0, 7, 1)], PlanError, "on node 7, expected 0 to 1"),
    ],
)
def test_impossible_leases_raise_and_name_the_job_or_node(
    rows: list[tuple[int, int, int, int]], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        check_placement(build_placement(*rows), queue_jobs(0, 1, 2, 3))


def test_a_lease_on_a_node_that_is_down_raises() -> None:
    state = advance_to(queue_jobs(0), None, 1.0, Event(NODE_LOST, 0, 1.0))
    with pytest.raises(Oversubscribed, match="v100-0 is down"):
        check_placement(Placement(Leases.of([0], [0], [0], [1]), np.zeros(1, dtype=np.int64), 0), state)


@st.composite
def random_leases(draw: st.DrawFn) -> Leases:
    """Up to seven jobs on up to four nodes, each under one cap, with one batch and share of the host."""
    spans = st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(1, 4))
    rows = draw(st.lists(spans, unique_by=lambda row: row[:2]))
    job = [r[0] for r in rows]
    settings = (draw(st.lists(st.integers(0, 2), min_size=7, max_size=7)) for _ in range(5))
    cap_w, batch, *host = ([of_job[j] for j in job] for of_job in settings)
    return Leases.of(job, job, [r[1] for r in rows], [r[2] for r in rows], cap_w, batch, host)


LEASES = random_leases()


@given(LEASES)
def test_equal_leases_need_no_actions(leases: Leases) -> None:
    assert len(reconcile(leases, Leases(leases.block.copy()))) == 0


@given(LEASES, LEASES)
def test_actions_turn_the_old_leases_into_the_new(old: Leases, new: Leases) -> None:
    held = {(j, n): (g, b, (c, *h)) for j, _, n, g, c, b, *h in old.block.T.tolist()}
    stopped = set()
    for verb, job, _, node, gpus, cap_w, batch, *host in reconcile(old, new).tolist():
        settings = (cap_w, *host)
        if verb == RETUNE:
            assert all(b == batch for (j, _), (_, b, _) in held.items() if j == job), (
                "another batch, no restart"
            )
            held.update({(j, n): (g, b, settings) for (j, n), (g, b, _) in held.items() if j == job})
        elif verb == STOP:
            assert any(j == job for j, _ in held), "only running jobs are stopped"
            held = {key: g for key, g in held.items() if key[0] != job}
            stopped.add(job)
        else:
            assert verb == START
            held[job, node] = (gpus, batch, settings)
    assert held == {(j, n): (g, b, (c, *h)) for j, _, n, g, c, b, *h in new.block.T.tolist()}
    same = {
        j
        for j in old.job.tolist()
        if np.delete(old.block, LEASE_CAP_W, axis=0)[:, old.job == j].tolist()
        == np.delete(new.block, LEASE_CAP_W, axis=0)[:, new.job == j].tolist()
    }
    assert not same & stopped, "a job that keeps its lease is not stopped, whatever its cap"
