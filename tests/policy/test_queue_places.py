"""Places in the queues of Tiresias, by hand and against the authors' simulator."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.pollux_durations import ALONE_S
from support.simulations import finish_times, simulate
from wattline import policy as p
from wattline.core.actions import STOP
from wattline.core.events import EVENT_AT_S, EVENT_JOB, EVENT_VERB, FINISHED
from wattline.core.jobs import Jobs
from wattline.placement import Pack


def read_workload(path: Path) -> Jobs:
    rows = list(csv.DictReader(path.read_text().splitlines()))
    gpus = [int(row["num_replicas"]) for row in rows]
    return Jobs.of(
        submit_s=[float(row["time"]) for row in rows],
        gpus=gpus,
        duration_s=[float(ALONE_S[row["application"]][n]) for row, n in zip(rows, gpus, strict=True)],
    )


def test_a_demoted_job_goes_behind_those_that_wait_and_a_stopped_one_before_them() -> None:
    # "a" is demoted at 100, "b" at 200; "c" stops "a" at 250, which then goes on before "b".
    jobs = Jobs.of(id=["a", "b", "c"], submit_s=[0, 50, 250], gpus=[1, 1, 1], duration_s=[300, 300, 20])
    log = simulate(jobs, p.Tiresias(thresholds_gpu_s=(100.0,), promote=0.0, quantum_s=1))
    assert finish_times(log) == {"c": 270, "a": 420, "b": 620}


def test_a_job_that_waits_does_not_stop_one_that_runs_in_its_queue() -> None:
    # "c" stops "a" at 160, and "b" fits beside it. At 180 "a" was submitted first, but "b" runs.
    jobs = Jobs.of(id=["a", "b", "c"], submit_s=[0, 10, 160], gpus=[2, 1, 1], duration_s=[500, 300, 20])
    running = p.Tiresias((100.0,), promote=0.0, quantum_s=1)
    log = simulate(jobs, running, gpus=2, place=Pack("greedy"))
    other = simulate(jobs, replace(running, within="submission"), gpus=2, place=Pack("greedy"))
    assert finish_times(log) == {"c": 180, "b": 360, "a": 800}
    assert finish_times(other)["b"] > 360
    assert (log.actions[:, 0] == STOP).sum() < (other.actions[:, 0] == STOP).sum()


def test_tiresias_gives_the_mean_of_the_authors_simulator_with_its_clock_corrected(data: Path) -> None:
    jobs = read_workload(data / "pollux/workloads/workload-6.csv")
    policy = p.Tiresias(thresholds_gpu_s=(3250.0, 7200.0), promote=0.0, quantum_s=1)
    log = simulate(jobs, policy, gpus=4, count=16, place=Pack("greedy"), quantum_s=1.0)
    ended = log.events[log.events[:, EVENT_VERB] == FINISHED]
    jct_s = ended[:, EVENT_AT_S] - jobs.submit_s[ended[:, EVENT_JOB].astype(np.int64)]
    assert jct_s.mean() == pytest.approx(3577.8, abs=0.1)
