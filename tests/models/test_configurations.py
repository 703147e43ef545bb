"""Configurations of jobs: GPUs, caps and batch sizes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import wattline as wl
from wattline.cluster import join_nodes
from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.models.configurations import CAP_LEVELS, build_configurations
from wattline.models.library import library
from wattline.models.scaling import LINEAR
from wattline.models.trace_model import TraceModels

NODES = wl.nodes("a100", count=4)


def test_sizes_are_powers_of_two_and_the_request_within_bounds() -> None:
    jobs = Jobs.of(
        submit_s=[0] * 4, gpus=[3, 8, 4, 1], duration_s=[1] * 4, min_gpus=[2, 8, 0, 0], max_gpus=[8, 8, 16, 0]
    )
    ways = build_configurations(TraceModels(scaling=LINEAR), jobs, NODES)
    found = [ways.gpus[s, : ways.size_count[s]].tolist() for s in ways.job_class[:, 0]]
    assert found == [[2, 3, 4, 8], [8], [1, 2, 4, 8, 16], [1, 2, 4, 8, 16, 32]]


def test_a_menu_says_what_the_models_say() -> None:
    jobs = Jobs.of(submit_s=[0], gpus=[4], duration_s=[1], model=["elasticflow/vgg16"], batch=[256])
    models = library()
    ways = build_configurations(models, jobs, NODES)
    for s in range(int(ways.size_count[0])):
        for k in range(CAP_LEVELS):
            gpus, cap_w = ways.gpus[0, s], ways.cap_w[0, s, k]
            grants = Grants.of(
                np.zeros(1, dtype=np.int64), np.array([gpus]), np.array([-(-gpus // 8)]),
                cap_w=np.array([cap_w]), kind="a100",
            )  # fmt: skip
            assert ways.speed[0, s, k] == models.speed(jobs, grants)[0]
            assert ways.watts[0, s, k] == gpus * models.watts(jobs, grants)[0]


def test_jobs_of_one_class_share_a_row_and_others_do_not() -> None:
    jobs = Jobs.of(
        submit_s=[0] * 4, gpus=[1, 1, 1, 2], duration_s=[1, 2, 3, 4], model=["bert", "bert", "vgg16", "bert"]
    )
    rows = build_configurations(library(), jobs, NODES).job_class[:, 0]
    assert rows[0] == rows[1]
    assert len(set(rows.tolist())) == 3


def test_every_kind_of_gpu_has_its_own_ways() -> None:
    nodes = join_nodes(wl.nodes("a100", count=1), wl.nodes("t4", count=1, gpus=2))
    jobs = Jobs.of(submit_s=[0], gpus=[1], duration_s=[1])
    ways = build_configurations(TraceModels(scaling=LINEAR), jobs, nodes)
    fast, slow = ways.job_class[0].tolist()
    assert ways.gpus[fast, : ways.size_count[fast]].tolist() == [1, 2, 4, 8]
    assert ways.gpus[slow, : ways.size_count[slow]].tolist() == [1, 2]
    assert ways.watts[fast, 0, -1] > ways.watts[slow, 0, -1]


def test_of_nodes_that_differ_idle_gpus_draw_the_least_and_all_else_the_most() -> None:
    one, other = (
        {"idle_w": 60.0, "base_w": 100.0, "busy_w": 300.0},
        {"idle_w": 10.0, "base_w": 900.0, "busy_w": 250.0},
    )
    jobs = Jobs.of(submit_s=[0], gpus=[1], duration_s=[1])
    for first, second in ((one, other), (other, one)):
        ways = build_configurations(
            TraceModels(scaling=LINEAR),
            jobs,
            join_nodes(wl.nodes("a100", **first), wl.nodes("a100", **second)),
        )
        assert (ways.idle_w[0], ways.static_w[0], ways.watts[0, 0, -1]) == (10.0, 900.0 / 8, 300.0)


@given(st.integers(1, 8), st.integers(0, 2048), st.floats(0, 1e5))
def test_a_larger_batch_is_chosen_only_where_it_is_faster_and_allowed(
    gpus: int, most: int, noise: float
) -> None:
    asked = 64
    jobs = Jobs.of(
        submit_s=[0], gpus=[gpus], duration_s=[1], model=["elasticflow/resnet50"], batch=[asked],
        max_batch=[most if most >= asked else 0], noise=[noise],
    )  # fmt: skip
    fixed = Jobs.of(submit_s=[0], gpus=[gpus], duration_s=[1], model=["elasticflow/resnet50"], batch=[asked])
    ways, plain = build_configurations(library(), jobs, NODES), build_configurations(library(), fixed, NODES)
    assert (ways.batch <= max(most, 0)).all()
    assert (ways.speed >= plain.speed * (1 - 1e-12)).all()
    assert (ways.speed[ways.batch == 0] == plain.speed[ways.batch == 0]).all()


def test_the_same_question_is_answered_once() -> None:
    jobs = Jobs.of(submit_s=[0], gpus=[1], duration_s=[1])
    models = TraceModels(scaling=LINEAR)
    assert build_configurations(models, jobs, NODES) is build_configurations(models, jobs, NODES)
