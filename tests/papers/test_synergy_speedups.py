"""The one speed-up of Synergy's published simulator."""

import numpy as np
import pytest

from wattline.core.grants import Grants
from wattline.core.jobs import Jobs
from wattline.papers.synergy_speedups import SynergyModels


def speed(model: str, gpus: int, cores: float, gib: float) -> float:
    jobs = Jobs.of(submit_s=[0.0], gpus=[gpus], duration_s=[100.0], model=[model])
    host = np.array([[1000 * cores / gpus], [1024 * gib / gpus], [0]]).astype(np.int64)
    return float(SynergyModels().speed(jobs, Grants.of(np.array([0]), np.array([gpus]), host=host))[0])


@pytest.mark.parametrize(
    ("model", "gpus", "cores", "gib", "expected"),
    [
        ("alexnet", 1, 12, 125, 2.94),
        ("alexnet", 1, 24, 500, 2.94),
        ("alexnet", 1, 11, 125, 1.0),  # nearly all is nothing
        ("alexnet", 1, 3, 62.5, 1.0),
        ("alexnet", 2, 24, 250, 2.94),
        ("alexnet", 4, 24, 500, 1 + 1.94 / 3),  # a third of the cores beyond its share
        ("alexnet", 8, 24, 500, 1.0),
        ("alexnet", 16, 48, 1000, 1.0),
        ("m5", 4, 24, 500, 2.5),
        ("gnmt", 1, 1, 20, 1.0),
        ("gnmt", 1, 1, 10, 0.1),
        ("unheard-of", 1, 1, 20, 1.0),
    ],
)
def test_speed_ups_are_those_of_the_published_code(
    model: str, gpus: int, cores: float, gib: float, expected: float
) -> None:
    assert speed(model, gpus, cores, gib) == pytest.approx(expected)


def test_with_the_share_a_job_is_as_fast_as_in_its_trace() -> None:
    jobs = Jobs.of(submit_s=[0.0], gpus=[2], duration_s=[100.0], model=["alexnet"])
    assert SynergyModels().speed(jobs, Grants.of(np.array([0]), np.array([2]))).tolist() == [1.0]
