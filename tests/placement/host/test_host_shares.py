"""Host resources by need on the nodes that another placer has chosen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from support.host_workloads import CheckedPlacer, build_jobs, clusters_with_jobs, model_sets, simulate
from support.simulations import finish_times
from wattline import policy as p
from wattline.core.actions import ACTION_GROUP, ACTION_HOST, ACTION_NODE, ACTION_VERB, RETUNE, START, STOP
from wattline.core.jobs import Jobs
from wattline.core.nodes import Nodes
from wattline.models.library import library
from wattline.models.workload_models import WorkloadModels
from wattline.placement import Buddy, Host, Pack, Power
from wattline.placement.parser import parse_placer


def test_cores_that_one_job_does_not_need_go_to_another() -> None:
    log = simulate(build_jobs("image", "text", "text", "text"), Host(Pack()))
    starts = log.actions[log.actions[:, ACTION_VERB] == START]
    assert starts[:, ACTION_HOST].tolist() == [9000, 1000, 1000, 1000]


def test_nodes_are_those_of_the_other_placer() -> None:
    jobs = build_jobs("image", "text", "image", "text", gpus=[2, 1, 1, 4])
    for place in (Pack(), Buddy()):
        runs = [simulate(jobs, one).actions for one in (place, Host(place))]
        nodes = [actions[actions[:, ACTION_VERB] == START, ACTION_NODE].tolist() for actions in runs]
        assert nodes[0] == nodes[1]


def test_a_job_that_ends_leaves_its_cores_to_others_without_a_restart() -> None:
    jobs = Jobs.of(submit_s=[0, 0], gpus=[2, 2], duration_s=[50.0, 100.0], model=["image", "image"])
    log = simulate(jobs, Host(Pack()))
    assert (log.actions[:, ACTION_VERB] == RETUNE).any()
    assert not (log.actions[:, ACTION_VERB] == STOP).any()
    assert finish_times(log)["1"] < finish_times(simulate(jobs, Pack()))["1"]


def test_jobs_that_share_gpus_have_their_share() -> None:
    jobs = Jobs.of(
        submit_s=np.zeros(3), gpus=[4, 4, 4], duration_s=np.full(3, 100.0), batch=[64] * 3,
        model=["gavel/ResNet-18"] * 3, fuse=["sweep"] * 3, always_fuse=np.ones(3, dtype=np.bool_),
    )  # fmt: skip
    log = simulate(jobs, Host(Pack()), policy=p.chain(p.fifo, p.Fuse()), beliefs=library())
    starts = log.actions[log.actions[:, ACTION_VERB] == START]
    assert starts[:, ACTION_GROUP].tolist() == [0, 0, 0]
    assert (starts[:, ACTION_HOST] == 0).all()


@pytest.mark.slow
@given(generated=clusters_with_jobs(), models=model_sets())
def test_no_job_is_slower_than_with_its_share(generated: tuple[Nodes, Jobs], models: WorkloadModels) -> None:
    cluster, jobs = generated
    for policy in (p.fifo, p.Afs(), p.Market()):
        log = simulate(jobs, CheckedPlacer(Host(Buddy("greedy"))), cluster, policy, models)
        assert len(finish_times(log)) == len(jobs)


def test_it_goes_behind_another_placer() -> None:
    assert parse_placer("buddy+host+power") == Power(Host(Buddy()))
    assert parse_placer("pack+host") == Host(Pack())
