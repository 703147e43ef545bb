"""Batch sizes of jobs from traces that name none."""

from __future__ import annotations

import numpy as np

import wattline as wl
from wattline.core.jobs import Jobs
from wattline.models.batch_assignment import PUBLISHED, allow_published_batches, draw_batches
from wattline.models.configurations import build_configurations
from wattline.models.library import library


def test_jobs_of_published_applications_may_use_all_measured_sizes() -> None:
    jobs = Jobs.of(
        submit_s=[0.0, 0.0, 0.0], gpus=[4, 1, 1], duration_s=[60.0] * 3,
        model=["pollux/yolov3", "ncf", "other"], batch=[64, 40_000, 32],
    )  # fmt: skip
    found = allow_published_batches(jobs)
    assert found.max_batch.tolist() == [512, 40_000, 0]
    assert found.noise.tolist() == [PUBLISHED["yolov3"].noise, PUBLISHED["ncf"].noise, 0.0]


def test_drawn_limits_are_relative_to_the_request_and_equal_within_a_model() -> None:
    count = 60
    names = np.array(["elasticflow/resnet50", "elasticflow/bert", ""])[np.arange(count) % 3]
    gpus = 2 ** (np.arange(count) % 4)
    jobs = Jobs.of(submit_s=np.arange(count), gpus=gpus, duration_s=np.ones(count), model=names.tolist())
    found = draw_batches(jobs, library(), "a100", seed=1)
    known = names != ""
    assert (found.max_batch[~known] == 0).all()
    assert (found.max_batch[known] > 2 * found.batch[known]).all()
    for name in set(names[known]):
        rows = names == name
        assert len(set((found.noise[rows] / found.batch[rows]).round(6))) == 1
        assert len(set(found.batch[rows] / gpus[rows])) == 1
    assert draw_batches(jobs, library(), "a100", seed=1).noise.tolist() == found.noise.tolist()


def test_a_drawn_batch_makes_some_job_faster() -> None:
    jobs = Jobs.of(submit_s=[0.0], gpus=[4], duration_s=[60.0], model=["elasticflow/resnet50"])
    nodes = wl.parse_cluster("1xa100:8")
    plain = build_configurations(library(), jobs, nodes).speed.max()
    assert (
        build_configurations(library(), draw_batches(jobs, library(), "a100", 0), nodes).speed.max() > plain
    )
