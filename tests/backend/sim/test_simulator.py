"""The simulated world, in cases small enough to do by hand."""

import math

import numpy as np
import pytest

from support.manual_simulation import ManualSimulation
from support.simulations import finish_times, simulate
from wattline import policy as p
from wattline.backend.sim.faults import Faults, Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes
from wattline.core.events import (
    EVENT_AT_S,
    EVENT_JOB,
    EVENT_VERB,
    FAILED,
    FINISHED,
    LOST,
    METERED,
    NODE_BACK,
    NODE_LOST,
    READY,
)
from wattline.core.jobs import Jobs
from wattline.errors import ConfigError
from wattline.loop.run import run
from wattline.models.array_speed import ArrayModel
from wattline.models.trace_model import TraceModels

TWO = Jobs.of(id=["a", "b"], submit_s=[0, 10], gpus=[1, 1], duration_s=[100, 20])


def count(log: object, verb: int) -> int:
    return int((log.events[:, 0] == verb).sum())  # type: ignore[attr-defined]


def test_a_restart_costs_seconds_and_a_first_start_its_own() -> None:
    free = simulate(TWO, p.srtf)
    assert finish_times(free) == {"b": 30, "a": 120}
    costly = simulate(TWO, p.srtf, overheads=Overheads(start_s=5, restart_s=7))
    assert finish_times(costly) == {"b": 35, "a": 35 + 7 + 95}  # a had run 5 of its 10 s


def test_costs_may_differ_from_job_to_job() -> None:
    log = simulate(TWO, p.srtf, overheads=Overheads(restart_s=[50.0, 0.0]))
    assert finish_times(log) == {"b": 30, "a": 170}


def test_a_start_up_is_reported_with_the_next_events_after_it_has_ended() -> None:
    sim = ManualSimulation(
        TWO, nodes("v100", gpus=2), overheads=Overheads(start_s=[0.0, 4.0], restart_s=30.0)
    )
    sim.advance_to(0.0)
    sim.start(0, gpus=1)
    sim.advance_to(10.0)  # its first start took no time, which is not reported
    sim.stop(0)
    sim.start(0, gpus=1)
    sim.start(1, gpus=1)
    sim.advance_to(20.0)
    sim.advance_to(39.0)
    assert [event[1:] for event in sim.events if event.verb == READY] == [(1, 14.0, 0.0, 4.0, 0.0)]
    sim.advance_to(50.0)
    assert sim.last_event(READY)[1:] == (0, 40.0, 0.0, 30.0, 0.0)


def test_a_start_up_that_a_stop_has_cut_short_is_not_reported() -> None:
    sim = ManualSimulation(TWO, nodes("v100", gpus=2), overheads=Overheads(restart_s=30.0))
    sim.advance_to(10.0)
    for at_s in (20.0, 40.0, 60.0):
        sim.start(0, gpus=1)
        sim.advance_to(at_s)
        sim.stop(0)
    sim.advance_to(100.0)
    assert READY not in {event.verb for event in sim.events}


def test_start_ups_make_no_rounds_of_their_own() -> None:
    log = simulate(TWO, p.srtf, overheads=Overheads(start_s=5, restart_s=7))
    assert log.now_s.tolist() == [0.0, 10.0, 35.0, 137.0, 137.0]
    assert count(log, READY) == 1  # the other two attempts end before the next round


def test_saving_costs_the_last_seconds_before_a_stop() -> None:
    log = simulate(TWO, p.srtf, overheads=Overheads(restart_s=0, stop_s=4))
    assert finish_times(log) == {"b": 30, "a": 124}


def test_in_rounds_everything_happens_on_the_boundaries() -> None:
    jobs = Jobs.of(id=["a", "b"], submit_s=[10, 350], gpus=[1, 1], steps=[100, 10], step_s=[7.0, 7.0])
    log = simulate(jobs, p.fifo, gpus=2, quantum_s=300)
    # 42 whole steps of 7 s fit into 300 s: a needs three rounds from 300 on.
    assert finish_times(log) == {"a": 1200, "b": 900}
    assert set(log.now_s % 300) == {0.0}


