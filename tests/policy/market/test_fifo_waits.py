"""Waits in order of submission, computed on paper."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import wattline as wl
from wattline import policy as p
from wattline.backend.sim.simulator import Sim
from wattline.cluster import parse_cluster
from wattline.core.jobs import Jobs
from wattline.loop.run import run
from wattline.models.trace_model import TraceModels
from wattline.placement import Pack
from wattline.policy.market.fifo_waits import compute_fifo_starts
from wattline.reports.summary import build_run_tables


def test_a_small_job_starts_early_only_if_it_delays_no_earlier_one() -> None:
    jobs = Jobs.of(submit_s=[0, 1, 2, 3], gpus=[3, 4, 1, 1], duration_s=[100, 10, 50, 200])
    starts = compute_fifo_starts(jobs, 4)
    assert starts.tolist() == [0, 100, 2, 110]


def test_a_job_that_needs_more_than_all_gpus_never_starts_and_delays_none() -> None:
    jobs = Jobs.of(submit_s=[0, 1], gpus=[8, 1], duration_s=[10, 10])
    starts = compute_fifo_starts(jobs, 4)
    assert np.isnan(starts[0])
    assert starts[1] == 1


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.sampled_from([1, 2, 4, 8]), st.integers(1, 200)),
        min_size=1,
        max_size=30,
    )
)
def test_starts_equal_those_of_a_simulation_of_fifo_on_one_node(rows: list[tuple[int, int, int]]) -> None:
    submit_s = np.cumsum([row[0] for row in rows]).astype(np.float64)
    jobs = Jobs.of(submit_s=submit_s, gpus=[row[1] for row in rows], duration_s=[row[2] for row in rows])
    models = TraceModels()
    log = run(Sim(jobs, parse_cluster("1xv100:8"), truth=models), p.fifo, models, place=Pack(backfill="easy"))
    simulated = build_run_tables(log).outcomes.first_start_s
    assert compute_fifo_starts(jobs, 8).tolist() == np.round(simulated, 9).tolist()


def test_a_start_does_not_depend_on_jobs_that_come_after_it() -> None:
    jobs = wl.synth(count=300, seed=3, load=1.2, gpus_total=32)
    starts = compute_fifo_starts(jobs, 32)
    early = jobs.take(np.arange(150))
    known = starts[:150] <= early.submit_s[-1]
    assert known.any()
    assert np.array_equal(compute_fifo_starts(early, 32)[known], starts[:150][known])
