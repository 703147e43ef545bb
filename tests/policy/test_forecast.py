"""Forecast start times of waiting jobs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline.cluster import join_nodes, nodes
from wattline.core.events import ARRIVED, Event, build_events
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.plan import Plan
from wattline.core.snapshot import Snapshot
from wattline.loop.state import advance, build_empty_decision, build_empty_state
from wattline.models.remaining import group_remaining_s
from wattline.models.trace_model import TraceModels
from wattline.policy.chain import plan_as_requested
from wattline.policy.forecast import predict_starts_s


def queued(jobs: Jobs, cluster: Nodes) -> Snapshot:
    """All of *jobs* have arrived."""
    state = build_empty_state(jobs, cluster)
    events = build_events(*(Event(ARRIVED, job, 0.0) for job in range(len(jobs))))
    return advance(
        state, build_empty_decision(state), 0.0, events, jobs, cluster.accepted_kinds(jobs.gpu_kind)
    )


def some(gpus: list[int], duration_s: list[float], **more: object) -> Jobs:
    return Jobs.of(submit_s=[0.0] * len(gpus), gpus=gpus, duration_s=duration_s, **more)  # type: ignore[arg-type]


def starts(snapshot: Snapshot, plan: Plan | None = None) -> list[float]:
    plan = plan_as_requested(snapshot) if plan is None else plan
    return predict_starts_s(snapshot, plan, group_remaining_s(snapshot, TraceModels(), plan)).tolist()


def test_a_job_starts_when_enough_jobs_before_it_have_ended() -> None:
    jobs = some([2, 1, 1, 2, 9, 1], [100.0, 50.0, 70.0, 10.0, 1.0, 5.0])
    assert starts(queued(jobs, nodes("v100", gpus=4))) == [0, 0, 0, 70, math.inf, 80]


def test_each_kind_of_gpu_has_its_own_queue() -> None:
    jobs = some([1, 1, 1, 1], [100.0, 30.0, 1.0, 1.0], gpu_kind=["a100", "v100", "v100", "a100|v100"])
    cluster = join_nodes(nodes("v100", gpus=1), nodes("a100", gpus=2))
    assert starts(queued(jobs, cluster)) == [0, 0, 30, 0]


def test_a_group_starts_as_one_and_ends_with_its_last() -> None:
    jobs = some([1, 1, 1], [120.0, 60.0, 10.0])
    snapshot = queued(jobs, nodes("v100", gpus=1))
    pair = Plan(row=np.arange(3), gpus=np.ones(3, np.int64), group=np.array([0, 0, 2]))
    assert starts(snapshot, pair) == pytest.approx([0, 0, 200])  # each at 0.6


@given(
    gpus=st.lists(st.integers(1, 8), min_size=1, max_size=30),
    length=st.integers(1, 500),
    total=st.integers(1, 8),
)
def test_never_more_gpus_are_used_than_there_are(gpus: list[int], length: int, total: int) -> None:
    lasts_s = np.array([1.0 + (7 * at * length) % 100 for at in range(len(gpus))])
    start_s = np.array(starts(queued(some(gpus, lasts_s.tolist()), nodes("v100", gpus=total))))
    for at_s in start_s[np.isfinite(start_s)]:
        runs = (start_s <= at_s) & (at_s < start_s + lasts_s)
        assert np.array(gpus)[runs].sum() <= total
    assert np.array_equal(np.isinf(start_s), np.array(gpus) > total)
