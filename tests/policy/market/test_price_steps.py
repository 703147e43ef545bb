"""Prices of GPUs over time, and the order of jobs that follows from them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import wattline as wl
from support.queued_jobs import queue_up
from wattline.core.jobs import Jobs
from wattline.core.snapshot import Snapshot
from wattline.energy.prices import Price
from wattline.energy.time_series import TimeSeries
from wattline.models.library import library
from wattline.policy import Market
from wattline.policy.market.prices import Prices

HOUR_S = 3600.0
queues = st.lists(
    st.tuples(st.sampled_from([1, 2, 4, 8]), st.floats(30.0, 3e5), st.floats(0.0, 1e5)),
    min_size=1,
    max_size=40,
)


def queue_rows(rows: list[tuple[int, float, float]]) -> Snapshot:
    order = sorted(rows, key=lambda row: row[2])
    jobs = Jobs.of(
        submit_s=[row[2] for row in order],
        gpus=[row[0] for row in order],
        duration_s=[row[1] for row in order],
        model=["elasticflow/resnet50"] * len(order),
    )
    return queue_up(jobs, wl.nodes("a100", count=2), 1e5)


def find_prices(policy: Market, state: Snapshot) -> Prices:
    prices = policy._decide(state, library(), None).decision.prices
    assert prices is not None
    return prices


@given(queues, st.sampled_from([0.0, 1e-4, 1e-2]))
def test_a_gpu_is_never_dearer_later(rows: list[tuple[int, float, float]], energy_price: float) -> None:
    gpu = find_prices(Market(energy_price=energy_price), queue_rows(rows)).gpu
    assert (np.diff(gpu, axis=1) <= 1e-9 * gpu[:, :-1]).all()


def test_a_gpu_may_be_dearer_when_a_joule_is_cheaper() -> None:
    """Energy is nearly free from the second hour on: then all jobs want to run."""
    rows = [(1, 20_000.0, 1e5)] * 30
    dear_first = TimeSeries((0.0, 1e5 + HOUR_S), (50.0, 0.01))
    policy = Market(energy_price=1e-2, price=Price(dear_first))
    gpu = find_prices(policy, queue_rows(rows)).gpu
    assert (np.diff(gpu, axis=1) > 0).any()


def test_no_long_job_runs_while_short_ones_wait() -> None:
    """Many equal short jobs want the first buckets at once, which made the prices there swing."""
    for short in range(4, 24, 2):
        jobs = Jobs.of(
            submit_s=[0.0] * (12 + short),
            gpus=[1] * (12 + short),
            duration_s=[190_000.0] * 12 + [400.0] * short,
        )
        plan = Market(wait_limit=float("inf"))(
            queue_up(jobs, wl.nodes("v100", gpus=4), 0.0), wl.TraceModels()
        )
        first = plan.row[:4]  # the others fill gaps
        assert (first >= 12).all(), f"{short} short jobs: {first.tolist()}"
