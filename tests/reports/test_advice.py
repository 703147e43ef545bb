"""Advice on the cores and memory that jobs should request."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.host_workloads import MODELS, NAMES, build_jobs, model_sets
from wattline.cluster import nodes
from wattline.core.grants import Grants
from wattline.core.host_share import fill_host_shares
from wattline.core.jobs import Jobs
from wattline.models.workload_models import WorkloadModels
from wattline.reports.advice import advise, format_advice

NODE = nodes("v100", gpus=8, cpus=48, mem_gib=480)


def job_requesting(model: str, cpus: float, mem_gib: float, gpus: int = 1) -> Jobs:
    return Jobs.of(
        submit_s=[0.0],
        gpus=[gpus],
        duration_s=[1.0],
        model=[model],
        cpus=[cpus * gpus],
        mem_gib=[mem_gib * gpus],
    )


def test_advice_to_request_less_names_the_cores_it_frees() -> None:
    (advice,) = advise(job_requesting("text", 12, 60, gpus=2), NODE, MODELS)
    assert (advice.cpus, advice.freed_cpus) == (1, 22)
    assert format_advice(advice) == (
        "--cpus-per-gpu=1 --mem-per-gpu=17G keeps 100 % speed;"
        " frees 22 cores = 5 more one-GPU jobs on this node"
    )


def test_advice_to_request_more_names_the_speedup() -> None:
    (advice,) = advise(job_requesting("image", 3, 60), NODE, MODELS, keep=1.0)
    assert format_advice(advice) == (
        "--cpus-per-gpu=12 --mem-per-gpu=17G keeps 100 % speed, 4.00x as fast as with its present request;"
        " takes 9 cores more"
    )


def test_a_lower_speed_needs_fewer_cores() -> None:
    (advice,) = advise(job_requesting("image", 6, 60), NODE, MODELS, keep=0.5)
    assert advice.cpus == 6
    assert advice.speed_kept == pytest.approx(0.5)


def test_a_job_without_a_model_is_advised_to_be_profiled() -> None:
    (advice,) = advise(job_requesting("unknown", 6, 60), NODE, MODELS)
    assert (advice.cpus, advice.flags, advice.extra_jobs) == (None, "", 0)
    assert "wattline profile" in format_advice(advice)


def test_equal_jobs_have_one_advice() -> None:
    result = advise(build_jobs("text", "text", "image"), NODE, MODELS)
    assert sorted((advice.model, advice.jobs) for advice in result) == [("image", 1), ("text", 2)]


@given(
    workload_models=model_sets(),
    name=st.sampled_from(NAMES[:3]),
    gpus=st.integers(1, 8),
    keep=st.floats(0.3, 1.0),
)
def test_advice_keeps_the_speed_that_it_promises(
    workload_models: WorkloadModels, name: str, gpus: int, keep: float
) -> None:
    jobs = fill_host_shares(build_jobs(name, gpus=[gpus]), NODE)
    (advice,) = advise(jobs, NODE, workload_models, keep)
    assert advice.cpus is not None
    assert advice.mem_gib is not None
    ways = [(1000 * advice.cpus, 1024 * advice.mem_gib), (48000 // gpus, 480 * 1024 // gpus)]
    host = np.array([*zip(*ways, strict=True), (0, 0)], dtype=np.int64)
    same = np.ones(2, dtype=np.int64)
    then, best = workload_models.speed(
        jobs, Grants.of(0 * same, gpus * same, host=host, kind="v100")
    ).tolist()
    assert then >= keep * best * (1 - 1e-6)
    assert advice.cpus * gpus <= 48
