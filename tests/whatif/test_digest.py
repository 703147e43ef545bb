"""Blocks of time, and schedules reduced to what comparisons need."""

import numpy as np
import pytest

from support.simulations import simulate
from wattline.cluster import nodes
from wattline.core.jobs import Jobs
from wattline.policy import fifo, srtf
from wattline.reports import report
from wattline.whatif.digest import Blocks, digest_log
from wattline.whatif.intervals import digest_intervals, find_most_held
from wattline.whatif.metrics import measure_schedule

JOBS = Jobs.of(submit_s=[0, 10, 20], gpus=[2, 2, 1], duration_s=[100, 50, 30])


def test_the_longest_blocks_are_taken_of_which_there_are_six() -> None:
    assert Blocks.between(0, 50 * 86_400.0).name == "week"
    assert Blocks.between(0, 20 * 86_400.0).name == "day"
    assert Blocks.between(0, 3 * 86_400.0).name == "6 h"
    assert (Blocks.between(0, 100).name, len(Blocks.between(0, 100))) == ("", 1)


def test_blocks_add_up_to_the_whole() -> None:
    blocks = Blocks((0.0, 10.0, 20.0), "10 s")
    at_s, value = np.array([0.0, 5.0, 25.0]), np.array([1.0, 3.0, 0.0])
    assert blocks.integrate(at_s, value, 25.0).tolist() == [20.0, 30.0, 15.0]
    assert blocks.number(np.array([0.0, 9.0, 10.0, 99.0])).tolist() == [0, 0, 1, 2]


def test_a_simulated_schedule_keeps_its_figures() -> None:
    log = simulate(JOBS, srtf, gpus=2)
    blocks = Blocks((0.0,), "")
    digest, whole = digest_log(log, blocks), report(log)
    found = measure_schedule(digest, JOBS, np.ones(3, dtype=np.bool_), 2, blocks)
    assert found.jct_mean_s == whole.jct_mean_s
    assert found.wait_mean_s == pytest.approx(whole.wait_mean_s)
    assert found.energy_j == pytest.approx(whole.energy_j)
    assert found.gpu_utilisation == pytest.approx(whole.gpu_utilisation)
    assert found.stops == whole.preemptions


def test_a_schedule_of_starts_and_ends_agrees_with_its_simulation() -> None:
    log = simulate(JOBS, fifo, gpus=2)
    blocks = Blocks((0.0,), "")
    simulated = digest_log(log, blocks)
    read = digest_intervals(JOBS, simulated.start_s, simulated.end_s, nodes("v100", gpus=2), blocks)
    assert read.gpu_s == pytest.approx(simulated.gpu_s)
    assert read.energy_j == pytest.approx(simulated.energy_j)
    assert read.wait_s == pytest.approx(simulated.wait_s)


def test_jobs_without_recorded_times_do_not_count() -> None:
    start_s, end_s = np.array([0.0, np.nan, 100.0]), np.array([100.0, np.nan, 130.0])
    digest = digest_intervals(JOBS, start_s, end_s, nodes("v100", gpus=2), Blocks((0.0,), ""))
    found = measure_schedule(digest, JOBS, np.ones(3, dtype=np.bool_), 2, Blocks((0.0,), ""))
    assert (found.jobs, found.unfinished, found.gpu_hours) == (3, 1, 230 / 3600)
    assert find_most_held(JOBS, start_s, end_s) == 2
