"""Demand of the host, and orderings that depend on it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.host_workloads import MODELS
from support.simulations import NO_OVERHEADS, finish_times, first_start_times
from wattline import policy as p
from wattline.backend.sim.simulator import Sim
from wattline.cluster import nodes
from wattline.core.events import ARRIVED, Event, build_events
from wattline.core.host_share import fill_host_shares
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.core.snapshot import Snapshot
from wattline.errors import ConfigError
from wattline.loop.run import run
from wattline.loop.state import advance, build_empty_decision, build_empty_state
from wattline.papers import Greedy, drf_published, ftf_published, tetris_published
from wattline.placement import Tune

NODE = nodes("v100", gpus=8, cpus=24, mem_gib=500)


def queue(jobs: Jobs, cluster: Nodes = NODE) -> Snapshot:
    """Return a snapshot in which all jobs have arrived and none runs."""
    jobs = fill_host_shares(jobs, cluster)
    state = build_empty_state(jobs, cluster)
    arrivals = build_events(*(Event(ARRIVED, job, 0.0) for job in range(len(jobs))))
    return advance(
        state, build_empty_decision(state), 0.0, arrivals, jobs, cluster.accepted_kinds(jobs.gpu_kind)
    )


def some(*names: str, **columns: object) -> Jobs:
    given_ = {"submit_s": np.zeros(len(names)), "gpus": [1] * len(names), "duration_s": [100.0] * len(names)}
    return Jobs.of(**{**given_, "model": names, **columns})  # type: ignore[arg-type]


def test_a_job_demands_the_least_that_keeps_its_speed() -> None:
    plan = p.Demand(keep=1.0)(queue(some("image", "text")), MODELS)
    assert plan.host is not None
    assert (plan.host[0] / 1000).tolist() == [12, 1]


def test_a_later_stage_counts_with_the_speed_that_jobs_would_have() -> None:
    jobs = some("text", "image", duration_s=[200.0, 300.0])
    assert p.srtf(queue(jobs), MODELS).row.tolist() == [0, 1]
    cluster = nodes("v100", gpus=1, cpus=24)  # one GPU, so that one job has to wait
    jobs = some("text", "image", duration_s=[200.0, 300.0], cpus=[3.0, 3.0], mem_gib=[62.5, 62.5])
    plan = p.chain(p.Demand(), p.srtf)(queue(jobs, cluster), MODELS)
    assert plan.row.tolist() == [1, 0]  # four times as fast with twelve cores


def test_demands_stay_with_their_jobs_when_they_are_ranked() -> None:
    plan = p.chain(p.Demand(keep=1.0), p.fifo, p.priority)(
        queue(some("image", "text", priority=[0.0, 1.0])), MODELS
    )
    assert plan.host is not None
    assert plan.row.tolist() == [1, 0]
    assert plan.host[0].tolist() == [1000, 12000]


@pytest.mark.parametrize("keep", [0.0, 1.1, np.nan])
def test_a_demand_of_nothing_is_refused(keep: float) -> None:
    with pytest.raises(ConfigError, match="keep must be"):
        p.Demand(keep=keep)


def test_teams_go_in_turn_by_their_dominant_share() -> None:
    jobs = some("text", "text", "text", "text", team=["a", "a", "a", "b"])
    assert p.drf(queue(jobs), MODELS).row.tolist() == [0, 3, 1, 2]


def test_teams_that_take_much_of_one_resource_are_served_less_often() -> None:
    jobs = some(*["image"] * 2, *["text"] * 6, team=["a", "a", *["b"] * 6])
    plan = p.chain(p.Demand(keep=1.0), p.drf)(queue(jobs), MODELS)
    assert plan.row.tolist() == [0, 2, 3, 4, 5, 1, 6, 7]  # half the cores are as much as four GPUs of eight


def test_without_teams_users_count_and_without_users_jobs() -> None:
    assert p.drf(queue(some("text", "text", "text", user=["u", "u", "v"])), MODELS).row.tolist() == [0, 2, 1]
    assert p.drf(queue(some("text", "text", gpus=[4, 1])), MODELS).row.tolist() == [0, 1]


def test_tetris_serves_the_best_fit_into_free_resources_first() -> None:
    jobs = some("text", "image", gpus=[1, 2], duration_s=[100.0, 25.0])
    plan = p.chain(p.Demand(keep=1.0), p.tetris)(queue(jobs), MODELS)
    assert plan.row.tolist() == [1, 0]


def test_tetris_takes_short_work_first_among_equals() -> None:
    jobs = some("text", "text", "text", duration_s=[300.0, 100.0, 200.0])
    assert p.tetris(queue(jobs), MODELS).row.tolist() == [1, 2, 0]


def test_the_published_orders_are_by_one_job_alone() -> None:
    jobs = some("text", "text", "text", gpus=[4, 1, 2], team=["a", "a", "b"], duration_s=[10.0, 100.0, 90.0])
    assert drf_published(queue(jobs), MODELS).row.tolist() == [1, 2, 0]
    assert tetris_published(queue(jobs), MODELS).row.tolist() == [0, 1, 2]
    assert ftf_published(queue(jobs), MODELS).row.tolist() == [0, 1, 2]


@given(
    names=st.lists(st.sampled_from(("image", "speech", "text")), min_size=1, max_size=12),
    policy=st.sampled_from((p.drf, p.tetris, drf_published, tetris_published, ftf_published)),
    demands=st.booleans(),
)
def test_all_jobs_end_in_any_order(names: list[str], policy: p.Stage, demands: bool) -> None:
    chained = p.chain(p.Demand(), policy) if demands else p.chain(policy)
    for place in (Greedy(), Tune("greedy")):
        sim = Sim(some(*names), nodes("v100", gpus=2, cpus=24), truth=MODELS, overheads=NO_OVERHEADS)
        log = run(sim, chained, MODELS, place=place)
        assert len(finish_times(log)) == len(first_start_times(log)) == len(names)
