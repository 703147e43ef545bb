"""Advice: what jobs should ask for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.host_workloads import MODELS, NAMES, build_jobs, model_sets
from wattline.cluster import nodes
from wattline.core.grants import Grants
from wattline.core.host_share import with_shares
from wattline.core.jobs import Jobs
from wattline.models.workload_models import Measured
from wattline.reports.advice import advise, sentence

NODE = nodes("v100", gpus=8, cpus=48, mem_gib=480)


def asking(model: str, cpus: float, mem_gib: float, gpus: int = 1) -> Jobs:
    return Jobs.of(
        submit_s=[0.0],
        gpus=[gpus],
        duration_s=[1.0],
        model=[model],
        cpus=[cpus * gpus],
        mem_gib=[mem_gib * gpus],
    )


def test_who_needs_less_is_told_what_that_frees() -> None:
    (advice,) = advise(asking("text", 12, 60, gpus=2), NODE, MODELS)
    assert (advice.cpus, advice.frees_cpus) == (1, 22)
    assert sentence(advice) == (
        "--cpus-per-gpu=1 --mem-per-gpu=17G keeps 100 % speed;"
        " frees 22 cores = 5 more one-GPU jobs on this node"
    )


def test_who_needs_more_is_told_how_much_faster_it_would_be() -> None:
    (advice,) = advise(asking("image", 3, 60), NODE, MODELS, keep=1.0)
    assert sentence(advice) == (
        "--cpus-per-gpu=12 --mem-per-gpu=17G keeps 100 % speed, 4.00x as fast as with what it asks for;"
        " takes 9 cores more"
    )


def test_less_of_the_speed_needs_less() -> None:
    (advice,) = advise(asking("image", 6, 60), NODE, MODELS, keep=0.5)
    assert advice.cpus == 6
    assert advice.keeps == pytest.approx(0.5)


def test_of_a_job_that_nobody_measured_nothing_is_said() -> None:
    (advice,) = advise(asking("unheard-of", 6, 60), NODE, MODELS)
    assert (advice.cpus, advice.flags, advice.more_jobs) == (None, "", 0)
    assert "wattline profile" in sentence(advice)


def test_jobs_that_are_alike_are_advised_once() -> None:
    found = advise(build_jobs("text", "text", "image"), NODE, MODELS)
    assert sorted((advice.model, advice.jobs) for advice in found) == [("image", 1), ("text", 2)]


@given(
    beliefs=model_sets(), name=st.sampled_from(NAMES[:3]), gpus=st.integers(1, 8), keep=st.floats(0.3, 1.0)
)
def test_advice_keeps_the_speed_that_it_promises(
    beliefs: Measured, name: str, gpus: int, keep: float
) -> None:
    jobs = with_shares(build_jobs(name, gpus=[gpus]), NODE)
    (advice,) = advise(jobs, NODE, beliefs, keep)
    assert advice.cpus is not None
    assert advice.mem_gib is not None
    ways = [(1000 * advice.cpus, 1024 * advice.mem_gib), (48000 // gpus, 480 * 1024 // gpus)]
    host = np.array([*zip(*ways, strict=True), (0, 0)], dtype=np.int64)
    same = np.ones(2, dtype=np.int64)
    then, best = beliefs.speed(jobs, Grants.of(0 * same, gpus * same, host=host, kind="v100")).tolist()
    assert then >= keep * best * (1 - 1e-6)
    assert advice.cpus * gpus <= 48
