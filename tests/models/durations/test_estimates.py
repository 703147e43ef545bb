"""What policies see of the durations of jobs."""

from dataclasses import replace

import numpy as np
import pytest

from support.recorded_trace import build_jobs, set_limits
from support.simulations import NO_OVERHEADS, finish_times, started_jobs
from wattline.backend.replay import Replay
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes
from wattline.core.jobs import Jobs
from wattline.core.plan import Plan
from wattline.core.protocols import Models
from wattline.core.snapshot import Snapshot
from wattline.loop.log_reader import read_log
from wattline.loop.log_writer import write_log
from wattline.loop.run import run
from wattline.loop.runlog import Log
from wattline.models.durations.estimates import DurationEstimates, EstimateBuilder
from wattline.models.durations.history import History
from wattline.models.durations.limits import LoggedEstimates, TimeLimits
from wattline.placement.pack import Pack
from wattline.policy import fifo, sjf, srtf


def with_limits(*limit_s: float) -> EstimateBuilder:
    return lambda jobs: DurationEstimates(jobs, TimeLimits(np.array(limit_s), History(jobs)))


def with_history(jobs: Jobs) -> DurationEstimates:
    return DurationEstimates(jobs, History(jobs))


def simulate(jobs: Jobs, policy: object, durations: EstimateBuilder | None, backfill: str = "easy") -> Log:
    sim = Sim(jobs, nodes("v100", gpus=4), overheads=NO_OVERHEADS)
    return run(sim, policy, place=Pack(backfill), durations=durations)  # type: ignore[arg-type]


def test_the_shortest_job_is_the_one_with_the_smallest_limit() -> None:
    jobs = Jobs.of(submit_s=[0, 1, 1], gpus=[4, 4, 4], duration_s=[10, 100, 200])
    assert started_jobs(simulate(jobs, sjf, None)) == ["0", "1", "2"]
    assert started_jobs(simulate(jobs, sjf, with_limits(10, 500, 300))) == ["0", "2", "1"]


def test_jobs_run_as_long_as_they_really_do() -> None:
    jobs = Jobs.of(submit_s=[0, 1], gpus=[4, 4], duration_s=[10, 100])
    log = simulate(jobs, sjf, with_limits(3600, 3600))
    assert finish_times(log) == {"0": 10, "1": 110}
    assert log.jobs.duration_s.tolist() == [10, 100]


def test_backfill_reserves_by_limits() -> None:
    # Job 2 would end before job 0 does, but its limit is longer than the wait of job 1.
    jobs = Jobs.of(submit_s=[0, 1, 2], gpus=[3, 4, 1], duration_s=[100, 50, 20])
    assert started_jobs(simulate(jobs, fifo, None)) == ["0", "2", "1"]
    assert started_jobs(simulate(jobs, fifo, with_limits(100, 50, 500))) == ["0", "1", "2"]


def test_a_job_that_outlives_its_estimate_is_taken_to_need_as_much_again() -> None:
    seen: dict[float, float] = {}

    def watch(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        if len(snapshot.queue):
            seen[snapshot.now_s] = float(snapshot.steps_left[0])
        return fifo(snapshot, models, plan)

    jobs = Jobs.of(submit_s=[0, 40, 300], gpus=[4, 4, 4], duration_s=[1000, 1, 1])
    simulate(jobs, watch, with_limits(100, 10, 10))
    assert (seen[0], seen[40], seen[300]) == (100, 60, 300)


def test_only_jobs_that_ended_before_the_submission_teach() -> None:
    jobs = Jobs.of(
        submit_s=[0, 0, 5, 50, 60], gpus=[1] * 5, duration_s=[10, 20, 500, 30, 30], user=["ann"] * 5
    )
    log = simulate(jobs, fifo, with_history)
    assert log.header["durations"]["estimate_s"] == [3600.0, 3600.0, 3600.0, 15.0, 15.0]


def test_a_run_with_estimates_can_be_written_read_and_replayed(tmp_path: object) -> None:
    jobs = build_jobs(120)
    first = simulate(jobs, srtf, with_history)
    path = f"{tmp_path}/run.jsonl"
    write_log(first, path)
    log = read_log(path)
    logged = log.header["durations"]
    again = run(
        Replay(log),
        srtf,
        place=Pack("easy"),
        durations=lambda known: DurationEstimates(
            known, LoggedEstimates(logged["name"], logged["estimate_s"])
        ),
    )
    assert np.array_equal(again.actions, first.actions)


@pytest.mark.parametrize("durations", ["limit", "history"])
def test_what_policies_see_is_not_the_truth(durations: str) -> None:
    jobs = build_jobs(60)
    builder = with_history if durations == "history" else with_limits(*set_limits(jobs))

    def spy(snapshot: Snapshot, models: Models, plan: Plan | None = None) -> Plan:
        arrived = snapshot.queue.job
        assert not np.array_equal(snapshot.jobs.steps[arrived], jobs.steps[arrived]) or not len(arrived)
        return fifo(snapshot, models, plan)

    other = replace(jobs, steps=jobs.steps + 0.5)  # no estimate can be right by chance
    simulate(other, spy, builder)
