"""Batch sizes that cost least."""

from __future__ import annotations

import numpy as np
import pytest

from support.simulations import simulate
from wattline import policy as p
from wattline.core.actions import START, STOP
from wattline.core.jobs import Jobs
from wattline.errors import ConfigError
from wattline.models.trace_model import TraceModels
from wattline.testing import PolicyContract


class TestBatch(PolicyContract):
    policy = p.Batch()


class TestBatchBehindAfsAndCap(PolicyContract):
    policy = p.chain(p.Afs(), p.Cap(), p.Batch())


def jobs(noise: float, max_batch: int = 1024) -> Jobs:
    return Jobs.of(
        id=["a"], submit_s=[0], gpus=[1], duration_s=[1000], batch=[64], max_batch=[max_batch], noise=[noise]
    )


def batches(log) -> list[int]:  # type: ignore[no-untyped-def]
    return [int(batch) for batch in log.actions[log.actions[:, 0] == START, 6]]


def test_a_noisy_gradient_takes_a_large_batch_and_a_quiet_one_does_not() -> None:
    # Without measurements a larger batch is as fast per step; its progress depends on the gradient noise.
    assert batches(simulate(jobs(noise=1e6), p.chain(p.fifo, p.Batch()))) == [1024]
    assert batches(simulate(jobs(noise=0.0), p.chain(p.fifo, p.Batch()))) == [0]


def test_the_most_that_a_job_allows_is_the_most_it_gets() -> None:
    assert batches(simulate(jobs(noise=1e6, max_batch=300), p.chain(p.fifo, p.Batch()))) == [256]
    assert batches(simulate(jobs(noise=1e6, max_batch=0), p.chain(p.fifo, p.Batch()))) == [0]


def test_a_larger_batch_ends_sooner_where_the_models_say_so() -> None:
    plain = simulate(jobs(noise=1e6), p.fifo).end_s
    assert simulate(jobs(noise=1e6), p.chain(p.fifo, p.Batch())).end_s < plain / 4


def test_started_jobs_keep_their_batch() -> None:
    many = Jobs.of(
        submit_s=np.arange(6) * 50.0, gpus=[1] * 6, duration_s=[1000.0] * 6, batch=[64] * 6,
        max_batch=[512] * 6, noise=[1e5] * 6,
    )  # fmt: skip
    log = simulate(many, p.chain(p.fifo, p.Batch()), gpus=8, truth=TraceModels())
    assert not (log.actions[:, 0] == STOP).any()
    assert set(batches(log)) == {512}


def test_wrong_knobs_are_named() -> None:
    with pytest.raises(ConfigError, match="eta must be between 0 and 1"):
        p.Batch(eta=2.0)
