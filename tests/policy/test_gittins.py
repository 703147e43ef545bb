"""The policy `gittins`: what it learns, and which jobs that lets run."""

import math
from dataclasses import replace

import numpy as np
import pytest

from support.simulations import finish_times, simulate
from wattline import policy as p
from wattline.backend.sim.faults import Overheads
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes
from wattline.core.jobs import Jobs
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.errors import ConfigError
from wattline.loop.run import run
from wattline.policy.gittins import ServiceNote
from wattline.trace.synthetic import synth

PURE = p.Gittins(promote=0.0, quantum_s=10.0, index="best")


def jobs_of_100s_then(*more: tuple[float, float]) -> Jobs:
    """Ten jobs of 100 s, one after the other, then jobs of these submissions and durations."""
    first = [(200.0 * n, 100.0) for n in range(10)]
    rows = [*first, *more]
    return Jobs.of(
        id=[*(f"h{n}" for n in range(10)), *(f"j{n}" for n in range(len(more)))],
        submit_s=[submit_s for submit_s, _ in rows],
        gpus=[1] * len(rows),
        duration_s=[duration_s for _, duration_s in rows],
    )


def test_a_job_close_to_the_usual_end_is_not_stopped_for_a_new_one() -> None:
    jobs = jobs_of_100s_then((3000, 100), (3060, 100))
    assert finish_times(simulate(jobs, PURE))["j0"] == 3100
    assert finish_times(simulate(jobs, p.Las(quantum_s=10)))["j0"] > 3100


def test_a_job_beyond_the_usual_end_lets_new_ones_pass() -> None:
    jobs = jobs_of_100s_then((3000, 1000), (3200, 100), (3300, 100))
    ends = finish_times(simulate(jobs, PURE))
    assert (ends["j1"], ends["j2"], ends["j0"]) == (3300, 3400, 4200)


def test_without_ended_jobs_the_least_attained_service_goes_first() -> None:
    jobs = Jobs.of(id=["a", "b"], submit_s=[0, 100], gpus=[1, 1], duration_s=[1000, 1000])
    policy = replace(PURE, quantum_s=100.0)
    assert finish_times(simulate(jobs, policy)) == finish_times(simulate(jobs, p.Las(quantum_s=100)))


def test_queues_come_before_the_index() -> None:
    # All earlier jobs took 100 s, so the index of a job that has run 60 s is larger than that of a new one.
    jobs = jobs_of_100s_then((3000, 100), (3030, 100))
    queues = p.Gittins(thresholds_gpu_s=(50.0,), promote=0.0, quantum_s=10.0)
    ends = finish_times(simulate(jobs, queues))
    assert ends["j0"] > 3100  # it has left the first queue after 50 s, which the new one is in
    assert finish_times(simulate(jobs, PURE))["j0"] == 3100


@pytest.mark.slow
def test_it_learns_the_service_of_jobs_that_ended() -> None:
    jobs = synth(count=60, seed=3)
    seen: list[ServiceNote] = []

    def watch(snapshot: Snapshot, models: Models) -> Plan:
        plan = p.Gittins()(snapshot, models)
        assert isinstance(plan.note, ServiceNote)
        seen.append(plan.note)
        return plan

    run(Sim(jobs, nodes("v100", count=2), overheads=Overheads(0, 0)), watch)
    learnt, truth = seen[-1].ended_gpu_s, jobs.duration_s * jobs.gpus
    assert len(truth) - 2 <= len(learnt) <= len(truth)  # the last end is followed by no decision
    assert set(np.round(learnt, 3)) <= set(np.round(truth, 3))


@pytest.mark.slow
def test_only_the_last_jobs_count() -> None:
    jobs = synth(count=40, seed=3)
    most = []

    def watch(snapshot: Snapshot, models: Models) -> Plan:
        plan = p.Gittins(last=5)(snapshot, models)
        assert isinstance(plan.note, ServiceNote)
        most.append(len(plan.note.ended_gpu_s))
        return plan

    run(Sim(jobs, nodes("v100", count=2)), watch)
    assert max(most) == 5


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"thresholds_gpu_s": (5.0, 3.0)}, "must rise"),
        ({"promote": -1.0}, "promote must be at least 0"),
        ({"quantum_s": 0.0}, "quantum_s must be at least 1"),
        ({"quantum_s": math.inf}, "finite"),
        ({"index": "bets"}, "index must be one of queue, best, got 'bets'"),
        ({"last": 0}, "last must be at least 1"),
    ],
)
def test_impossible_knobs_are_refused(knobs: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        p.Gittins(**knobs)  # type: ignore[arg-type]