def test_a_restart_in_rounds_costs_part_of_the_round() -> None:
    jobs = Jobs.of(id=["a", "b"], submit_s=[0, 290], gpus=[1, 1], steps=[130, 40], step_s=[5.0, 5.0])
    log = simulate(jobs, p.srtf, quantum_s=300, overheads=Overheads(restart_s=100))
    # a does 60, b its 40, a comes back with (300 - 100) / 5 = 40 steps, then 30 are left.
    assert finish_times(log) == {"b": 600, "a": 1200}


def test_a_step_longer_than_a_round_still_gets_done() -> None:
    jobs = Jobs.of(submit_s=[0], gpus=[1], steps=[2], step_s=[500.0])
    assert finish_times(simulate(jobs, p.fifo, quantum_s=300)) == {"0": 1200}


def test_a_job_without_work_ends_at_once() -> None:
    assert finish_times(simulate(Jobs.of(submit_s=[5], gpus=[1], duration_s=[0]), p.fifo)) == {"0": 5.0}


def test_no_jobs_make_an_empty_run() -> None:
    log = simulate(Jobs.of(submit_s=[], gpus=[], duration_s=[]), p.fifo)
    assert log.events[:, 0].tolist() == [METERED]
    assert log.events[0, 5] == 0.0


def test_energy_is_base_idle_and_busy_watts_times_seconds() -> None:
    cluster = nodes("v100", gpus=2, base_w=100, idle_w=10, busy_w=200)
    log = run(Sim(Jobs.of(submit_s=[50], gpus=[1], duration_s=[1000]), cluster), p.fifo)
    finished = log.events[log.events[:, 0] == FINISHED][0]
    assert finished[5] == 200 * 1000
    assert log.events[-1, 5] == (100 + 10 + 200) * 1000


def test_packed_jobs_share_the_energy_of_their_gpus() -> None:
    jobs = Jobs.of(submit_s=[0, 0], gpus=[1, 1], duration_s=[60, 120])
    cluster = nodes("v100", gpus=1, base_w=0, idle_w=0, busy_w=100)
    log = run(Sim(jobs, cluster), p.Gandiva())
    used = log.events[log.events[:, 0] == FINISHED][:, 5]
    assert used.sum() == pytest.approx(log.events[-1, 5])
    assert used[0] == pytest.approx(100 * 100 / 2)  # 60 s of work at 0.6, half the watts


def test_members_of_an_array_share_its_speed_and_the_energy_of_its_gpus() -> None:
    jobs = Jobs.of(submit_s=[0, 0], gpus=[1, 1], duration_s=[60, 120], fuse=["a", "a"])
    cluster = nodes("v100", gpus=1, base_w=0, idle_w=0, busy_w=100)
    truth = TraceModels(array=ArrayModel(serial=0.25))
    log = run(Sim(jobs, cluster, truth=truth), p.chain(p.fifo, p.Fuse()), truth)
    assert finish_times(log) == pytest.approx({"0": 75, "1": 135})  # both at 1 / 1.25, then one alone
    used = log.events[log.events[:, 0] == FINISHED][:, 5]
    assert used == pytest.approx([100 * 75 / 2, 100 * 75 / 2 + 100 * 60])
    assert used.sum() == pytest.approx(log.events[-1, 5])


def test_jobs_with_different_keys_on_the_same_gpus_are_only_packed() -> None:
    jobs = Jobs.of(submit_s=[0, 0], gpus=[1, 1], duration_s=[60, 60], fuse=["a", "b"])
    assert finish_times(simulate(jobs, p.Gandiva(), truth=TraceModels(array=ArrayModel(serial=0.0)))) == {
        "0": 100,
        "1": 100,
    }


def test_a_broken_node_sends_its_jobs_back_to_what_they_saved() -> None:
    faults = Faults(node_mtbf_s=5000, node_repair_s=600, checkpoint_s=1000)
    jobs = Jobs.of(submit_s=[0], gpus=[1], duration_s=[20_000])
    log = simulate(jobs, p.fifo, faults=faults, seed=3)
    assert count(log, NODE_LOST) >= 2
    assert count(log, NODE_BACK) >= 1
    lost = log.events[log.events[:, 0] == LOST]
    assert len(lost) >= 1
    assert np.allclose(lost[:, 3] / 1000, np.round(lost[:, 3] / 1000))
    assert finish_times(log)["0"] > 20_000 + 600


def test_a_job_that_fails_too_often_has_failed() -> None:
    jobs = Jobs.of(submit_s=np.zeros(200), gpus=np.ones(200, dtype=np.int64), duration_s=np.full(200, 100.0))
    log = simulate(jobs, p.fifo, gpus=8, faults=Faults(job_failure=0.5, retries=1))
    assert count(log, FAILED) + count(log, FINISHED) == 200
    assert 30 <= count(log, FAILED) <= 70  # a quarter, give or take
    assert count(log, LOST) >= count(log, FAILED)


def test_failures_are_decided_by_the_seed_alone() -> None:
    jobs = Jobs.of(submit_s=[0, 0, 0], gpus=[1, 1, 1], duration_s=[9000, 9000, 9000])
    faults = Faults(node_mtbf_s=3000, job_failure=0.3)
    one, two, other = (simulate(jobs, p.fifo, gpus=2, faults=faults, seed=s) for s in (1, 1, 2))
    assert np.array_equal(one.events, two.events)
    assert not np.array_equal(one.events, other.events)


def test_a_job_that_can_never_run_does_not_keep_the_run_going() -> None:
    jobs = Jobs.of(submit_s=[0, 0], gpus=[99, 1], duration_s=[5, 5])
    for faults in (Faults(), Faults(node_mtbf_s=1000)):
        assert finish_times(simulate(jobs, p.fifo, gpus=4, faults=faults)) == {"1": 5.0}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Overheads(restart_s=-1), "restart_s must be at least 0"),
        (lambda: Faults(node_mtbf_s=0), "node_mtbf_s must be above 0"),
        (lambda: Faults(job_failure=1.0), "job_failure must be at least 0 and below 1"),
        (lambda: Sim(TWO, nodes("v100"), quantum_s=0), "quantum_s must be above 0"),
        (lambda: Sim(TWO, nodes("v100"), quantum_s=math.nan), "quantum_s must be above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("quantum_s", [0.1, 7.3, 1 / 3])
def test_rounds_of_any_length_come_to_an_end(quantum_s: float) -> None:
    jobs = Jobs.of(submit_s=[0, 3, 50], gpus=[1, 1, 2], duration_s=[10, 3.33, 9])
    log = simulate(jobs, p.Las(1.0), gpus=2, quantum_s=quantum_s, faults=Faults(job_failure=0.3, retries=1))
    assert count(log, FINISHED) + count(log, FAILED) == 3


def test_an_attempt_that_reaches_its_time_limit_is_killed() -> None:
    jobs = Jobs.of(submit_s=[0, 0, 0], gpus=[1, 1, 1], duration_s=[100, 100, 100])
    sim = Sim(jobs, nodes("v100", gpus=1), limit_s=np.array([50.0, 100.0, np.nan]))
    log = run(sim, p.fifo)
    ends = {
        int(event[EVENT_JOB]): (int(event[EVENT_VERB]), float(event[EVENT_AT_S]))
        for event in log.events
        if event[EVENT_VERB] in (FINISHED, FAILED)
    }
    assert ends == {0: (FAILED, 50.0), 1: (FINISHED, 150.0), 2: (FINISHED, 250.0)}
